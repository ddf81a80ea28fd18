"""A compiled step gives the results of the eager step, for every feature; only a few tests run the real compiler."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, data, metrics, optim, schedule
from stoker.engine._step import TrainStep
from stoker.engine.executors import _compiled
from tests.executors.fits import (
    FEATURES,
    REPRESENTATIVE,
    Feature,
    SwappedState,
    assert_close,
    assert_identical,
    batch_norm_net,
    count_programs,
    deep_net,
    interpret_graphs,
    last_weights,
    mark_soak,
    net,
    plan_of,
    results_of,
    rng_states,
    run,
    samples,
    warnings_of,
)
from tests.executors.unsupported import ALGORITHMS, SUPPORTED, UNSUPPORTED, with_algorithm

pytestmark = pytest.mark.usefixtures("double")
CLOSE = {"rtol": 1e-10, "atol": 1e-13}


@pytest.mark.parametrize("name", mark_soak([*FEATURES, *SUPPORTED], {*REPRESENTATIVE, *SUPPORTED}))
def test_a_traced_step_gives_the_results_of_the_eager_step(name, monkeypatch):
    feature = {**FEATURES, **SUPPORTED}[name]
    eager = run(feature, eager=True)
    assert plan_of(eager).mode == "eager"
    interpret_graphs(monkeypatch)
    programs = count_programs(monkeypatch)
    compiled = run(feature)
    assert plan_of(compiled).mode == "compiled" and not warnings_of(compiled), plan_of(compiled).reason
    assert len(programs) == feature.programs
    assert_close(results_of(compiled), results_of(eager), **CLOSE)
    assert rng_states(compiled) == rng_states(eager)


# For these the step is compiled up to the gradients.
UP_TO_GRADIENTS = ("wrapped optimizer", "callback between backward and update")


FAST = {"loss.item()", "counter in a global", "replaced buffer", "random", *UP_TO_GRADIENTS}


@pytest.mark.parametrize("name", mark_soak(UNSUPPORTED, FAST))
def test_a_step_that_cannot_be_compiled_runs_eagerly_and_gives_the_reason(name, monkeypatch):
    case = UNSUPPORTED[name]
    eager = run(case.feature, eager=True, epochs=3)
    if not case.compiler:
        interpret_graphs(monkeypatch)
    fitted = run(case.feature, epochs=3)
    plan = plan_of(fitted)
    assert plan.mode == ("compiled_backward" if name in UP_TO_GRADIENTS else "eager") and case.reason in plan.reason
    if name in UP_TO_GRADIENTS:
        assert_close(results_of(fitted), results_of(eager), **CLOSE)
        assert warnings_of(fitted) == [plan.warning] and "is compiled up to the gradients only" in plan.warning
        return
    assert_identical(results_of(fitted), results_of(eager))
    assert rng_states(fitted) == rng_states(eager)
    assert warnings_of(fitted) == [f"the training step runs eager, not compiled as requested: {plan.reason}"]


@pytest.mark.soak
def test_a_program_that_the_compiler_builds_and_cannot_run_is_replaced_by_eager_steps():
    """Inductor compiles an LSTM in float32 on a CPU, and fails when it is called."""
    torch.set_default_dtype(torch.float32)
    compiled, eager = run(FEATURES["recurrent"], epochs=2), run(FEATURES["recurrent"], epochs=2, eager=True)
    if plan_of(compiled).mode == "eager":  # otherwise torch has learned it
        assert "mkldnn_rnn_layer" in plan_of(compiled).reason and "torchinductor" not in plan_of(compiled).reason
        assert_identical(results_of(compiled), results_of(eager))
        assert rng_states(compiled) == rng_states(eager)


@pytest.mark.parametrize("name", ["sparse", "branch on a tensor"])
def test_the_run_directory_records_why_the_step_is_eager(name, tmp_path):
    fitted = run(UNSUPPORTED[name].feature, run=tmp_path / "run")
    reason = plan_of(fitted).reason
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]
    assert "step       eager, one operation after the other" in lines
    assert f"           not compiled: {reason}" in lines
    assert f"the training step runs eager, not compiled as requested: {reason}" in warnings_of(fitted)


class HalveGradients(callbacks.Callback):
    """Halves the gradients between backward and update, and records what it sees."""

    def __init__(self):
        self.seen = []

    def on_train_batch_after_backward(self, ctx):
        ctx.grads = ctx.grads.scale(0.5)
        self.seen.append([type(ctx.batch), getattr(ctx.pred, "shape", None), ctx.loss.item()])


@pytest.mark.parametrize("name", mark_soak(FEATURES, {"plain", "accumulate", "masked accumulated", "objectives"}))
def test_a_callback_between_backward_and_update_leaves_forward_and_backward_compiled(name, monkeypatch):
    feature, of_eager, of_compiled = FEATURES[name], HalveGradients(), HalveGradients()
    eager = run(feature, eager=True, callbacks=[of_eager])
    assert plan_of(eager).mode == "eager"
    interpret_graphs(monkeypatch)
    compiled = run(feature, callbacks=[of_compiled])
    yields = "objectives" in name
    assert plan_of(compiled).mode == ("eager" if yields else "compiled_backward"), plan_of(compiled).reason
    reason = (
        "the step yields objectives"
        if yields
        else "HalveGradients.on_train_batch_after_backward comes between forward and"
    )
    assert reason in plan_of(compiled).reason
    assert_close(results_of(compiled), results_of(eager), **CLOSE)
    for actual, expected in zip(of_compiled.seen, of_eager.seen, strict=True):
        assert actual[:2] == expected[:2] and actual[2] == pytest.approx(expected[2], rel=1e-9, nan_ok=True)


NOT_COMPILED = {
    "Adam foreach": "with foreach=True torch needs a number",
    "Adafactor": "the step reads a value on the host",
    "Muon": "the step reads a value on the host",
}


@pytest.mark.parametrize("name", mark_soak(ALGORITHMS, {"SGD momentum", "Adam", "AdamW", "Adafactor", "Muon"}))
def test_every_algorithm_is_compiled_or_the_plan_says_why_not(name, monkeypatch):
    eager = run(with_algorithm(name), eager=True)
    interpret_graphs(monkeypatch)
    compiled = run(with_algorithm(name))
    plan = plan_of(compiled)
    is_whole = name not in NOT_COMPILED and "fused" not in name  # a fused update is one kernel already
    assert plan.mode == ("compiled" if is_whole else "compiled_backward"), plan.reason
    assert ("the update is one fused kernel, which is not compiled" in plan.notes) == ("fused" in name)
    assert NOT_COMPILED.get(name, "") in plan.reason
    assert_close(results_of(compiled), results_of(eager), **CLOSE)


def test_the_list_of_algorithms_is_complete():
    kinds = {each for each in vars(optim).values() if isinstance(each, type) and issubclass(each, optim.Algorithm)}
    used = [each() for each in ALGORITHMS.values()]
    used = {type(part) for each in used for part in (each.values() if isinstance(each, dict) else [each])}
    assert used == kinds - {optim.Algorithm}


def test_fp16_runs_eagerly():
    compiled = run(Feature(settings=lambda: {"precision": "fp16"}), epochs=1)
    assert "precision='fp16' reads every update" in plan_of(compiled).reason


def test_a_model_that_is_already_compiled_is_not_compiled_again():
    def compiled_net():
        return torch.compile(net(), backend="eager")

    eager, compiled = run(Feature(compiled_net), eager=True), run(Feature(compiled_net))
    assert plan_of(compiled).reason == "the model is compiled already"
    assert_identical(results_of(compiled), results_of(eager))


def test_a_failure_of_the_compiler_leaves_an_eager_step(monkeypatch):
    def fail(graph, inputs, **_):
        raise RuntimeError("no such compiler: g++")

    eager = run(FEATURES["batch norm"], eager=True)
    monkeypatch.setattr(_compiled, "compile_graph", fail)
    compiled = run(FEATURES["batch norm"])
    assert plan_of(compiled).mode == "eager" and "RuntimeError: no such compiler: g++" in plan_of(compiled).reason
    assert_identical(results_of(compiled), results_of(eager))


def _take_only(rows):
    return rows[0]


def test_programs_are_compiled_for_fixed_sizes(monkeypatch):
    """Programs for any size take longer to compile, run slower, and for some models can't be made."""
    sizes = []

    def inner_compile(graph, inputs, **settings):
        sizes.extend(size for each in inputs for size in (*each.shape, *each.stride()))
        raise RuntimeError("enough")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", inner_compile)
    run(Feature(batch_norm_net), epochs=1)
    assert sizes and {type(size) for size in sizes} == {int}


@pytest.mark.soak
def test_batches_of_more_shapes_than_programs_run_eagerly(monkeypatch):
    def lengths():
        x, y = samples(200)
        sizes = [1 + number % 15 for number in range(24)]
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        return data.Loader(
            [(x[a : a + n], y[a : a + n]) for a, n in zip(starts, sizes, strict=True)], batch_size=1, batcher=_take_only
        )

    eager = run(Feature(data=lengths), eager=True, epochs=4)
    interpret_graphs(monkeypatch)
    programs = count_programs(monkeypatch)
    compiled = run(Feature(data=lengths), epochs=4)
    assert len(programs) == 12
    assert "12 kinds of batches have a program of their own; others run eagerly" in plan_of(compiled).notes
    assert_close(results_of(compiled), results_of(eager), **CLOSE)


def test_a_long_accumulation_window_takes_three_programs(monkeypatch):
    """For its first batch, its last one, and all in between."""
    feature = Feature(data=lambda: data.Loader(samples(240), batch_size=8), settings=lambda: {"accumulate": 15})
    eager = run(feature, eager=True, epochs=4)
    interpret_graphs(monkeypatch)
    programs = count_programs(monkeypatch)
    compiled = run(feature, epochs=4)
    assert len(programs) == 3 and plan_of(compiled).mode == "compiled"
    assert_close(results_of(compiled), results_of(eager), **CLOSE)


def test_dropout_is_reproducible_and_resumes_to_the_same_bits(monkeypatch, tmp_path):
    interpret_graphs(monkeypatch)
    feature = FEATURES["dropout"]
    compiled = results_of(run(feature))
    assert_identical(results_of(run(feature)), compiled)
    run(feature, epochs=3, run=tmp_path / "run")
    assert_identical(results_of(run(feature, run=tmp_path / "run", resume=True)), compiled)


# --- the first batch


class WithUnused(nn.Module):
    """A model with dropout, batch norm and a parameter that is never used."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(2))
        self.body = nn.Sequential(batch_norm_net()[:3], nn.Dropout(0.5), nn.Linear(5, 3))

    def forward(self, x):
        return self.body(x)


def own_loss(pred, target):
    return F.cross_entropy(pred, target)


def own_step(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


FIRST_BATCHES = {
    "torch's loss": ({}, 0),
    "own loss": ({"loss": own_loss}, 0),
    "own step": ({"loss": None, "step": own_step}, 0),
    "momentum starts with a gradient": ({"optimizer": optim.SGD(momentum=0.9)}, 1),
}


@pytest.mark.parametrize("name", FIRST_BATCHES)
def test_the_first_batch_is_compiled_too_unless_the_state_starts_with_a_gradient(name, monkeypatch):
    settings, eager_steps = FIRST_BATCHES[name]
    feature = Feature(WithUnused, settings=lambda: settings)
    eager = run(feature, eager=True, epochs=2)
    interpret_graphs(monkeypatch)
    steps, run_eagerly = [], TrainStep.run_eagerly

    def count(self, batch, lr):
        steps.append(batch.number)
        return run_eagerly(self, batch, lr)

    monkeypatch.setattr(TrainStep, "run_eagerly", count)
    compiled = run(feature, epochs=2)
    assert steps == [1] * eager_steps
    assert_close(results_of(compiled), results_of(eager), **CLOSE)
    assert rng_states(compiled) == rng_states(eager)


def test_the_update_of_many_parameters_is_a_fused_kernel_after_the_program(monkeypatch):
    feature = Feature(deep_net, settings=lambda: {"clip_norm": 1.0, "ema": 0.9})
    eager = run(feature, eager=True, epochs=2)
    interpret_graphs(monkeypatch)
    programs = count_programs(monkeypatch)
    compiled = run(feature, epochs=2, callbacks=[callbacks.on(epoch_end=lambda ctx: None)])
    assert plan_of(compiled).mode == "compiled_backward" and not warnings_of(compiled)
    assert len(programs) == feature.programs
    assert "the update is one fused kernel, which is not compiled" in plan_of(compiled).notes
    assert_close(results_of(compiled), results_of(eager), **CLOSE)


# --- losses that are not finite


def with_nan(batch):
    """Unshuffled samples, with a NaN in one batch (`None`: in none)."""

    def loader():
        x, y = samples()
        if batch is not None:
            x[8 * (batch - 1) + 3, 2] = float("nan")
        return data.Loader((x, y), batch_size=8)

    return Feature(batch_norm_net, loader, lambda: {"clip_norm": 1.0, "ema": 0.9})


@pytest.mark.parametrize("batch", mark_soak([1, 3, 7], {3}))
def test_a_nan_stops_the_fit_before_it_reaches_the_weights_and_the_run_resumes(batch, monkeypatch, tmp_path):
    interpret_graphs(monkeypatch)
    good = run(with_nan(None), run=tmp_path / "good")
    with pytest.raises(stoker.NotFinite) as expected:
        run(with_nan(batch), eager=True)
    with pytest.raises(stoker.NotFinite, match=f"not finite at epoch 1, batch {batch}: .* holds NaN") as found:
        run(with_nan(batch), run=tmp_path / "run")
    assert str(found.value) == str(expected.value)
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    saved = [(event.get("batch", 0), event["extra"]["reason"]) for event in events if event["kind"] == "checkpoint"]
    assert saved[-1] == (batch - 1, "exception: NotFinite" if batch > 1 else "the beginning")
    compiled = run(with_nan(None), run=tmp_path / "run", resume=True)
    assert_close(results_of(compiled), results_of(good), **CLOSE)


def test_after_a_nan_the_model_has_the_weights_of_the_update_before(monkeypatch):
    interpret_graphs(monkeypatch)
    before = run(with_nan(None), updates=4, epochs=None)
    torch.manual_seed(1)
    model = batch_norm_net()
    learner = stoker.Learner(
        model,
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.AdamW(),
        lr=0.015625,
        seed=3,
        clip_norm=1.0,
        device="cpu",
        compile=True,
    )
    with pytest.raises(stoker.NotFinite):
        learner.fit(with_nan(5).data(), epochs=1, show=False)
    for name, value in model.named_parameters():
        assert torch.equal(value, last_weights(before)[name]), name


# --- with the real compiler


@pytest.fixture(scope="module")
def combined():
    """One fit that uses many features, compiled and eager: compiling takes seconds, so the tests share it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    patch = pytest.MonkeyPatch()
    feature = Feature(
        batch_norm_net,
        lambda: data.Loader(samples(48), batch_size=8, shuffle=3),
        lambda: {
            "lr": {"0.*": schedule.cosine(0.02, steps=48), "*": 0.01},
            "metrics": [metrics.Accuracy(), metrics.AUROC(), metrics.GradientNorm()],
            "clip_norm": 0.5,
            "ema": 0.75,
        },
        lambda: {"valid": samples(), "validate_every": 5, "epochs": 9},
        programs=1,
    )
    programs = count_programs(patch)
    compiled = run(feature)
    yield compiled, run(feature, eager=True), programs
    patch.undo()
    torch.set_default_dtype(before)


def test_compiled_and_eager_fits_agree(combined):
    compiled, eager, _ = combined
    assert plan_of(compiled).mode == "compiled" and compiled.updates == 54
    assert_close(results_of(compiled), results_of(eager), **CLOSE)


def test_the_step_is_compiled_once(combined):
    compiled, _, programs = combined
    assert len(programs) == 1
    notes = [event.text for event in compiled.record.events_of("note")]
    assert [text.split(" in ")[0] for text in notes] == [
        "compiling the training step: this takes a while, and less the next time",
        "compiled",
    ]


def test_the_compiled_fit_changes_all_weights(combined):
    compiled = combined[0]
    torch.manual_seed(1)
    start = batch_norm_net().state_dict()
    assert all((value - start[name]).abs().max() > 0.01 for name, value in last_weights(compiled).items())


def test_a_compiled_fit_agrees_with_a_handwritten_loop(combined):
    """With torch's optimizer, in float64."""
    torch.manual_seed(1)
    model = batch_norm_net()
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[1:].parameters())}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    rate, update = schedule.cosine(0.02, steps=48), 0
    loader = data.Loader(samples(48), batch_size=8, shuffle=3)
    for epoch in range(9):
        for x, y in loader.at(epoch=epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.param_groups[0]["lr"] = rate(update)
            optimizer.step()
            update += 1
    for name, value in last_weights(combined[0]).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-7)


@pytest.mark.soak
@pytest.mark.parametrize("names", [("before", "last"), ("last", "before")])
def test_metric_state_that_moves_to_another_name_is_not_overwritten(names):
    feature = Feature(
        batch_norm_net, lambda: samples(48), lambda: {"metrics": [SwappedState(names=names)]}, fit=lambda: {"epochs": 2}
    )
    compiled = run(feature)
    assert plan_of(compiled).mode == "compiled"
    assert_close(results_of(compiled), results_of(run(feature, eager=True)), **CLOSE)


def test_a_program_that_runs_out_of_memory_is_undone_and_the_batch_is_halved(monkeypatch):
    """By then it has written running statistics, totals and the generator; nothing may count twice."""
    calls = []  # of each program; the first one is that of a whole batch

    def compile_graph(graph, inputs, **_):
        number = len(calls)
        calls.append(0)

        def run_graph(tensors):
            found = graph(*tensors)
            calls[number] += 1
            if number == 0 and calls[0] > 1:  # the first call is a trial
                raise torch.OutOfMemoryError("out of memory")
            return found

        return run_graph

    feature = Feature(
        lambda: nn.Sequential(*batch_norm_net(), nn.Dropout(0.3), nn.Linear(3, 3)),
        settings=lambda: {"metrics": [metrics.Accuracy(), metrics.AUROC(bins=20)]},
        callbacks=lambda: [HalveGradients()],
    )
    expected = run(feature, eager=True, micro_batch=4)
    interpret_graphs(monkeypatch)
    monkeypatch.setattr(_compiled, "compile_graph", compile_graph)
    halved = run(feature, micro_batch="auto")
    assert plan_of(halved).mode == "compiled_backward" and calls[0] == 2 and len(calls) > 1
    assert_close(results_of(halved), results_of(expected), **CLOSE)
    assert rng_states(halved) == rng_states(expected)
