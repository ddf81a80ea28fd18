"""What `on_fit_begin` does in a run that is resumed, and what a load that fails leaves behind."""

import signal

import pytest
import torch
from torch import nn

import stoker
from stoker import Callback, Checkpoint, StateMismatch
from stoker.callbacks import on
from stoker.engine import TrainState
from tests.learner.fits import line, linear, list_files, result_of, texts
from tests.resume.test_unusual_parts import fit, raise_at


class Scaled(nn.Linear):
    """A layer whose output is scaled by a buffer, if it has one, which follows the outputs."""

    def forward(self, x):
        out = super().forward(x)
        if "scale" not in self._buffers:
            return out
        if self.training:
            self.scale += 0.01 * out.detach().abs().mean()
        return out * self.scale


class Changes(Callback):
    """Changes the model when the fit begins; `change` draws random numbers."""

    transient = True

    def __init__(self, change):
        self.change = change

    def on_fit_begin(self, ctx):
        self.change(ctx.model)


def add_buffer(model):
    model[0].register_buffer("scale", torch.rand(()) + 1)


def add_frozen_head(model):
    model.append(nn.Sequential(nn.Dropout(0.2), nn.Linear(1, 1)).requires_grad_(False))


def freeze_bias(model):
    model[0].bias.requires_grad_(False)


def set_weights(model):
    with torch.no_grad():
        model[0].weight.copy_(torch.rand(1, 3))


def make_model():
    return nn.Sequential(Scaled(3, 1))


@pytest.mark.parametrize("change", [add_buffer, add_frozen_head, freeze_bias, set_weights])
@pytest.mark.parametrize("at", [("train_batch_begin", 2, 3), ("epoch_begin", 3)], ids=["inside", "between epochs"])
def test_a_callback_may_change_the_model_before_the_state_is_loaded(tmp_path, change, at):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", make_model, [Changes(change), raise_at(*at)])
    whole = fit(None, make_model, [Changes(change)])
    assert result_of(fit(tmp_path / "run", make_model, [Changes(change)])) == result_of(whole)
    assert result_of(fit(None, make_model)) != result_of(whole), "the change makes a difference"


def test_on_fit_begin_sees_the_position_and_what_ctx_showed(tmp_path):
    seen = []

    def note(ctx):
        ctx.state.setdefault("sessions", 0)
        best = None if ctx.best is None else ctx.best.epoch
        seen.append((ctx.epoch, ctx.batch_number, ctx.update, ctx.lr, dict(ctx.state), best))
        ctx.state["new"] = 1

    def count(ctx):
        ctx.state["updates"] = ctx.update

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[on(update=count, fit_begin=note), raise_at("train_batch_begin", 2, 3)])
    fit(tmp_path / "run", hooks=[on(update=count, fit_begin=note)])
    assert seen[0] == (0, 0, 0, None, {"sessions": 0}, None)
    assert seen[1] == (2, 2, 6, 0.05, {"sessions": 0, "new": 1, "updates": 6}, 1)


class Remembers(nn.Linear):
    """Counts how often its extra state is loaded."""

    loaded = 0

    def get_extra_state(self):
        return {"epochs": 1}

    def set_extra_state(self, state):
        Remembers.loaded += 1


def test_the_model_is_loaded_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Remembers, "loaded", 0)
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", lambda: Remembers(3, 1), [raise_at("train_batch_begin", 1, 3)])
    assert Remembers.loaded == 0
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", lambda: Remembers(3, 1), [raise_at("train_batch_begin", 1, 4)])
    assert Remembers.loaded == 1


def test_a_stop_in_on_fit_begin_of_a_resumed_run_stops_it_there(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[raise_at("train_batch_begin", 2, 3)])
    stopped = fit(tmp_path / "run", hooks=[on(fit_begin=lambda ctx: ctx.stop("not today"))])
    assert (stopped.stopped, stopped.epochs) == ("not today", 2)
    assert result_of(fit(tmp_path / "run", epochs=4)) == result_of(fit(None, epochs=4))


def test_an_interrupt_before_the_position_is_loaded_stops_the_resumed_run(tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[raise_at("train_batch_begin", 2, 3)])
    load = TrainState.load_position

    def load_after_signal(*args):
        signal.raise_signal(signal.SIGINT)
        load(*args)

    with monkeypatch.context() as patch:
        patch.setattr(TrainState, "load_position", load_after_signal)
        stopped = fit(tmp_path / "run")
    assert stopped.stopped.startswith("Interrupted") and stopped.updates == 6
    assert result_of(fit(tmp_path / "run")) == result_of(fit(None))


class Counted(nn.Linear):
    """Has a buffer more than `nn.Linear`, which no setting shows."""

    def __init__(self):
        super().__init__(3, 1)
        self.register_buffer("count", torch.zeros(2))


def test_another_model_is_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[raise_at("train_batch_begin", 2, 3)])
    events, checkpoints = tmp_path / "run" / "events.jsonl", tmp_path / "run" / "checkpoints"
    before = events.read_bytes(), list_files(checkpoints)
    with pytest.raises(StateMismatch, match="not in the state: buffer 'count'"):
        fit(tmp_path / "run", Counted)
    assert (events.read_bytes(), list_files(checkpoints)) == before
    assert result_of(fit(tmp_path / "run")) == result_of(fit(None))


def test_a_load_that_fails_after_on_fit_begin_loses_nothing(tmp_path):
    """A callback may still change the model there, so that it is compared with the state only afterwards."""
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[raise_at("train_batch_begin", 2, 3)])
    before = list_files(tmp_path / "run" / "checkpoints")
    model = Counted()
    initial = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(StateMismatch, match="not in the state: buffer 'count'"):
        fit(tmp_path / "run", lambda: model, [on(fit_begin=lambda ctx: None)])
    assert list_files(tmp_path / "run" / "checkpoints") == before
    assert all(torch.equal(each, initial[name]) for name, each in model.state_dict().items()), "nothing was loaded"
    record = stoker.Record.open(tmp_path / "run")
    assert texts(record, "note") == [] and len(record.events_of("error")) == 1
    assert result_of(fit(tmp_path / "run")) == result_of(fit(None))


def test_a_callback_that_refuses_its_state_loses_nothing(tmp_path):
    class Refuses(Callback):
        def __init__(self, refuses=False):
            self.refuses = refuses

        def state_dict(self):
            return {"seen": 1}

        def load_state_dict(self, state):
            if self.refuses:
                raise ValueError("not this one")

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[Refuses(), raise_at("train_batch_begin", 2, 3)])
    before = list_files(tmp_path / "run" / "checkpoints")
    with pytest.raises(StateMismatch, match="the callback Refuses can't load its saved state: ValueError: not this"):
        fit(tmp_path / "run", hooks=[Refuses(refuses=True)])
    assert list_files(tmp_path / "run" / "checkpoints") == before
    assert result_of(fit(tmp_path / "run", hooks=[Refuses()])) == result_of(fit(None, hooks=[Refuses()]))


def test_a_frozen_backbone_that_a_callback_loads_may_be_left_out_of_checkpoints(tmp_path):
    """The fingerprints are compared after `on_fit_begin`."""

    def make():
        return nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1))

    def load_backbone(ctx):
        torch.nn.init.eye_(ctx.model[0].weight)

    settings = {"checkpoint": Checkpoint(every="60 minutes", background=False, frozen="fingerprint")}
    hooks = [on(fit_begin=load_backbone)]

    def run(path, more=(), **arguments):
        learner = linear(model=make())
        return learner.fit(
            line(), valid=line(), epochs=3, batch_size=16, run=path, callbacks=[*hooks, *more], show=False, **arguments
        )

    torch.manual_seed(0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "run", [raise_at("train_batch_begin", 2, 3)], **settings)
    torch.manual_seed(0)
    resumed = run(tmp_path / "run", resume=True, **settings)
    torch.manual_seed(0)
    assert result_of(resumed) == result_of(run(None))
