"""A captured step leaves the bits of the eager one, for every feature; needs an NVIDIA GPU."""

import json
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch
from torch import nn

import stoker
from stoker import callbacks, data, metrics, schedule
from stoker.data import _prefetch
from stoker.engine import RunningTotals, _planning
from stoker.engine.executors import _compiled, _cuda_graph
from stoker.engine.executors._cuda_graph import GROUP_SIZE, CudaGraph
from stoker.engine.executors._graph_memory import reserve_stream
from stoker.gradients import _split
from tests.executors.awkward import ALGORITHMS, AWKWARD, FINE, HostRandom, algorithm
from tests.executors.fits import (
    EPOCHS,
    FEATURES,
    Every,
    Feature,
    Swaps,
    assert_close,
    assert_same,
    counted,
    generators,
    net,
    normed,
    outcome,
    run,
    said,
    samples,
)

pytestmark = pytest.mark.cuda
DEVICE = "cuda"


def fit(feature, *, compile=False, **more):
    return run(feature, device=DEVICE, compile=compile, **more)


def captured(feature, **more):
    fitted = fit(feature, **more)
    assert fitted._prepared.fit.plan.mode == "captured", fitted._prepared.fit.plan.reason
    return fitted


def assert_same_fit(one, two):
    """Weights, buffers, moments, average, numbers, and every generator."""
    assert_same(outcome(one), outcome(two))
    assert generators(one) == generators(two)


def everything(**fit):
    """As much as fits into one fit, with a short last batch and validation in between."""
    return Feature(
        lambda: nn.Sequential(*normed(), nn.Dropout(0.3), nn.Linear(3, 3)),
        lambda: data.Loader(samples(), batch_size=8, shuffle=3),
        lambda: {
            "lr": {"0.*": schedule.cosine(0.02, steps=56), "*": 0.01},
            "metrics": [metrics.Accuracy(), metrics.AUROC(), metrics.GradientNorm()],
            "clip_norm": 0.5,
            "ema": 0.75,
        },
        lambda: {"valid": samples(), "validate_every": 5, **fit},
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [*FEATURES, *FINE])
def test_captured_is_eager_bit_for_bit(name, precision, monkeypatch):
    feature = {**FEATURES, **FINE}[name]

    def both(**how):
        return fit(_with(feature, precision=precision), **how)

    eager = both(eager=True)
    assert eager._prepared.fit.plan.mode == "eager"
    made = counted(monkeypatch)
    whole = both()
    assert whole._prepared.fit.plan.mode == "captured" and not said(whole), whole._prepared.fit.plan.reason
    assert_same_fit(whole, eager)
    assert len(made) == (feature.graphs or feature.programs)


def _with(feature, **settings):
    own = feature.settings
    return Feature(feature.model, feature.data, lambda: {**own(), **settings}, feature.fit, feature.listeners)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_everything_at_once(accumulate):
    feature = _with(everything(), accumulate=accumulate)
    assert_same_fit(captured(feature), fit(feature, eager=True))


@pytest.mark.parametrize("name", AWKWARD)
def test_what_can_not_be_captured_runs_eagerly_and_says_why(name, tmp_path):
    case = AWKWARD[name]
    eager = fit(case.feature, eager=True)
    fitted = fit(case.feature, run=tmp_path / "run")
    plan = fitted._prepared.fit.plan
    assert plan.mode == "eager" and (case.captured or case.reason.split(" (")[0]) in plan.reason
    assert_same_fit(fitted, eager)
    assert not any("training step" in text for text in said(fitted))  # nobody has asked for another
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]
    assert f"           not captured: {plan.reason}" in lines


def test_numbers_that_are_drawn_on_the_host_are_drawn_every_time():
    eager, fitted = fit(Feature(HostRandom), eager=True), fit(Feature(HostRandom))
    assert fitted._prepared.fit.plan.mode == "eager" and "host" in fitted._prepared.fit.plan.reason
    assert_same_fit(fitted, eager)


def test_a_fit_is_captured_after_one_that_could_not_be():
    expected = outcome(fit(FEATURES["dropout"], eager=True))
    assert fit(AWKWARD["branch on a tensor"].feature)._prepared.fit.plan.mode == "eager"
    assert_same(outcome(captured(FEATURES["dropout"])), expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_captured_or_refused_with_a_reason(name):
    eager, whole = fit(algorithm(name), eager=True), fit(algorithm(name))
    assert_same_fit(whole, eager)
    assert whole._prepared.fit.plan.mode == "captured" or whole._prepared.fit.plan.reason


class _To(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


def _long(dtype):
    """Matrices that are stepped in parts, one of another type, one that is not in one row of memory; short ones."""
    turned = nn.Linear(70, 300)
    turned.weight = nn.Parameter(turned.weight.detach().t().contiguous().t())
    middle = _To(dtype), nn.Linear(700, 70, dtype=dtype), _To(torch.float32)
    return nn.Sequential(nn.Linear(6, 700), nn.Tanh(), *middle, nn.Tanh(), turned, nn.Linear(300, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["SGD", "SGD momentum", "Adam", "AdamW"])
def test_long_parameters_in_parts_are_stepped_to_the_same_bits(name, dtype, monkeypatch):
    feature = Feature(lambda: _long(dtype), settings=lambda: {"optimizer": ALGORITHMS[name]()})
    expected, parts, split_long = fit(feature, eager=True), [], _split.split_long
    monkeypatch.setattr(_split, "split_long", lambda *given: parts.append(split_long(*given)) or parts[-1])
    assert_same_fit(captured(feature), expected)
    if dtype == torch.float32 or "Adam" not in name:  # of several types it leaves the sorting to torch
        assert max(len(some[0]) for some in parts) > 20


# --- data


def _rows():
    x, y = samples()
    return [(x[each], y[each]) for each in range(len(x))]


SOURCES = {
    "columns": lambda: data.Loader(samples(), batch_size=8, shuffle=3),
    "rows": lambda: data.Loader(_rows(), batch_size=8, shuffle=3),
    "workers": lambda: data.Loader(_rows(), batch_size=8, shuffle=3, workers=2),
    "torch": lambda: torch.utils.data.DataLoader(_rows(), batch_size=8, shuffle=True),
}


@pytest.mark.parametrize("source", SOURCES)
def test_from_every_source(source):
    feature = Feature(lambda: net(nn.Dropout(0.3)), SOURCES[source])
    assert_same_fit(captured(feature), fit(feature, eager=True))


def test_data_that_stays_on_the_device_and_data_that_is_copied_give_the_same_bits(monkeypatch):
    near = captured(everything())
    assert "stay on the device" in near._prepared.fit.plan.data
    monkeypatch.setattr(_planning, "_SHARE_FOR_DATA", 0.0)
    far = captured(everything())
    assert "batches are copied ahead" in far._prepared.fit.plan.data
    assert_same_fit(far, near)


def lengths():
    """Batches of 15 sizes, each of which comes more than once."""
    x, y = samples(400)
    sizes = [1 + number % 15 for number in range(30)]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    rows = [(x[start : start + size], y[start : start + size]) for start, size in zip(starts, sizes, strict=True)]
    return data.Loader(rows, batch_size=1, batcher=_only)


def _only(rows):
    return rows[0]


class Before(metrics.Metric):
    """Reads the targets of the batch before, and lets go of them, while the device is far behind."""

    static = False

    def init(self, device):
        return {"sum": torch.zeros((), device=device), "last": torch.zeros(1, device=device)}

    def update(self, state, output):
        torch.cuda._sleep(20_000_000)
        return {"sum": state["sum"] + (state["last"] + 1).square().sum(), "last": output.targets}

    def compute(self, state):
        return state["sum"].item()


def test_what_was_let_go_of_is_read_before_another_batch_comes_there(monkeypatch):
    """Eager batches, whose next ones are copied when the host has let go of old ones and the device has not come there.

    On another stream than the rest of the fit, nobody would wait for that.
    """
    sent = _prefetch._send
    monkeypatch.setattr(_prefetch, "_send", lambda *given: time.sleep(0.004) or sent(*given))
    monkeypatch.setattr(CudaGraph, "_should_make", lambda *given: False)
    monkeypatch.setattr(_planning, "_SHARE_FOR_DATA", 0.0)
    x, y = samples(196)
    own = {"metrics": [Before()]}
    feature = Feature(data=lambda: data.Loader((x, y), batch_size=8), settings=lambda: own, fit=lambda: {"epochs": 1})
    expected = 1 + (y[:192] + 1).square().sum().item()  # of all but the last batch
    assert captured(feature).history.to_dict()["train/before"] == [expected]


def test_more_kinds_of_batches_than_graphs(monkeypatch):
    feature = Feature(lambda: net(nn.Dropout(0.3)), lengths, fit=lambda: {"epochs": 3})
    eager = fit(feature, eager=True)
    made = counted(monkeypatch)
    whole = captured(feature)
    assert len(made) == 12
    assert "12 kinds of batches have a program of their own; others run eagerly" in whole._prepared.fit.plan.notes
    assert_same_fit(whole, eager)


# --- numbers that are not finite


def poisoned(batch):
    def loader():
        x, y = samples()
        if batch is not None:
            x[8 * (batch - 1) + 3, 2] = float("nan")
        return data.Loader((x, y), batch_size=8)

    return Feature(lambda: nn.Sequential(*normed(), nn.Dropout(0.3)), loader, lambda: {"clip_norm": 1.0, "ema": 0.9})


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 6, 7])
def test_a_late_verdict_names_the_batch_and_saves_what_was_before_it(batch, heard, tmp_path):
    more = {"callbacks": [Every()] if heard else []}
    good = fit(poisoned(None), run=tmp_path / "good", **more)
    with pytest.raises(stoker.NotFinite) as told:
        fit(poisoned(batch), eager=True)
    with pytest.raises(stoker.NotFinite, match=f"not finite at epoch 1, batch {batch}: .* already holds NaN") as found:
        fit(poisoned(batch), run=tmp_path / "run", **more)
    assert str(found.value) == str(told.value)
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    saved = [(event.get("batch", 0), event["extra"]["reason"]) for event in events if event["kind"] == "checkpoint"]
    assert saved[-1] == (batch - 1, "exception: NotFinite" if batch > 1 else "the beginning")
    whole = fit(poisoned(None), run=tmp_path / "run", resume=True, **more)
    assert_same_fit(whole, good)


def test_the_weights_are_those_of_the_update_before():
    """Also where two more updates were under way when the verdict came."""
    expected = fit(poisoned(None), updates=4, epochs=None)._prepared.ending.last_weights
    kept = {}

    def keep(ctx):
        kept.update({name: value.clone() for name, value in ctx.model.named_parameters()})

    with pytest.raises(stoker.NotFinite):
        fit(poisoned(5), callbacks=[callbacks.on(exception=keep)])
    assert kept and all(torch.equal(value, expected[name]) for name, value in kept.items())


# --- going on


class Stop(callbacks.Callback):
    def __init__(self, update):
        self.update = update

    def on_update(self, ctx):
        if ctx.update == self.update:
            raise ZeroDivisionError("as good as any")


@pytest.mark.parametrize("update", [10, 14, 31])
def test_a_run_goes_on_inside_an_epoch_to_the_same_bits(update, tmp_path):
    whole = captured(everything(), run=tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        fit(everything(), run=tmp_path / "cut", callbacks=[Stop(update)], checkpoint=stoker.Checkpoint(every=4))
    again = captured(everything(), run=tmp_path / "cut", resume=True, checkpoint=stoker.Checkpoint(every=4))
    assert_same_fit(again, whole)


# --- several steps to a launch


_COUNTED = [metrics.Accuracy(), metrics.GradientNorm()]


def plain(**settings):
    """Nobody looks between batches, and the rate stays: dropout, batch norm, 26 batches and a short one."""
    return Feature(
        lambda: nn.Sequential(*normed(), nn.Dropout(0.3), nn.Linear(3, 3)),
        lambda: samples(210),
        lambda: {"lr": 0.01, "metrics": _COUNTED, "clip_norm": 0.5, "ema": 0.75, **settings},
        lambda: {"batch_size": 8, "epochs": 3},
    )


GROUPED = f"{GROUP_SIZE} steps to a launch"


def compile_exactly(monkeypatch):
    """Kernels are not chosen by their time, which may be other ones in the next fit."""
    compile_graph = _compiled.compile_graph
    monkeypatch.setattr(
        _compiled, "compile_graph", lambda graph, inputs, exact: compile_graph(graph, inputs, exact=True)
    )


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
def test_several_steps_to_a_launch_are_the_same_steps(compile, monkeypatch):
    compile_exactly(monkeypatch)
    whole = fit(plain(), compile=compile)
    assert GROUPED in whole._prepared.fit.plan.notes
    monkeypatch.setattr(_cuda_graph, "_SMALL_MODEL", 0)
    single = fit(plain(), compile=compile)
    assert GROUPED not in single._prepared.fit.plan.notes
    assert_same_fit(whole, single)
    if not compile:
        assert_same_fit(whole, fit(plain(), eager=True))


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize(
    "settings",
    [{"accumulate": 2}, {"lr": schedule.cosine(0.02, steps=80)}, {"metrics": [metrics.AUROC()]}],
    ids=["windows", "schedule", "growing"],
)
def test_where_something_happens_in_between_each_step_is_launched(settings, compile):
    fitted = fit(plain(**settings), compile=compile)
    assert fitted._prepared.fit.plan.mode == ("compiled" if compile else "captured"), fitted._prepared.fit.plan.reason
    assert GROUPED not in fitted._prepared.fit.plan.notes


def _full():
    raise torch.cuda.OutOfMemoryError("no room")


def _waits():
    torch.ones(1, device=DEVICE).item()


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize(("fails", "why"), [(_full, "no room"), (_waits, "reads a value on the host")])
def test_a_group_that_can_not_be_recorded_leaves_single_steps(fails, why, compile, monkeypatch):
    """Which go on with the generator's random numbers."""
    capture = CudaGraph._capture

    def failing(executor, graph, run):
        def halfway():
            run()
            fails()

        return capture(executor, graph, halfway if run.__name__ == "run_all" else run)

    compile_exactly(monkeypatch)
    with monkeypatch.context() as broken:
        broken.setattr(CudaGraph, "_capture", failing)
        whole = fit(plain(), compile=compile)
    (note,) = [note for note in whole._prepared.fit.plan.notes if note.startswith("one step to a launch")]
    assert why in note
    monkeypatch.setattr(_cuda_graph, "_SMALL_MODEL", 0)
    assert_same_fit(whole, fit(plain(), compile=compile))


def test_every_running_fit_has_a_stream_of_its_own():
    with ExitStack() as fits:
        streams = [fits.enter_context(reserve_stream(torch.device("cuda", 0))).cuda_stream for _ in range(20)]
        assert len(set(streams)) == 20
        for _ in range(50):  # torch hands out all of them again
            with reserve_stream(torch.device("cuda", 0)) as another:
                assert another.cuda_stream not in streams


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("batch", [3, 12, 16, 17, 26])
def test_a_verdict_of_a_group_names_the_batch(batch, compile):
    def broken():
        x, y = samples(210)
        x[(batch - 1) * 8] = float("nan")
        return data.Loader((x, y), batch_size=8)

    with pytest.raises(stoker.NotFinite, match=f"not finite at epoch 1, batch {batch}: .* already holds NaN"):
        fit(replace(plain(), data=broken), compile=compile)


class Masked(nn.Module):
    """Its loss is finite where nothing is left of a batch."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)

    def train_step(self, batch):
        x, y, mask = batch
        logits = self.body(x)
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        loss = (losses * mask.flatten()).sum() / mask.sum().clamp(min=1)
        return stoker.SequenceOutput(loss, logits=logits, targets=y, mask=mask)

    @staticmethod
    def samples():
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(24, 5, 6, generator=generator), torch.randint(0, 3, (24, 5), generator=generator)
        mask = torch.rand(24, 5, generator=generator) < 0.5
        mask[4:8] = mask[16:20] = False
        return x, y, mask


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("eager", [False, True], ids=["captured", "eager"])
def test_a_batch_of_nothing_changes_nothing_as_on_the_cpu(eager, accumulate):
    feature = Feature(
        Masked,
        lambda: data.Loader(Masked.samples(), batch_size=4),
        lambda: {"loss": None, "accumulate": accumulate},
        lambda: {"epochs": 4},
    )
    there, here = fit(feature, eager=eager), run(feature, compile=False)
    assert there._prepared.fit.plan.mode == ("eager" if eager else "captured"), there._prepared.fit.plan.reason
    weights = [{name: value.cpu() for name, value in each.model.state_dict().items()} for each in (there, here)]
    assert_close(*weights, rtol=1e-5, atol=1e-6)


# --- what it costs


class NoWaiting(callbacks.Callback):
    """From the third epoch on, whatever makes the host wait for the device while training is an error."""

    def on_epoch_begin(self, ctx):
        if ctx.epoch >= 3:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, ctx):
        torch.cuda.set_sync_debug_mode("default")

    def on_exception(self, ctx):
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("share", [0.4, 0.0], ids=["resident", "streamed"])
def test_nobody_waits_for_the_device(share, monkeypatch):
    monkeypatch.setattr(_planning, "_SHARE_FOR_DATA", share)
    values = RunningTotals.values

    def read(totals, *given, **more):
        torch.cuda.set_sync_debug_mode("default")  # all batches are through, and the epoch's numbers are waited for
        return values(totals, *given, **more)

    monkeypatch.setattr(RunningTotals, "values", read)
    static = everything(validate_every="epoch")
    feature = _with(static, metrics=[metrics.Accuracy(), metrics.AUROC(bins=50), metrics.GradientNorm()])
    assert captured(feature, callbacks=[NoWaiting()]).updates == 56


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(512, 3, 48, 48, generator=generator), torch.randint(0, 10, (512,), generator=generator)


def convolutions():
    layers = [nn.Conv2d(3, 48, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(48, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


def test_kernels_that_cudnn_chooses_by_their_time(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    short = Feature(convolutions, lambda: tuple(each[:150] for each in images()), fit=lambda: {"batch_size": 64})
    made = counted(monkeypatch)
    whole = captured(short, epochs=4, run=tmp_path / "run")
    assert len(made) == 2  # for the short last batch too, which was not seen before the first was recorded
    assert any("cudnn.benchmark is on" in text and "set it to False" in text for text in said(whole))


def test_the_plan_says_what_all_graphs_take():
    (note,) = [note for note in captured(everything())._prepared.fit.plan.notes if note.startswith("graph memory")]
    assert not note.startswith("graph memory 0 B")


def peak(eager, judged):
    """The most memory that a fit held, in MiB; of this process, so it needs one of its own."""
    more = {"batch_size": 128, "epochs": 3} | ({"valid": images()} if judged else {})
    fitted = fit(Feature(convolutions, images, fit=lambda: more), eager=eager)
    assert fitted._prepared.fit.plan.mode == ("eager" if eager else "captured")
    return torch.cuda.max_memory_reserved() / 2**20


@pytest.mark.parametrize("judged", [False, True], ids=["training", "and validation"])
def test_it_takes_little_more_memory_than_eager(judged):
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        eager, whole = processes.map(peak, [True, False], [judged, judged])
    assert whole <= 1.10 * eager, f"{whole:.0f} MiB captured, {eager:.0f} MiB eager"


class Keeps(callbacks.Callback):
    """Keeps what was predicted in validation, on the device, and copies of it on the host."""

    def __init__(self):
        self.found, self.copies = [], []

    def on_valid_batch_after_pred(self, ctx):
        self.found.append(ctx.pred)
        self.copies.append(ctx.pred.cpu())


@pytest.mark.parametrize("compile", [False, True])
def test_what_a_validation_leaves_is_not_written_over(compile):
    keeps = Keeps()
    feature = Feature(normed, lambda: samples(48), fit=lambda: {"valid": samples(40)})
    whole = fit(feature, compile=compile, callbacks=[keeps])
    torch.cuda.synchronize()
    assert len(keeps.found) == 5 * EPOCHS
    assert all(torch.equal(one.cpu(), copy) for one, copy in zip(keeps.found, keeps.copies, strict=True))
    (note,) = [note for note in whole._prepared.fit.plan.notes if note.startswith("recorded again")]
    assert "validation left tensors" in note
    plain = fit(feature, compile=compile, eager=True)
    (assert_close if compile else assert_same)(
        outcome(whole), outcome(plain), **({"rtol": 1e-4, "atol": 1e-5} if compile else {})
    )


def test_a_validation_that_leaves_nothing_records_nothing_again():
    whole = fit(Feature(normed, lambda: samples(48), fit=lambda: {"valid": samples(40)}))
    assert whole._prepared.fit.plan.mode == "captured"
    assert not [note for note in whole._prepared.fit.plan.notes if note.startswith("recorded again")]


def test_workspaces_that_somebody_clears_were_not_the_graphs_own():
    """As torch.compile(mode="reduce-overhead") does, wherever it records something in this process."""

    def outside():
        segments = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) == (0, 0)]
        return sum(segment["allocated_size"] for segment in segments)

    found = []

    def clear(ctx):
        if ctx.update > 3:  # something has been recorded
            before = outside()
            torch._C._cuda_clearCublasWorkspaces()
            found.append(before - outside())

    feature = Feature(normed, lambda: samples(48))
    whole = fit(feature, callbacks=[callbacks.on(train_batch_end=clear)])
    assert whole._prepared.fit.plan.mode == "captured"
    assert found and not any(found)
    assert_same(outcome(whole), outcome(fit(feature, eager=True)))


def test_validation_after_they_were_cleared_records_nothing_again():
    feature = Feature(normed, lambda: samples(48), fit=lambda: {"valid": samples(40)})
    clear = callbacks.on(valid_batch_begin=lambda ctx: torch._C._cuda_clearCublasWorkspaces())
    assert not [
        note for note in fit(feature, callbacks=[clear])._prepared.fit.plan.notes if note.startswith("recorded again")
    ]


def test_a_recording_that_fails_leaves_no_memory_behind():
    """torch would take it for one that is still going on, and free nothing any more."""
    torch.cuda.empty_cache()
    for _ in range(2):
        assert fit(AWKWARD["item"].feature)._prepared.fit.plan.mode == "eager"
        taken = torch.empty(2**26, dtype=torch.uint8, device="cuda")
        del taken
        before = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        assert before - torch.cuda.memory_reserved() >= 2**26


@pytest.mark.parametrize("names", [("before", "last"), ("last", "before")])
def test_a_state_that_is_kept_under_another_name_is_not_written_over(names):
    feature = Feature(normed, lambda: samples(48), lambda: {"metrics": [Swaps(names=names)]})
    whole = fit(feature)
    assert whole._prepared.fit.plan.mode == "captured"
    assert_same_fit(whole, fit(feature, eager=True))


# --- compiled, and the program captured


def test_compiled_is_close_to_eager_and_nothing_is_compiled_again(monkeypatch):
    assert torch.get_float32_matmul_precision() == "highest"
    feature = everything()
    feature.model = normed  # a compiler draws other numbers
    eager = fit(feature, compile=True, eager=True)
    made = counted(monkeypatch)
    whole = fit(feature, compile=True)
    assert whole._prepared.fit.plan.mode == "compiled" and not said(whole), whole._prepared.fit.plan.reason
    assert len(made) == 2
    assert_close(outcome(whole), outcome(eager), rtol=1e-4, atol=1e-5)


def test_a_compiled_run_comes_to_the_same_bits_again(tmp_path):
    feature = Feature(lambda: net(nn.Dropout(0.3)), lambda: data.Loader(samples(48), batch_size=8))
    one, two = (fit(feature, compile=True, run=tmp_path / name) for name in ("one", "two"))
    assert one._prepared.fit.plan.mode == "compiled"
    assert_same_fit(one, two)
