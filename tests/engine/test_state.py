"""The whole state of a fit as a tree, and a fit that stands where it stood."""

from collections import deque

import pytest
import torch

from stoker import Checkpoint, StateMismatch, metrics, optim, schedule
from stoker.checkpoint import RandomWatch, Store
from stoker.loop._state import _rates, is_storable, state_of, take_up
from stoker.record import Best, Run
from tests.learner.runs import fit, killed, until
from tests.engine.fits import learner, same, samples

PARTS = {
    *("model", "optimizer", "average", "best", "window", "scaler", "random", "loader", "valid", "tally", "norms"),
    *("callbacks", "loop", "judged", "loss", "identity"),
}
HERE = Checkpoint(every=1, keep_last=99, background=False)


def state_in(run, update):
    store = Store(run / "checkpoints", run=Run.open(run).id)
    return store.read(next(each for each in store.saved() if each.update == update and each.resumable))


def test_every_part_of_it_is_there(tmp_path):
    """A part that is added has to be tried in the matrix of tests/resume as well."""
    given = learner(accumulate=2, ema=0.9, precision="fp16", metrics=[metrics.Accuracy(), metrics.GradientNorm()])
    fit(tmp_path / "run", of=given, checkpoint=HERE)
    state = state_in(tmp_path / "run", 4)
    assert set(state) == PARTS
    assert state["loop"]["epoch"] == 2 and state["loop"]["update"] == 4 and state["loop"]["stage"] == "train"
    assert state["average"] is not None and state["scaler"] is not None and state["best"] is not None
    assert set(state["tally"]["metrics"]) == {"accuracy"} and len(state["norms"]) == 1


def test_a_fit_made_anew_stands_where_the_state_stood(tmp_path):
    left, _ = killed(tmp_path, 2, 4, checkpoint=HERE)
    state = state_in(left, 9)
    fitted = fit(epochs=1, of=learner(lr=schedule.cosine(1e-2, steps=40)))
    other = fitted._prepared.fit
    take_up(other, state)
    ctx = other.ctx
    assert (ctx.epoch, ctx.batch_number, ctx.update, other.stage) == (2, 3, 9, "train")
    assert isinstance(ctx.best, Best) and ctx.best.epoch == 1
    assert ctx.lr == pytest.approx(schedule.cosine(1e-2, steps=40)(8), abs=0), "that of the last batch"
    for name, value in state["model"]["parameters"].items():
        assert torch.equal(ctx.model.get_parameter(name), value)
    assert other.resumed is state


def test_a_state_is_of_now_and_its_tensors_are_the_models_own(tmp_path):
    given = fit(tmp_path / "run", callbacks=[until(2, 3)])._prepared.fit
    given.watch = RandomWatch()
    state = state_of(given)
    own = dict(given.model.named_parameters())
    assert all(value.data_ptr() == own[name].data_ptr() for name, value in state["model"]["parameters"].items())


def test_the_last_weights_are_asked_for(tmp_path):
    """What was kept as the best is of no use to a fit that keeps the last."""
    fit(tmp_path / "run", of=learner(lr=0.1), epochs=5)
    last = fit(tmp_path / "run", of=learner(lr=0.1), epochs=5, keep="last")
    assert last._prepared.fit.state.best_weights is None and same(last.model, fit(of=learner(lr=0.1), epochs=5, keep="last").model)


def test_a_state_of_another_optimizer_changes_no_optimizer(tmp_path):
    left, _ = killed(tmp_path)
    state = state_in(left, 8)
    other = learner(optimizer=optim.SGD(momentum=0.9)).fit(samples(32), epochs=1, show=False)._prepared.fit
    with pytest.raises(StateMismatch):
        take_up(other, state)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((None, True), (1, True), (0.5, True), ("a", True), (b"a", True), (True, True), (torch.zeros(2), True)),
        *(([1, ("a", None)], True), ({"a": [torch.zeros(1)]}, True), ({1: 2}, True)),
        *((object(), False), ([object()], False), ({"a": {1, 2}}, False), (deque([1]), False), (print, False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_of_the_users_own_can_be_kept(value, expected):
    assert is_storable(value) is expected


def test_learning_rates_come_back_to_the_selectors_of_now():
    module = torch.nn.Linear(1, 1)
    assert _rates(0.5, like=0.1) == 0.5
    assert _rates([0.5, 0.2], like={module: 1.0, "*": 2.0}) == {module: 0.5, "*": 0.2}
    assert _rates([0.5, 0.2], like={"*": 2.0}) == {"*": 2.0}
    assert _rates([0.5, 0.2], like=0.1) == 0.1
    assert _rates(0.5, like={"*": 2.0}) == {"*": 2.0}
    assert _rates(None, like=0.1) is None
