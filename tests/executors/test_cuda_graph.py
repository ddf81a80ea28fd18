"""A step replayed from a CUDA graph gives the bits of the eager step, for every feature; needs an NVIDIA GPU."""

import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch
from torch import nn

import stoker
from stoker import callbacks, data, metrics, optim, schedule
from stoker.data import _prefetch
from stoker.engine import RunningTotals, _run
from stoker.engine.executors import _compiled, _cuda_graph
from stoker.engine.executors._cuda_graph import STEPS_PER_LAUNCH, CudaGraph
from stoker.engine.executors._graph_memory import reserve_stream
from stoker.engine.executors._programs import ProgramCache
from stoker.gradients import _split
from tests.device import size
from tests.executors.fits import (
    EPOCHS,
    FEATURES,
    AfterEveryBatch,
    Feature,
    SwappedState,
    assert_close,
    assert_identical,
    batch_norm_net,
    count_programs,
    deep_net,
    last_weights,
    net,
    plan_of,
    results_of,
    rng_states,
    run,
    samples,
    warnings_of,
)
from tests.executors.unsupported import ALGORITHMS, SUPPORTED, UNSUPPORTED, HostRandom, with_algorithm
from tests.hooks import Crash, crash_at

pytestmark = pytest.mark.cuda
DEVICE = "cuda"


def fit(feature, *, compile=False, **more):
    return run(feature, device=DEVICE, compile=compile, **more)


def captured(feature, **more):
    fitted = fit(feature, **more)
    assert plan_of(fitted).mode == "captured", plan_of(fitted).reason
    return fitted


def assert_identical_fits(one, two):
    """Compares weights, buffers, optimizer state, EMA, history and the states of all generators."""
    assert_identical(results_of(one), results_of(two))
    assert rng_states(one) == rng_states(two)


def combined(**fit):
    """A fit that uses many features, with a short last batch and validation within epochs."""
    return Feature(
        lambda: nn.Sequential(*batch_norm_net(), nn.Dropout(0.3), nn.Linear(3, 3)),
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
@pytest.mark.parametrize("name", [*FEATURES, *SUPPORTED])
def test_a_captured_step_gives_the_bits_of_the_eager_step(name, precision, monkeypatch):
    feature = {**FEATURES, **SUPPORTED}[name]

    with_precision = _with(feature, precision=precision)
    eager = fit(with_precision, eager=True)
    assert plan_of(eager).mode == "eager"
    graphs = count_programs(monkeypatch)
    replayed = fit(with_precision)
    assert plan_of(replayed).mode == "captured" and not warnings_of(replayed), plan_of(replayed).reason
    assert_identical_fits(replayed, eager)
    assert len(graphs) == (feature.graphs or feature.programs)


# A rate that float32 can't hold, so that a rate of another type gives other bits.
@pytest.mark.parametrize("lr", [0.01, schedule.cosine(0.01, steps=56)], ids=["constant", "schedule"])
@pytest.mark.parametrize("hook", ["train_batch_begin", "train_batch_after_backward", "train_batch_end"])
def test_a_callback_that_does_nothing_changes_no_bit(hook, lr):
    for optimizer in (optim.AdamW(), optim.RMSprop(), optim.AdamW(fused=False, capturable=True), optim.Adadelta()):
        feature = Feature(settings=lambda optimizer=optimizer: {"optimizer": optimizer, "lr": lr})
        nothing = callbacks.on(**{hook: lambda ctx: None})
        assert_identical_fits(fit(feature, epochs=2, callbacks=[nothing]), captured(feature, epochs=2))


def _move_weights(ctx):
    if ctx.batch_number in (0, 4):
        for parameter in ctx.model.parameters():
            parameter.data = parameter.data.clone()


def _move_buffers(ctx):
    for module in ctx.model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.clone())


def _set_number_or_mapping(ctx):
    rate = 2.0 ** -(4 + ctx.batch_number % 3)
    ctx.lr = {"0.*": rate, "*": 0.01} if ctx.epoch % 2 else rate


# Callbacks after which what a graph reads is at another address; the old memory is somebody else's then.
MOVED = {
    "weights at epochs": {"epoch_begin": _move_weights},
    "weights within epochs": {"train_batch_end": _move_weights},
    "buffers": {"epoch_begin": _move_buffers},
    "tensors of learning rates": {"train_batch_begin": _set_number_or_mapping},
}


@pytest.mark.parametrize("what", MOVED)
def test_a_graph_does_not_use_memory_that_a_callback_has_replaced(what):
    feature = Feature(batch_norm_net, callbacks=lambda: [callbacks.on(**MOVED[what])])
    assert_identical_fits(captured(feature), fit(feature, eager=True))


class KeepOutputs(callbacks.Callback):
    """Keeps the outputs of every batch until the end, without copying them."""

    def __init__(self):
        self.kept = []

    def on_train_batch_end(self, ctx):
        self.kept += [ctx.loss, ctx.pred, ctx.output.targets]


def test_outputs_that_a_callback_keeps_are_those_of_their_batch():
    of_eager, of_captured = KeepOutputs(), KeepOutputs()
    fit(FEATURES["dropout"], eager=True, callbacks=[of_eager])
    captured(FEATURES["dropout"], callbacks=[of_captured])
    assert len(of_eager.kept) == len(of_captured.kept) > 30
    assert all(torch.equal(one, other) for one, other in zip(of_eager.kept, of_captured.kept, strict=True))


def _with(feature, **settings):
    own = feature.settings
    return Feature(feature.model, feature.data, lambda: {**own(), **settings}, feature.fit, feature.callbacks)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_many_features_at_once(accumulate):
    feature = _with(combined(), accumulate=accumulate)
    assert_identical_fits(captured(feature), fit(feature, eager=True))


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_step_that_cannot_be_captured_runs_eagerly_and_gives_the_reason(name, tmp_path):
    case = UNSUPPORTED[name]
    eager = fit(case.feature, eager=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CUDA Graph")  # torch's warnings about one that failed
        fitted = fit(case.feature, run=tmp_path / "run")
    plan = plan_of(fitted)
    assert plan.mode == "eager" and (case.captured or case.reason.split(" (")[0]) in plan.reason
    assert_identical_fits(fitted, eager)
    assert not any("training step" in text for text in warnings_of(fitted))  # a CUDA graph was not requested
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]
    assert f"           not captured: {plan.reason}" in lines


def test_random_numbers_of_the_host_are_drawn_in_every_step():
    eager, fitted = fit(Feature(HostRandom), eager=True), fit(Feature(HostRandom))
    assert plan_of(fitted).mode == "eager" and "host" in plan_of(fitted).reason
    assert_identical_fits(fitted, eager)


def test_a_fit_is_captured_after_one_whose_capture_failed():
    expected = results_of(fit(FEATURES["dropout"], eager=True))
    assert plan_of(fit(UNSUPPORTED["branch on a tensor"].feature)).mode == "eager"
    assert_identical(results_of(captured(FEATURES["dropout"])), expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_captured_or_the_plan_says_why_not(name):
    eager, replayed = fit(with_algorithm(name), eager=True), fit(with_algorithm(name))
    assert_identical_fits(replayed, eager)
    assert plan_of(replayed).mode == "captured" or plan_of(replayed).reason


class Cast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


def _large_net(dtype):
    """Large matrices, which are updated in parts, one of another dtype and one not contiguous, and small parameters."""
    transposed = nn.Linear(70, 300)
    transposed.weight = nn.Parameter(transposed.weight.detach().t().contiguous().t())
    middle = Cast(dtype), nn.Linear(700, 70, dtype=dtype), Cast(torch.float32)
    return nn.Sequential(nn.Linear(6, 700), nn.Tanh(), *middle, nn.Tanh(), transposed, nn.Linear(300, 3))


# The simulated device runs torch's kernels for the CPU, and that one gives random momentum.
_FUSED_SGD = pytest.mark.needs_gpu("a fused SGD of 16-bit parameters that is right: torch's for the CPU is not")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[_FUSED_SGD] if (name, dtype) == ("SGD momentum", torch.bfloat16) else [])
        for name in ("SGD", "SGD momentum", "Adam", "AdamW")
        for dtype in (torch.float32, torch.bfloat16)
    ],
)
def test_updating_large_parameters_in_parts_gives_the_same_bits(name, dtype, monkeypatch):
    feature = Feature(lambda: _large_net(dtype), settings=lambda: {"optimizer": ALGORITHMS[name]()})
    expected, parts, split_long = fit(feature, eager=True), [], _split.split_long
    monkeypatch.setattr(_split, "split_long", lambda *args: parts.append(split_long(*args)) or parts[-1])
    assert_identical_fits(captured(feature), expected)
    if dtype == torch.float32 or "Adam" not in name:  # with several dtypes, torch groups the parameters of Adam itself
        assert max(len(some[0]) for some in parts) > 20


# --- data


def _list_of_samples():
    x, y = samples()
    return [(x[each], y[each]) for each in range(len(x))]


SOURCES = {
    "columns": lambda: data.Loader(samples(), batch_size=8, shuffle=3),
    "rows": lambda: data.Loader(_list_of_samples(), batch_size=8, shuffle=3),
    "workers": lambda: data.Loader(_list_of_samples(), batch_size=8, shuffle=3, workers=2),
    "torch": lambda: torch.utils.data.DataLoader(_list_of_samples(), batch_size=8, shuffle=True),
}


@pytest.mark.parametrize("source", SOURCES)
def test_batches_of_every_kind_of_source_are_captured(source):
    feature = Feature(lambda: net(nn.Dropout(0.3)), SOURCES[source])
    assert_identical_fits(captured(feature), fit(feature, eager=True))


def test_resident_and_streamed_data_give_the_same_bits(monkeypatch):
    resident = captured(combined())
    assert "stay on the device" in plan_of(resident).data
    monkeypatch.setattr(_run, "_SHARE_FOR_DATA", 0.0)
    streamed = captured(combined())
    assert "batches are copied ahead" in plan_of(streamed).data
    assert_identical_fits(streamed, resident)


def variable_batches():
    """Batches of 15 sizes, each of which occurs twice."""
    x, y = samples(400)
    sizes = [1 + number % 15 for number in range(30)]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    rows = [(x[start : start + size], y[start : start + size]) for start, size in zip(starts, sizes, strict=True)]
    return data.Loader(rows, batch_size=1, batcher=_take_only)


def _take_only(rows):
    return rows[0]


class PreviousTargets(metrics.Metric):
    """Reads the targets of the previous batch and then releases them, while the device lags far behind the host."""

    static = False

    def init(self, device):
        return {"sum": torch.zeros((), device=device), "last": torch.zeros(1, device=device)}

    def update(self, state, output):
        torch.cuda._sleep(20_000_000)
        return {"sum": state["sum"] + (state["last"] + 1).square().sum(), "last": output.targets}

    def compute(self, state):
        return state["sum"].item()


def test_a_released_batch_is_not_overwritten_before_the_device_has_read_it(monkeypatch):
    """The next batch is copied when the host has released an old one and the device has not read it yet.

    If copies ran on another stream than the step, nothing would order them.
    """
    send = _prefetch._send
    monkeypatch.setattr(_prefetch, "_send", lambda *args: time.sleep(0.004) or send(*args))
    monkeypatch.setattr(ProgramCache, "_should_make", lambda *args: False)
    monkeypatch.setattr(_run, "_SHARE_FOR_DATA", 0.0)
    x, y = samples(196)
    own = {"metrics": [PreviousTargets()]}
    feature = Feature(data=lambda: data.Loader((x, y), batch_size=8), settings=lambda: own, fit=lambda: {"epochs": 1})
    expected = 1 + (y[:192] + 1).square().sum().item()  # the last batch is not read
    assert captured(feature).history.to_dict()["train/previous_targets"] == [expected]


def test_batches_of_more_shapes_than_graphs_run_eagerly(monkeypatch):
    feature = Feature(lambda: net(nn.Dropout(0.3)), variable_batches, fit=lambda: {"epochs": 3})
    eager = fit(feature, eager=True)
    graphs = count_programs(monkeypatch)
    replayed = captured(feature)
    assert len(graphs) == 12
    assert "12 kinds of batches have a program of their own; others run eagerly" in plan_of(replayed).notes
    assert_identical_fits(replayed, eager)


# --- losses that are not finite


def with_nan(batch):
    def loader():
        x, y = samples()
        if batch is not None:
            x[8 * (batch - 1) + 3, 2] = float("nan")
        return data.Loader((x, y), batch_size=8)

    return Feature(
        lambda: nn.Sequential(*batch_norm_net(), nn.Dropout(0.3)), loader, lambda: {"clip_norm": 1.0, "ema": 0.9}
    )


@pytest.mark.parametrize("callback", [False, True], ids=["no callback", "callback"])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 6, 7])
def test_a_late_finite_check_names_the_batch_and_saves_the_state_before_it(batch, callback, tmp_path):
    more = {"callbacks": [AfterEveryBatch()] if callback else []}
    good = fit(with_nan(None), run=tmp_path / "good", **more)
    with pytest.raises(stoker.NotFinite) as expected:
        fit(with_nan(batch), eager=True)
    with pytest.raises(stoker.NotFinite, match=f"not finite at epoch 1, batch {batch}: .* already holds NaN") as found:
        fit(with_nan(batch), run=tmp_path / "run", **more)
    assert str(found.value) == str(expected.value)
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    saved = [(event.get("batch", 0), event["extra"]["reason"]) for event in events if event["kind"] == "checkpoint"]
    assert saved[-1] == (batch - 1, "exception: NotFinite" if batch > 1 else "the beginning")
    replayed = fit(with_nan(None), run=tmp_path / "run", resume=True, **more)
    assert_identical_fits(replayed, good)


def test_after_a_nan_the_model_has_the_weights_of_the_update_before():
    """Also if two more updates were in flight when the host read the finite check."""
    expected = last_weights(fit(with_nan(None), updates=4, epochs=None))
    weights = {}

    def keep(ctx):
        weights.update({name: value.clone() for name, value in ctx.model.named_parameters()})

    with pytest.raises(stoker.NotFinite):
        fit(with_nan(5), callbacks=[callbacks.on(exception=keep)])
    assert weights and all(torch.equal(value, expected[name]) for name, value in weights.items())


def test_a_batch_that_runs_eagerly_after_a_nan_in_flight_does_not_change_the_weights():
    """From the batch after the NaN on, steps can't be replayed, because a callback has added a hook to the model."""
    expected = last_weights(fit(with_nan(None), updates=4, epochs=None))
    weights = {}

    def add_hook(ctx):
        if ctx.batch_number == 5:
            ctx.model.register_forward_hook(lambda module, args, output: None)

    def keep(ctx):
        weights.update({name: value.clone() for name, value in ctx.model.named_parameters()})

    with pytest.raises(stoker.NotFinite, match="epoch 1, batch 5"):
        fit(with_nan(5), callbacks=[callbacks.on(train_batch_end=add_hook, exception=keep)])
    assert weights and all(torch.equal(value, expected[name]) for name, value in weights.items())


# --- resuming


@pytest.mark.parametrize("update", [10, 14, 31])
def test_a_run_resumes_within_an_epoch_to_the_same_bits(update, tmp_path):
    uninterrupted = captured(combined(), run=tmp_path / "whole")
    with pytest.raises(Crash):
        fit(
            combined(), run=tmp_path / "cut", callbacks=[crash_at(update=update)], checkpoint=stoker.Checkpoint(every=4)
        )
    resumed = captured(combined(), run=tmp_path / "cut", resume=True, checkpoint=stoker.Checkpoint(every=4))
    assert_identical_fits(resumed, uninterrupted)


# --- several steps per launch


_METRICS = [metrics.Accuracy(), metrics.GradientNorm()]


def plain_feature(**settings):
    """26 batches and a short one, without callbacks and at a constant learning rate: several steps are one launch."""
    return Feature(
        lambda: nn.Sequential(*batch_norm_net(), nn.Dropout(0.3), nn.Linear(3, 3)),
        lambda: samples(210),
        lambda: {"lr": 0.01, "metrics": _METRICS, "clip_norm": 0.5, "ema": 0.75, **settings},
        lambda: {"batch_size": 8, "epochs": 3},
    )


SEVERAL_STEPS = f"{STEPS_PER_LAUNCH} steps to a launch"


def compile_exactly(monkeypatch):
    """Turns off autotuning, which may choose other kernels in the next fit."""
    compile_graph = _compiled.compile_graph
    monkeypatch.setattr(
        _compiled, "compile_graph", lambda graph, inputs, is_saved: compile_graph(graph, inputs, is_saved=True)
    )


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
def test_several_steps_per_launch_give_the_bits_of_single_steps(compile, few_points, monkeypatch):
    compile_exactly(monkeypatch)
    replayed = fit(plain_feature(), compile=compile)
    assert SEVERAL_STEPS in plan_of(replayed).notes
    monkeypatch.setattr(_cuda_graph, "_SMALL_MODEL", 0)
    single = fit(plain_feature(), compile=compile)
    assert SEVERAL_STEPS not in plan_of(single).notes
    assert_identical_fits(replayed, single)
    if not compile:
        assert_identical_fits(replayed, fit(plain_feature(), eager=True))


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize(
    "settings",
    [{"accumulate": 2}, {"lr": schedule.cosine(0.02, steps=80)}, {"metrics": [metrics.AUROC()]}],
    ids=["windows", "schedule", "growing"],
)
def test_steps_are_launched_singly_if_the_host_acts_between_them(settings, compile, few_points):
    fitted = fit(plain_feature(**settings), compile=compile)
    assert plan_of(fitted).mode == ("compiled" if compile else "captured"), plan_of(fitted).reason
    assert SEVERAL_STEPS not in plan_of(fitted).notes


def _run_out_of_memory():
    raise torch.cuda.OutOfMemoryError("out of memory")


def _synchronize():
    torch.ones(1, device=DEVICE).item()


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize(
    ("fail", "reason"), [(_run_out_of_memory, "out of memory"), (_synchronize, "reads a value on the host")]
)
def test_if_several_steps_cannot_be_recorded_they_are_launched_singly(fail, reason, compile, few_points, monkeypatch):
    """The random numbers continue where the failed recording began."""
    capture = CudaGraph._capture

    def capture_and_fail(executor, graph, run):
        def run_and_fail():
            run()
            fail()

        return capture(executor, graph, run_and_fail if run.__name__ == "run_all" else run)

    compile_exactly(monkeypatch)
    with monkeypatch.context() as broken:
        broken.setattr(CudaGraph, "_capture", capture_and_fail)
        replayed = fit(plain_feature(), compile=compile)
    (note,) = [note for note in plan_of(replayed).notes if note.startswith("one step to a launch")]
    assert reason in note
    monkeypatch.setattr(_cuda_graph, "_SMALL_MODEL", 0)
    assert_identical_fits(replayed, fit(plain_feature(), compile=compile))


def test_every_running_fit_has_its_own_stream():
    with ExitStack() as fits:
        streams = [fits.enter_context(reserve_stream(torch.device("cuda", 0))).cuda_stream for _ in range(20)]
        assert len(set(streams)) == 20
        for _ in range(50):  # more than the streams in torch's pool
            with reserve_stream(torch.device("cuda", 0)) as another:
                assert another.cuda_stream not in streams


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("batch", [3, 12, 16, 17, 26])
def test_the_finite_check_of_several_steps_names_the_batch(batch, compile, few_points):
    def samples_with_nan():
        x, y = samples(210)
        x[(batch - 1) * 8] = float("nan")
        return data.Loader((x, y), batch_size=8)

    with pytest.raises(stoker.NotFinite, match=f"not finite at epoch 1, batch {batch}: .* already holds NaN"):
        fit(replace(plain_feature(), data=samples_with_nan), compile=compile)


class MaskedTagger(nn.Module):
    """A model whose loss is finite for a batch without a single unmasked token."""

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
def test_a_fully_masked_batch_changes_nothing_as_on_the_cpu(eager, accumulate):
    feature = Feature(
        MaskedTagger,
        lambda: data.Loader(MaskedTagger.samples(), batch_size=4),
        lambda: {"loss": None, "accumulate": accumulate},
        lambda: {"epochs": 4},
    )
    gpu, cpu = fit(feature, eager=eager), run(feature, compile=False)
    assert plan_of(gpu).mode == ("eager" if eager else "captured"), plan_of(gpu).reason
    weights = [{name: value.cpu() for name, value in each.model.state_dict().items()} for each in (gpu, cpu)]
    assert_close(*weights, rtol=1e-5, atol=1e-6)


# --- synchronization and memory


class ForbidSynchronization(callbacks.Callback):
    """From the third epoch on, a synchronization with the device during training raises an error."""

    def on_epoch_begin(self, ctx):
        if ctx.epoch >= 3:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, ctx):
        torch.cuda.set_sync_debug_mode("default")

    def on_exception(self, ctx):
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("share", [0.4, 0.0], ids=["resident", "streamed"])
def test_training_does_not_synchronize_with_the_device(share, monkeypatch):
    monkeypatch.setattr(_run, "_SHARE_FOR_DATA", share)
    values = RunningTotals.values

    def read(totals, *args, **more):
        torch.cuda.set_sync_debug_mode("default")  # at the end of an epoch the host waits for its metrics
        return values(totals, *args, **more)

    monkeypatch.setattr(RunningTotals, "values", read)
    static = combined(validate_every="epoch")
    feature = _with(static, metrics=[metrics.Accuracy(), metrics.AUROC(bins=50), metrics.GradientNorm()])
    assert captured(feature, callbacks=[ForbidSynchronization()]).updates == 56


def random_images():
    generator = torch.Generator().manual_seed(0)
    number, side = size((512, 48), simulated=(256, 40))
    return torch.randn(number, 3, side, side, generator=generator), torch.randint(0, 10, (number,), generator=generator)


def convolutional_net():
    # A GPU has memory beside the activations, for cuDNN; on the simulated device more layers stand for it.
    width, depth = size((48, 3), simulated=(16, 8))
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def test_capture_works_with_cudnn_benchmark_and_warns(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    short = Feature(
        convolutional_net, lambda: tuple(each[:150] for each in random_images()), fit=lambda: {"batch_size": 64}
    )
    graphs = count_programs(monkeypatch)
    replayed = captured(short, epochs=4, run=tmp_path / "run")
    assert len(graphs) == 2  # the other one is for the short last batch
    assert any("cudnn.benchmark is on" in text and "set it to False" in text for text in warnings_of(replayed))


def test_the_plan_gives_the_memory_of_the_graphs():
    (note,) = [note for note in plan_of(captured(combined())).notes if note.startswith("graph memory")]
    assert not note.startswith("graph memory 0 B")


def peak_memory(eager, validate):
    """The peak of reserved memory in MiB. It counts the whole process, so each fit runs in its own."""
    more = {"batch_size": 128, "epochs": 3} | ({"valid": random_images()} if validate else {})
    fitted = fit(Feature(convolutional_net, random_images, fit=lambda: more), eager=eager)
    assert plan_of(fitted).mode == ("eager" if eager else "captured")
    return torch.cuda.max_memory_reserved() / 2**20


@pytest.mark.parametrize("validate", [False, True], ids=["training", "and validation"])
def test_a_captured_fit_takes_little_more_memory_than_an_eager_one(validate):
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        eager, replayed = processes.map(peak_memory, [True, False], [validate, validate])
    assert replayed <= 1.10 * eager, f"{replayed:.0f} MiB captured, {eager:.0f} MiB eager"


class KeepPredictions(callbacks.Callback):
    """Keeps the predictions of validation on the device, and copies on the host."""

    def __init__(self):
        self.found, self.copies = [], []

    def on_valid_batch_after_pred(self, ctx):
        self.found.append(ctx.pred)
        self.copies.append(ctx.pred.cpu())


@pytest.mark.parametrize("compile", [False, True])
def test_tensors_kept_from_validation_are_not_overwritten(compile):
    keeps = KeepPredictions()
    feature = Feature(batch_norm_net, lambda: samples(48), fit=lambda: {"valid": samples(40)})
    replayed = fit(feature, compile=compile, callbacks=[keeps])
    torch.cuda.synchronize()
    assert len(keeps.found) == 5 * EPOCHS
    assert all(torch.equal(one.cpu(), copy) for one, copy in zip(keeps.found, keeps.copies, strict=True))
    (note,) = [note for note in plan_of(replayed).notes if note.startswith("recorded again")]
    assert "validation left tensors" in note
    eager = fit(feature, compile=compile, eager=True)
    (assert_close if compile else assert_identical)(
        results_of(replayed), results_of(eager), **({"rtol": 1e-4, "atol": 1e-5} if compile else {})
    )


def test_a_validation_that_keeps_no_tensors_records_no_new_graphs():
    replayed = fit(Feature(batch_norm_net, lambda: samples(48), fit=lambda: {"valid": samples(40)}))
    assert plan_of(replayed).mode == "captured"
    assert not [note for note in plan_of(replayed).notes if note.startswith("recorded again")]


def test_clearing_cublas_workspaces_does_not_free_memory_of_the_graphs():
    """torch.compile(mode="reduce-overhead") clears them whenever it records a graph in this process."""

    def allocated_outside_graphs():
        segments = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) == (0, 0)]
        return sum(segment["allocated_size"] for segment in segments)

    freed = []

    def clear(ctx):
        if ctx.update > 3:  # a graph has been recorded
            before = allocated_outside_graphs()
            torch._C._cuda_clearCublasWorkspaces()
            freed.append(before - allocated_outside_graphs())

    feature = Feature(batch_norm_net, lambda: samples(48))
    replayed = fit(feature, callbacks=[callbacks.on(train_batch_end=clear)])
    assert plan_of(replayed).mode == "captured"
    assert freed and not any(freed)
    assert_identical(results_of(replayed), results_of(fit(feature, eager=True)))


def test_clearing_cublas_workspaces_in_validation_records_no_new_graphs():
    feature = Feature(batch_norm_net, lambda: samples(48), fit=lambda: {"valid": samples(40)})
    clear = callbacks.on(valid_batch_begin=lambda ctx: torch._C._cuda_clearCublasWorkspaces())
    notes = plan_of(fit(feature, callbacks=[clear])).notes
    assert not [note for note in notes if note.startswith("recorded again")]


def test_a_failed_capture_releases_its_memory():
    """If torch took the capture for unfinished, it would free no memory any more."""
    torch.cuda.empty_cache()
    for _ in range(2):
        assert plan_of(fit(UNSUPPORTED["loss.item()"].feature)).mode == "eager"
        taken = torch.empty(2**26, dtype=torch.uint8, device="cuda")
        del taken
        before = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        assert before - torch.cuda.memory_reserved() >= 2**26


@pytest.mark.parametrize("names", [("before", "last"), ("last", "before")])
def test_metric_state_that_moves_to_another_name_is_not_overwritten(names):
    feature = Feature(batch_norm_net, lambda: samples(48), lambda: {"metrics": [SwappedState(names=names)]})
    replayed = fit(feature)
    assert plan_of(replayed).mode == "captured"
    assert_identical_fits(replayed, fit(feature, eager=True))


# --- compiled steps in CUDA graphs


def test_a_compiled_step_is_close_to_the_eager_one_and_compiled_once(monkeypatch):
    assert torch.get_float32_matmul_precision() == "highest"
    feature = combined()
    feature.model = batch_norm_net  # without dropout: the compiler draws other random numbers
    eager = fit(feature, compile=True, eager=True)
    graphs = count_programs(monkeypatch)
    replayed = fit(feature, compile=True)
    assert plan_of(replayed).mode == "compiled" and not warnings_of(replayed), plan_of(replayed).reason
    assert len(graphs) == 2
    assert_close(results_of(replayed), results_of(eager), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_fused_update_of_many_parameters_is_recorded_after_the_compiled_part(accumulate):
    optimizer = optim.AdamW(eps=1e-4)  # a smaller one amplifies the rounding of small gradients
    settings = {"clip_norm": 1.0, "ema": 0.9, "accumulate": accumulate, "metrics": [metrics.Accuracy()]}
    settings |= {"optimizer": optimizer}
    feature = Feature(deep_net, settings=lambda: settings)
    eager = fit(feature, compile=True, eager=True, epochs=2)
    replayed = fit(feature, compile=True, epochs=2)
    assert plan_of(replayed).mode == "compiled" and not warnings_of(replayed), plan_of(replayed).reason
    assert "the update is one fused kernel, which is not compiled" in plan_of(replayed).notes
    assert_close(results_of(replayed), results_of(eager), rtol=1e-3, atol=1e-5)


def test_compiled_runs_are_reproducible(tmp_path):
    feature = Feature(lambda: net(nn.Dropout(0.3)), lambda: data.Loader(samples(48), batch_size=8))
    one, two = (fit(feature, compile=True, run=tmp_path / name) for name in ("one", "two"))
    assert plan_of(one).mode == "compiled"
    assert_identical_fits(one, two)
