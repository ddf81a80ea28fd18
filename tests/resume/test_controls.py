"""Negative controls: if any entry of the saved state is spoilt, the resumed run differs, and the tests notice it."""

import math
import random
from collections.abc import Mapping

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from stoker import Callback, load_for_inference
from stoker.checkpoint import Store, random_state, set_random_state
from stoker.record import Run
from tests.resume.attempts import Stop, differences, outcome, run_with_stops, script_of, start
from tests.resume.scenarios import SIZE, Net, Scenario, columns, fit_arguments, learner, training_data

MIDDLE = Stop("int", "on_train_batch_end", 2, 4)
VALIDATING = Stop("raise", "on_valid_batch_end", 2, 1)
BETWEEN = Stop("int", "on_valid_batch_end", 2, 2)
PLAIN, DRAWS = Scenario(), Scenario(draws=True)
COUNTED = Scenario(callbacks=True, metrics=True)


class FreezeHead(Callback):
    """Freezes a layer and sets another one to eval mode in the second epoch, without a state of its own."""

    transient = True

    def on_epoch_begin(self, ctx):
        if ctx.epoch == 2:
            ctx.model.head.requires_grad_(False)
            ctx.model.body[1].eval()


class StopInside(Callback):
    """Stops inside an epoch."""

    transient = True

    def on_train_batch_end(self, ctx):
        if (ctx.epoch, ctx.batch_number) == (2, 4):
            ctx.stop("stopped by a callback")


def with_callback(callback):
    def script(run, stopper, watchers):
        return learner(PLAIN, stopper.loss).fit(
            training_data(PLAIN, stopper.flag),
            **fit_arguments(PLAIN),
            callbacks=[*watchers, callback(), stopper],
            run=run,
            resume=True,
            show=False,
        )

    return script


def with_data(train, *, valid=None, scenario=PLAIN, **changes):
    def script(run, stopper, watchers):
        settings = fit_arguments(scenario) | ({} if valid is None else {"valid": valid()}) | changes
        return learner(scenario, stopper.loss).fit(
            train(), **settings, callbacks=[*watchers, stopper], run=run, resume=True, show=False
        )

    return script


def data_loader():
    generator = torch.Generator().manual_seed(4)
    return DataLoader(list(zip(*columns(), strict=True)), SIZE, shuffle=True, generator=generator)


GENERATOR = {"generator": torch.Generator().manual_seed(7).get_state()}  # of another seed


class NanInSecondEpoch(torch.utils.data.IterableDataset):
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for x, y in zip(*columns(), strict=True):
            yield x * (math.nan if self.epoch == 1 else 1), y


NAN_IN_SECOND_EPOCH = with_data(NanInSecondEpoch, scenario=Scenario(nan=True), batch_size=SIZE)


# --- how entries are spoilt


def zeros(value):
    """The same structure with zeros."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, Mapping):
        return {name: zeros(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(zeros(each) for each in value)
    return type(value)() if isinstance(value, int | float) and not isinstance(value, bool) else value


def set_to(value):
    return lambda before: value


def reseeded(generator):
    return lambda before: random_state_of(99)[generator]


def random_state_of(seed):
    before = random_state()
    try:
        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        return random_state()
    finally:
        set_random_state(before)


def change_entry(tree, path, change):
    name, *rest = path
    return {**tree, name: change_entry(tree[name], rest, change) if rest else change(tree[name])}


CONTROLS = {
    "model.parameters": (PLAIN, MIDDLE, zeros),
    "model.buffers": (PLAIN, MIDDLE, zeros),
    "model.tied": (Scenario(kind="tied"), MIDDLE, set_to({})),
    "model.empty": (Scenario(kind="tied", every=1), Stop("raise", "on_train_batch_begin", 1, 1), set_to([])),
    "model.extra": (Scenario(kind="extra_state"), MIDDLE, zeros),
    "model.trainable": (with_callback(FreezeHead), MIDDLE, lambda names: [*names, "head.weight", "head.bias"]),
    "model.evaluating": (with_callback(FreezeHead), MIDDLE, set_to([])),
    "optimizer": (PLAIN, MIDDLE, zeros),
    "average": (Scenario(kind="ema"), MIDDLE, zeros),
    "average.updates": (Scenario(kind="ema"), MIDDLE, set_to(0)),
    "best_extra": (Scenario(kind="extra_state", epochs=4), Stop("int", "on_train_batch_end", 4, 4), zeros),
    "best": (Scenario(epochs=4), Stop("int", "on_train_batch_end", 4, 4), set_to(None)),
    "accumulators": (Scenario(accumulate=3), MIDDLE, set_to({})),
    "loss_scale": (Scenario(kind="fp16"), MIDDLE, set_to({"factor": 2.0, "steady": 0})),
    "random.torch": (PLAIN, MIDDLE, reseeded("torch")),
    "random.python": (DRAWS, MIDDLE, reseeded("python")),
    "random.numpy": (DRAWS, MIDDLE, reseeded("numpy")),
    "loader": (with_data(data_loader), MIDDLE, set_to({})),
    "loader.generators": (with_data(data_loader), Stop("raise", "on_epoch_begin", 2), set_to(GENERATOR)),
    "valid": (with_data(columns, valid=data_loader, batch_size=SIZE), MIDDLE, set_to({"valid": GENERATOR})),
    "totals.sums": (PLAIN, MIDDLE, zeros),
    "totals.weights": (PLAIN, MIDDLE, zeros),
    "totals.metrics": (COUNTED, MIDDLE, zeros),
    "totals.samples": (PLAIN, Stop("int", "on_train_batch_end", 3, 4), zeros),
    "gradient_norms": (COUNTED, MIDDLE, zeros),
    "callbacks": (COUNTED, MIDDLE, set_to({})),
    "callbacks.EarlyStopping": (COUNTED, MIDDLE, set_to({"best": None, "best_epoch": 0, "waited": 0})),
    "callbacks.ReduceLROnPlateau": (COUNTED, MIDDLE, set_to({"best": None, "waited": 0, "cooling": 0})),
    "callbacks.CSV": (COUNTED, Stop("int", "on_epoch_begin", 2), lambda state: state | {"rows": 9}),
    "progress.epoch": (PLAIN, MIDDLE, set_to(1)),
    "progress.batch": (PLAIN, MIDDLE, set_to(0)),
    "progress.update": (PLAIN, MIDDLE, set_to(0)),
    "progress.stage": (PLAIN, MIDDLE, set_to("closed")),
    "progress.lr": (COUNTED, VALIDATING, set_to(0.5)),
    "progress.lr_scale": (COUNTED, Stop("int", "on_train_batch_end", 3, 4), set_to(1.0)),
    "progress.metrics": (COUNTED, VALIDATING, set_to({})),
    "progress.best": (Scenario(epochs=4), Stop("int", "on_train_batch_end", 4, 4), set_to(None)),
    "progress.state": (PLAIN, MIDDLE, set_to({})),
    "progress.validated_update": (Scenario(validate_every=3), Stop("raise", "on_epoch_end", 3), set_to(-1)),
    "progress.skipped": (Scenario(nan=True), MIDDLE, set_to(0)),
    "progress.needs_validation": (Scenario(validate_every=3), BETWEEN, set_to(False)),
    "progress.epoch_start": (NAN_IN_SECOND_EPOCH, MIDDLE, set_to([0, 0])),
    "progress.stop_reason": (with_callback(StopInside), VALIDATING, set_to(None)),
    "progress.events": (PLAIN, MIDDLE, set_to(0)),
}  # fmt: skip
OTHER_TESTS = {
    "random.cuda": "needs a GPU: test_cuda.py",
    "progress.seconds": "test_the_clocks_of_a_run_continue",
    "progress.epoch_seconds": "test_the_clocks_of_a_run_continue",
    "progress.loss_is_sum": "tests/executors/test_killed.py: a compiled run, and a loss without a reduction",
    "progress.loss_count": "tests/executors/test_killed.py: a compiled run, and a step that returns a loss",
    "progress.micro_batch": "tests/engine/test_micro_batches.py: a resumed run starts with the size that it has found",
    "callbacks.FreezeUntil": "tests/callbacks/test_freeze.py: on_fit_begin freezes the same in the same model",
    "eval_weights": "test_a_schedule_free_run_needs_its_eval_weights",
    "loss": "test_the_state_of_a_loss_is_restored",
    "identity": "test_settings_of_another_training_are_refused",
    "totals.on_host": "needs a GPU: tests/engine/test_totals.py",
}


def resume_spoilt(script, run, path, change, monkeypatch):
    """Resumes a run with one entry of its state spoilt."""
    newest = Store.newest

    def newest_spoilt(self, *args, **kwargs):
        found = newest(self, *args, **kwargs)
        return found._replace(state=change_entry(found.state, path.split("."), change))

    with monkeypatch.context() as patch:
        patch.setattr(Store, "newest", newest_spoilt)
        return start(script, run)


FAST = {
    *(
        "model.parameters",
        "model.buffers",
        "optimizer",
        "average",
        "average.updates",
        "best",
        "accumulators",
        "loss_scale",
    ),
    *("random.torch", "random.numpy", "loader", "totals.sums", "gradient_norms", "callbacks", "progress.batch"),
    *("progress.lr_scale", "progress.stop_reason"),
}


@pytest.mark.parametrize(
    "path", [path if path in FAST else pytest.param(path, marks=pytest.mark.soak) for path in CONTROLS]
)
def test_a_resumed_run_differs_without_this_entry(path, tmp_path, monkeypatch, fast):
    scenario, stop, change = CONTROLS[path]
    script = script_of(scenario) if isinstance(scenario, Scenario) else scenario
    reference = outcome(start(script, tmp_path / "reference"))
    assert differences(outcome(run_with_stops(script, tmp_path / "whole", [stop])[-1]), reference) == []

    first = start(script, tmp_path / "run", stop)
    assert first.has_stopped
    found = Store(first.run / "checkpoints", run=Run.open(first.run).id).newest(lambda saved: saved.resumable)
    assert differences(change_entry(found.state, path.split("."), change), found.state) != []
    last = resume_spoilt(script, first.run, path, change, monkeypatch)
    assert not isinstance(last.error, TypeError), last.error  # a spoilt entry must not merely fail to load
    assert differences(outcome(last), reference) != []


def test_every_entry_of_the_state_has_a_control(tmp_path, fast):
    attempt = start(script_of(Scenario(kind="ema", callbacks=True, metrics=True)), tmp_path / "run")
    state = Store(attempt.run / "checkpoints", run=Run.open(attempt.run).id).newest().state
    split = ("model", "random", "totals", "progress")
    entries = {f"{name}.{each}" for name in split for each in state[name]} | (set(state) - set(split))
    assert entries == {path for path in {**CONTROLS, **OTHER_TESTS} if path in entries}
    assert {path.split(".")[0] for path in {**CONTROLS, **OTHER_TESTS}} == set(state)
    stateful = {"EarlyStopping", "ReduceLROnPlateau", "FreezeUntil", "CSV", "BatchLog", "Counter"}
    assert set(state["callbacks"]) == stateful


def test_the_clocks_of_a_run_continue(tmp_path, monkeypatch, fast):
    script = with_data(lambda: training_data(PLAIN, tmp_path / "none"), minutes=100)
    first = start(script, tmp_path / "run", MIDDLE)
    short = resume_spoilt(script, first.run, "progress.seconds", set_to(6001.0), monkeypatch)
    assert short.fitted.stopped == "Stopped after 100 minutes"

    first = start(script, tmp_path / "other", MIDDLE)
    long = resume_spoilt(script, first.run, "progress.epoch_seconds", set_to(1e6), monkeypatch)
    assert [event.extra["seconds"] > 1e6 for event in long.fitted.record.events_of("epoch")] == [False, True, False]


def test_a_schedule_free_run_needs_its_eval_weights(tmp_path, monkeypatch, fast):
    attempt = start(script_of(Scenario(kind="schedulefree", keep="last")), tmp_path / "run")
    newest = Store.newest
    assert torch.equal(load_for_inference(attempt.run, Net()).head.weight, attempt.fitted.model.head.weight)
    monkeypatch.setattr(
        Store, "newest", lambda self: newest(self)._replace(state=newest(self).state | {"eval_weights": None})
    )
    assert not torch.equal(load_for_inference(attempt.run, Net()).head.weight, attempt.fitted.model.head.weight)


@pytest.mark.parametrize(
    "name", ["model", "optimizer", "samples", "batches", "batch_size", "order", "seed", "accumulate"]
)
def test_settings_of_another_training_are_refused(name, tmp_path, monkeypatch, fast):
    first = start(script_of(PLAIN), tmp_path / "run", MIDDLE)
    last = resume_spoilt(script_of(PLAIN), first.run, f"identity.fixed.{name}", set_to("another"), monkeypatch)
    assert type(last.error).__name__ == "StateMismatch"
