"""A traced step does what the stations do, for every feature; the compiler itself is asked only a few times."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, data, metrics, optim, schedule
from stoker.engine.executors import _compiled
from tests.executors.awkward import ALGORITHMS, AWKWARD, FINE, algorithm
from tests.executors.fits import (
    FEATURES,
    Feature,
    Swaps,
    assert_close,
    assert_same,
    counted,
    generators,
    interpreted,
    net,
    normed,
    outcome,
    run,
    said,
    samples,
)

pytestmark = pytest.mark.usefixtures("double")
CLOSE = {"rtol": 1e-10, "atol": 1e-13}


@pytest.mark.parametrize("name", [*FEATURES, *FINE])
def test_a_traced_step_does_what_the_stations_do(name, monkeypatch):
    feature = {**FEATURES, **FINE}[name]
    eager = run(feature, eager=True)
    assert eager._prepared.fit.plan.mode == "eager"
    interpreted(monkeypatch)
    made = counted(monkeypatch)
    whole = run(feature)
    assert whole._prepared.fit.plan.mode == "compiled" and not said(whole), whole._prepared.fit.plan.reason
    assert len(made) == feature.programs
    assert_close(outcome(whole), outcome(eager), **CLOSE)
    assert generators(whole) == generators(eager)


AFTER_GRADIENTS = ("wrapped optimizer", "listener in between")


@pytest.mark.parametrize("name", AWKWARD)
def test_what_no_program_stands_for_runs_eagerly_and_says_why(name, monkeypatch):
    case = AWKWARD[name]
    eager = run(case.feature, eager=True)
    if not case.compiler:
        interpreted(monkeypatch)
    fitted = run(case.feature)
    plan = fitted._prepared.fit.plan
    assert plan.mode == ("gradient" if name in AFTER_GRADIENTS else "eager") and case.reason in plan.reason
    if name in AFTER_GRADIENTS:
        assert_close(outcome(fitted), outcome(eager), **CLOSE)
        assert said(fitted) == [plan.warning] and "is compiled up to the gradients only" in plan.warning
        return
    assert_same(outcome(fitted), outcome(eager))
    assert generators(fitted) == generators(eager)
    assert said(fitted) == [f"the training step runs eager, not compiled as requested: {plan.reason}"]


@pytest.mark.parametrize("name", ["sparse", "branch on a tensor"])
def test_a_run_says_in_its_directory_why_it_was_eager(name, tmp_path):
    fitted = run(AWKWARD[name].feature, run=tmp_path / "run")
    why = fitted._prepared.fit.plan.reason
    lines = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]
    assert "step       eager, one operation after the other" in lines
    assert f"           not compiled: {why}" in lines
    assert f"the training step runs eager, not compiled as requested: {why}" in said(fitted)


class Halved(callbacks.Callback):
    """Takes the gradients between backward and step."""

    def __init__(self):
        self.seen = []

    def on_train_batch_after_backward(self, ctx):
        ctx.grads = ctx.grads.scale(0.5)
        self.seen.append([type(ctx.batch), getattr(ctx.pred, "shape", None), ctx.loss.item()])


@pytest.mark.parametrize("name", FEATURES)
def test_what_comes_after_the_gradients_comes_after_a_program_of_them(name, monkeypatch):
    feature, there, here = FEATURES[name], Halved(), Halved()
    eager = run(feature, eager=True, callbacks=[there])
    assert eager._prepared.fit.plan.mode == "eager"
    interpreted(monkeypatch)
    whole = run(feature, callbacks=[here])
    yields = "objectives" in name
    assert whole._prepared.fit.plan.mode == ("eager" if yields else "gradient"), whole._prepared.fit.plan.reason
    why = "the step yields objectives" if yields else "Halved.on_train_batch_after_backward comes between forward and"
    assert why in whole._prepared.fit.plan.reason
    assert_close(outcome(whole), outcome(eager), **CLOSE)
    for mine, theirs in zip(here.seen, there.seen, strict=True):
        assert mine[:2] == theirs[:2] and mine[2] == pytest.approx(theirs[2], rel=1e-9, nan_ok=True)


REFUSED = {
    "Adam foreach": "with foreach=True torch needs a number",
    "Adafactor": "the step reads a value on the host",
    "Muon": "the step reads a value on the host",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_traced_or_refused_with_a_reason(name, monkeypatch):
    eager = run(algorithm(name), eager=True)
    interpreted(monkeypatch)
    whole = run(algorithm(name))
    plan = whole._prepared.fit.plan
    assert plan.mode == ("gradient" if name in REFUSED else "compiled"), plan.reason
    assert REFUSED.get(name, "") in plan.reason
    assert_close(outcome(whole), outcome(eager), **CLOSE)


def test_the_list_of_algorithms_is_complete():
    kinds = {each for each in vars(optim).values() if isinstance(each, type) and issubclass(each, optim.Algorithm)}
    used = [each() for each in ALGORITHMS.values()]
    used = {type(part) for each in used for part in (each.values() if isinstance(each, dict) else [each])}
    assert used == kinds - {optim.Algorithm}


def test_fp16_runs_eagerly():
    whole = run(Feature(settings=lambda: {"precision": "fp16"}), epochs=1)
    assert "precision='fp16' reads every update" in whole._prepared.fit.plan.reason


def test_a_model_that_is_compiled_already_runs_as_it_is(monkeypatch):
    def compiled():
        return torch.compile(net(), backend="eager")

    eager, whole = run(Feature(compiled), eager=True), run(Feature(compiled))
    assert whole._prepared.fit.plan.reason == "the model is compiled already"
    assert_same(outcome(whole), outcome(eager))


def test_what_the_compiler_can_not_do_runs_eagerly(monkeypatch):
    def broken(graph, inputs, **_):
        raise RuntimeError("no such compiler: g++")

    eager = run(FEATURES["batch norm"], eager=True)
    monkeypatch.setattr(_compiled, "compile_graph", broken)
    whole = run(FEATURES["batch norm"])
    assert (
        whole._prepared.fit.plan.mode == "eager"
        and "RuntimeError: no such compiler: g++" in whole._prepared.fit.plan.reason
    )
    assert_same(outcome(whole), outcome(eager))


def test_more_kinds_of_batches_than_programs(monkeypatch):
    def lengths():
        x, y = samples(200)
        sizes = [1 + number % 15 for number in range(24)]
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        return data.Loader(
            [(x[a : a + n], y[a : a + n]) for a, n in zip(starts, sizes, strict=True)], batch_size=1, batcher=_only
        )

    eager = run(Feature(data=lengths), eager=True, epochs=4)
    interpreted(monkeypatch)
    made = counted(monkeypatch)
    whole = run(Feature(data=lengths), epochs=4)
    assert len(made) == 12
    assert "12 kinds of batches have a program of their own; others run eagerly" in whole._prepared.fit.plan.notes
    assert_close(outcome(whole), outcome(eager), **CLOSE)


def test_a_long_window_has_three_programs(monkeypatch):
    """For its first batch, its last one, and all between, however many these are."""
    feature = Feature(data=lambda: data.Loader(samples(240), batch_size=8), settings=lambda: {"accumulate": 15})
    eager = run(feature, eager=True, epochs=4)
    interpreted(monkeypatch)
    made = counted(monkeypatch)
    whole = run(feature, epochs=4)
    assert len(made) == 3 and whole._prepared.fit.plan.mode == "compiled"
    assert_close(outcome(whole), outcome(eager), **CLOSE)


def _only(rows):
    return rows[0]


def test_dropout_is_the_same_for_the_same_seed_and_goes_on(monkeypatch, tmp_path):
    interpreted(monkeypatch)
    feature = FEATURES["dropout"]
    whole = outcome(run(feature))
    assert_same(outcome(run(feature)), whole)
    run(feature, epochs=3, run=tmp_path / "run")
    assert_same(outcome(run(feature, run=tmp_path / "run", resume=True)), whole)


# --- numbers that are not finite


def poisoned(batch):
    """The plain samples in their order, with a NaN in one batch."""

    def loader():
        x, y = samples()
        if batch is not None:
            x[8 * (batch - 1) + 3, 2] = float("nan")
        return data.Loader((x, y), batch_size=8)

    return Feature(normed, loader, lambda: {"clip_norm": 1.0, "ema": 0.9})


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7])
def test_a_batch_that_is_not_finite_stops_the_fit_before_it_changes_a_weight(batch, monkeypatch, tmp_path):
    interpreted(monkeypatch)
    good = run(poisoned(None), run=tmp_path / "good")
    with pytest.raises(stoker.NotFinite) as told:
        run(poisoned(batch), eager=True)
    with pytest.raises(stoker.NotFinite, match=f"not finite at epoch 1, batch {batch}: .* holds NaN") as found:
        run(poisoned(batch), run=tmp_path / "run")
    assert str(found.value) == str(told.value)
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    saved = [(event.get("batch", 0), event["extra"]["reason"]) for event in events if event["kind"] == "checkpoint"]
    assert saved[-1] == (batch - 1, "exception: NotFinite" if batch > 1 else "the beginning")
    whole = run(poisoned(None), run=tmp_path / "run", resume=True)
    assert_close(outcome(whole), outcome(good), **CLOSE)


def test_the_weights_are_those_of_the_update_before(monkeypatch):
    interpreted(monkeypatch)
    before = run(poisoned(None), updates=4, epochs=None)
    torch.manual_seed(1)
    model = normed()
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
        learner.fit(poisoned(5).data(), epochs=1, show=False)
    for name, value in model.named_parameters():
        assert torch.equal(value, before._prepared.ending.last_weights[name]), name


# --- with the compiler


@pytest.fixture(scope="module")
def everything():
    """One fit with as much as fits into it, compiled and eager: a program takes seconds to compile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    patch = pytest.MonkeyPatch()
    feature = Feature(
        normed,
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
    made = counted(patch)
    compiled = run(feature)
    yield compiled, run(feature, eager=True), made
    patch.undo()
    torch.set_default_dtype(before)


def test_compiled_is_eager(everything):
    compiled, eager, _ = everything
    assert compiled._prepared.fit.plan.mode == "compiled" and compiled.updates == 54
    assert_close(outcome(compiled), outcome(eager), **CLOSE)


def test_nothing_is_compiled_again(everything):
    compiled, _, made = everything
    assert len(made) == 1
    assert [text.split(" in ")[0] for text in said(compiled, "note")] == [
        "compiling the training step: this takes a while, and less the next time",
        "compiled",
    ]


def test_the_weights_were_trained(everything):
    compiled = everything[0]
    torch.manual_seed(1)
    start = normed().state_dict()
    assert all(
        (value - start[name]).abs().max() > 0.01 for name, value in compiled._prepared.ending.last_weights.items()
    )


def test_compiled_is_the_loop_that_one_would_write(everything):
    """Torch's own optimizers in 64 bits, and none of stoker."""
    torch.manual_seed(1)
    model = normed()
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
    for name, value in everything[0]._prepared.ending.last_weights.items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("names", [("before", "last"), ("last", "before")])
def test_a_state_that_is_kept_under_another_name_is_not_written_over(names):
    feature = Feature(normed, lambda: samples(48), lambda: {"metrics": [Swaps(names=names)]}, fit=lambda: {"epochs": 2})
    whole = run(feature)
    assert whole._prepared.fit.plan.mode == "compiled"
    assert_close(outcome(whole), outcome(run(feature, eager=True)), **CLOSE)
