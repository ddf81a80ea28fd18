"""Negative controls: without any one part of the state, the run that goes on is another one, and the matrix sees it."""

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
from tests.resume.parts import Stop, differences, outcome, script_of, start, stopped
from tests.resume.scenes import SIZE, Net, Scene, columns, fit_settings, learner, training_data

MIDDLE = Stop("int", "on_train_batch_end", 2, 4)
VALIDATING = Stop("raise", "on_valid_batch_end", 2, 1)
BETWEEN = Stop("int", "on_valid_batch_end", 2, 2)
PLAIN, DRAWS = Scene(), Scene(draws=True)
COUNTED = Scene(callbacks=True, metrics=True)


class Half(Callback):
    """Trains and evaluates parts of the model in its own way, from an epoch on, and keeps nothing itself."""

    transient = True

    def on_epoch_begin(self, ctx):
        if ctx.epoch == 2:
            ctx.model.head.requires_grad_(False)
            ctx.model.body[1].eval()


class Weary(Callback):
    """Stops in the middle of an epoch."""

    transient = True

    def on_train_batch_end(self, ctx):
        if (ctx.epoch, ctx.batch_number) == (2, 4):
            ctx.stop("seen enough")


def with_callback(callback):
    def script(run, trouble, watching):
        return learner(PLAIN, trouble.loss).fit(
            training_data(PLAIN, trouble.flag),
            **fit_settings(PLAIN),
            callbacks=[*watching, callback(), trouble],
            run=run,
            resume=True,
            show=False,
        )

    return script


def with_data(train, *, valid=None, scene=PLAIN, **changes):
    def script(run, trouble, watching):
        settings = fit_settings(scene) | ({} if valid is None else {"valid": valid()}) | changes
        return learner(scene, trouble.loss).fit(
            train(), **settings, callbacks=[*watching, trouble], run=run, resume=True, show=False
        )

    return script


def foreign():
    generator = torch.Generator().manual_seed(4)
    return DataLoader(list(zip(*columns(), strict=True)), SIZE, shuffle=True, generator=generator)


GENERATOR = {"generator": torch.Generator().manual_seed(7).get_state()}  # another one


class Spoilt(torch.utils.data.IterableDataset):
    """Data whose second epoch is no numbers."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for x, y in zip(*columns(), strict=True):
            yield x * (math.nan if self.epoch == 1 else 1), y


# --- what becomes of a part that is dropped


def zeros(value):
    """The same, with nothing in it: tensors and numbers are 0, counts begin anew."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, Mapping):
        return {name: zeros(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(zeros(each) for each in value)
    return type(value)() if isinstance(value, int | float) and not isinstance(value, bool) else value


def be(value):
    return lambda before: value


def fresh(generator):
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


def changed(tree, path, change):
    name, *rest = path
    return {**tree, name: changed(tree[name], rest, change) if rest else change(tree[name])}


CONTROLS = {
    "model.parameters": (PLAIN, MIDDLE, zeros),
    "model.buffers": (PLAIN, MIDDLE, zeros),
    "model.tied": (Scene(kind="odd"), MIDDLE, be({})),
    "model.empty": (Scene(kind="odd", every=1), Stop("raise", "on_train_batch_begin", 1, 1), be([])),
    "model.extra": (Scene(kind="counting"), MIDDLE, zeros),
    "model.trainable": (with_callback(Half), MIDDLE, lambda names: [*names, "head.weight", "head.bias"]),
    "model.evaluating": (with_callback(Half), MIDDLE, be([])),
    "optimizer": (PLAIN, MIDDLE, zeros),
    "ema": (Scene(kind="ema"), MIDDLE, zeros),
    "best_weights": (Scene(epochs=4), Stop("int", "on_train_batch_end", 4, 4), be(None)),
    "accumulators": (Scene(accumulate=3), MIDDLE, be({})),
    "loss_scale": (Scene(kind="fp16"), MIDDLE, be({"factor": 2.0, "steady": 0})),
    "random.torch": (PLAIN, MIDDLE, fresh("torch")),
    "random.python": (DRAWS, MIDDLE, fresh("python")),
    "random.numpy": (DRAWS, MIDDLE, fresh("numpy")),
    "loader": (with_data(foreign), MIDDLE, be({})),
    "loader.generators": (with_data(foreign), Stop("raise", "on_epoch_begin", 2), be(GENERATOR)),
    "valid": (with_data(columns, valid=foreign, batch_size=SIZE), MIDDLE, be({"valid": GENERATOR})),
    "totals.sums": (PLAIN, MIDDLE, zeros),
    "totals.weights": (PLAIN, MIDDLE, zeros),
    "totals.metrics": (COUNTED, MIDDLE, zeros),
    "totals.samples": (PLAIN, Stop("int", "on_train_batch_end", 3, 4), zeros),
    "gradient_norms": (COUNTED, MIDDLE, zeros),
    "callbacks": (COUNTED, MIDDLE, be({})),
    "callbacks.EarlyStopping": (COUNTED, MIDDLE, be({"best": None, "best_epoch": 0, "waited": 0})),
    "callbacks.ReduceLROnPlateau": (COUNTED, MIDDLE, be({"best": None, "waited": 0, "cooling": 0})),
    "callbacks.FreezeUntil": (COUNTED, Stop("raise", "on_valid_begin", 1), be({"frozen": []})),
    "callbacks.CSV": (COUNTED, Stop("int", "on_epoch_begin", 2), lambda state: state | {"rows": 9}),
    "progress.epoch": (PLAIN, MIDDLE, be(1)),
    "progress.batch": (PLAIN, MIDDLE, be(0)),
    "progress.update": (PLAIN, MIDDLE, be(0)),
    "progress.stage": (PLAIN, MIDDLE, be("closed")),
    "progress.lr": (COUNTED, VALIDATING, be(0.5)),
    "progress.lr_scale": (COUNTED, Stop("int", "on_train_batch_end", 3, 4), be(1.0)),
    "progress.metrics": (COUNTED, VALIDATING, be({})),
    "progress.best": (Scene(epochs=4), Stop("int", "on_train_batch_end", 4, 4), be(None)),
    "progress.state": (PLAIN, MIDDLE, be({})),
    "progress.validated_update": (Scene(validate_every=3), Stop("raise", "on_epoch_end", 3), be(-1)),
    "progress.skipped": (Scene(nan=True), MIDDLE, be(0)),
    "progress.needs_validation": (Scene(validate_every=3), BETWEEN, be(False)),
    "progress.epoch_start": (with_data(Spoilt, scene=Scene(nan=True), batch_size=SIZE), MIDDLE, be([0, 0])),
    "progress.stop_reason": (with_callback(Weary), VALIDATING, be(None)),
    "progress.events": (PLAIN, MIDDLE, be(0)),
}  # fmt: skip
BY_OTHERS = {
    "random.cuda": "there is none here",
    "progress.seconds": "test_the_time_of_a_run_goes_on",
    "progress.epoch_seconds": "test_the_time_of_a_run_goes_on",
    "eval_weights": "test_a_schedule_free_run_needs_its_judged_weights",
    "loss": "test_the_state_of_a_loss_comes_back",
    "identity": "test_another_training_is_refused",
    "totals.on_host": "there is no other device here",
}


def going_on(script, run, path, change, monkeypatch):
    """The rest of a run, without a part of its state."""
    newest = Store.newest

    def spoilt(self, *wanted, **more):
        found = newest(self, *wanted, **more)
        return found._replace(state=changed(found.state, path.split("."), change))

    with monkeypatch.context() as patch:
        patch.setattr(Store, "newest", spoilt)
        return start(script, run)


@pytest.mark.parametrize("path", CONTROLS)
def test_no_part_of_the_state_can_be_left_out(path, tmp_path, monkeypatch, fast):
    scene, stop, change = CONTROLS[path]
    script = script_of(scene) if isinstance(scene, Scene) else scene
    truth = outcome(start(script, tmp_path / "truth"))
    assert differences(outcome(stopped(script, tmp_path / "whole", [stop])[-1]), truth) == []

    first = start(script, tmp_path / "run", stop)
    assert first.struck
    found = Store(first.run / "checkpoints", run=Run.open(first.run).id).newest(lambda saved: saved.resumable)
    assert differences(changed(found.state, path.split("."), change), found.state) != [], "nothing was dropped"
    last = going_on(script, first.run, path, change, monkeypatch)
    assert not isinstance(last.error, TypeError), last.error  # else it is this test that fails
    assert differences(outcome(last), truth) != []


def test_every_part_of_the_state_has_a_control(tmp_path, fast):
    part = start(script_of(Scene(kind="ema", callbacks=True, metrics=True)), tmp_path / "run")
    state = Store(part.run / "checkpoints", run=Run.open(part.run).id).newest().state
    split = ("model", "random", "totals", "progress")
    parts = {f"{name}.{each}" for name in split for each in state[name]} | (set(state) - set(split))
    assert parts == {path for path in {**CONTROLS, **BY_OTHERS} if path in parts}
    assert {path.split(".")[0] for path in {**CONTROLS, **BY_OTHERS}} == set(state)
    counting = {"EarlyStopping", "ReduceLROnPlateau", "FreezeUntil", "CSV", "Seen", "Counter"}
    assert set(state["callbacks"]) == counting


def test_the_time_of_a_run_goes_on(tmp_path, monkeypatch, fast):
    script = with_data(lambda: training_data(PLAIN, tmp_path / "none"), minutes=100)
    first = start(script, tmp_path / "run", MIDDLE)
    short = going_on(script, first.run, "progress.seconds", be(6001.0), monkeypatch)
    assert short.fitted.stopped == "Stopped after 100 minutes"

    first = start(script, tmp_path / "other", MIDDLE)
    long = going_on(script, first.run, "progress.epoch_seconds", be(1e6), monkeypatch)
    assert [event.extra["seconds"] > 1e6 for event in long.fitted.record.events_of("epoch")] == [False, True, False]


def test_a_schedule_free_run_needs_its_judged_weights(tmp_path, monkeypatch, fast):
    part = start(script_of(Scene(kind="schedulefree", keep="last")), tmp_path / "run")
    newest = Store.newest
    assert torch.equal(load_for_inference(part.run, Net()).head.weight, part.fitted.model.head.weight)
    monkeypatch.setattr(
        Store, "newest", lambda self: newest(self)._replace(state=newest(self).state | {"eval_weights": None})
    )
    assert not torch.equal(load_for_inference(part.run, Net()).head.weight, part.fitted.model.head.weight)


@pytest.mark.parametrize(
    "name", ["model", "optimizer", "samples", "batches", "batch_size", "order", "seed", "accumulate"]
)
def test_another_training_is_refused(name, tmp_path, monkeypatch, fast):
    first = start(script_of(PLAIN), tmp_path / "run", MIDDLE)
    last = going_on(script_of(PLAIN), first.run, f"identity.fixed.{name}", be("another"), monkeypatch)
    assert type(last.error).__name__ == "StateMismatch"
