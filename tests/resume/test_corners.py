"""What a review found: corners in which a run that was stopped came to other bits, or did not come back at all."""

import time

import pytest
import torch
from torch import nn

import stoker
from stoker import Callback, Checkpoint, callbacks, optim
from stoker.checkpoint import Store
from stoker.cli import main
from tests.learner.fits import line, linear
from tests.learner.runs import came_out, texts

RARELY = Checkpoint(every="60 minutes", background=False)


def fit(run, model=None, hooks=(), of=None, **wish):
    torch.manual_seed(0)
    given = of() if of else linear(model=model() if model else None)
    saved = {"run": run, "resume": True, "checkpoint": RARELY} if run is not None else {}
    wish = {"valid": line(), "epochs": 3, "batch_size": 16, "callbacks": list(hooks), **saved, **wish}
    return given.fit(line(), show=False, **wish)


def boom(at, epoch, batch=None):
    def trip(ctx):
        if ctx.epoch == epoch and batch in (None, ctx.batch_number):
            raise ZeroDivisionError("boom")

    return callbacks.on(**{at: trip})


class Encoder(nn.Module):
    """With a twin that follows its weights in every forward, outside of the optimizer."""

    def __init__(self):
        super().__init__()
        self.own, self.twin = nn.Linear(3, 1), nn.Linear(3, 1).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.twin.weight.lerp_(self.own.weight, 0.1)
        return self.own(x) + self.twin(x)


@pytest.mark.parametrize("at", ["train_batch_after_pred", "train_batch_after_loss"])
def test_weights_that_a_forward_has_changed_are_not_saved_as_the_last_good_ones(tmp_path, at):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", Encoder, [boom(at, 2, 3)])
    record = stoker.Record.open(tmp_path / "run")
    assert "the weights had changed since the last batch was done: that state was not saved" in texts(record, "note")
    assert came_out(fit(tmp_path / "run", Encoder)) == came_out(fit(None, Encoder))


class Growing(nn.Module):
    """Keeps a mask as long as its longest batch, in a buffer that no state_dict has."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 1)
        self.register_buffer("mask", torch.ones(1), persistent=False)
        self.register_buffer("seen", None, persistent=False)

    def forward(self, x):
        if self.training:
            self.mask = torch.ones(int(self.mask.numel()) + 1)
            self.seen = None if self.seen is not None else x.detach().mean(0)
        return self.body(x)


def test_a_buffer_that_grows_or_goes_away_ends_no_fit(tmp_path):
    """The best weights are of an epoch in which it was shorter."""

    def given():
        return linear(model=Growing(), lr=lambda update: 0.1 if update < 4 else 1.2)

    whole = fit(None, of=given)
    assert whole.best.epoch < 3
    assert came_out(fit(tmp_path / "run", of=given)) == came_out(whole) == came_out(fit(tmp_path / "run", of=given))
    loaded = stoker.Fitted.load(tmp_path / "run", given())
    assert torch.equal(loaded.model.body.weight, whole.model.body.weight)


def test_a_run_that_was_stopped_in_its_last_epoch_is_not_over(tmp_path):
    cut = fit(tmp_path / "run", epochs=3, updates=10)
    assert (cut.updates, cut.stopped) == (10, "Completed 10 updates")
    assert came_out(fit(tmp_path / "run")) == came_out(fit(None))


class Slow(Callback):
    """Begins with a small rate, and counts in what is the user's own."""

    def on_fit_begin(self, ctx):
        ctx.state["n"], ctx.lr_scale = 0, 0.1

    def on_update(self, ctx):
        ctx.state["n"] += 1
        ctx.lr_scale = min(1.0, ctx.lr_scale * 1.3)


def test_what_a_hook_begins_with_does_not_replace_what_the_run_had_come_to(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[Slow(), boom("train_batch_begin", 2, 3)])
    assert came_out(fit(tmp_path / "run", hooks=[Slow()])) == came_out(fit(None, hooks=[Slow()]))


class Wide(torch.optim.Optimizer):
    """Keeps 32 bits of weights that have 16, as many optimizers do."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    kept = self.state[parameter]
                    kept.setdefault("wide", parameter.float())
                    kept["wide"] = kept["wide"] - group["lr"] * parameter.grad.float() * 1.001
                    parameter.copy_(kept["wide"])


def test_a_wrapped_optimizer_gets_its_state_back_in_its_own_precision(tmp_path):
    def given():
        torch.manual_seed(0)
        model = nn.Linear(3, 1).bfloat16()
        return stoker.Learner(
            model, loss=lambda a, b: ((a.float() - b) ** 2).mean(), optimizer=optim.wrap(Wide), lr=0.03, seed=0
        )

    def go(run, hooks=()):
        x, y = line()
        return given().fit(
            (x.bfloat16(), y), epochs=3, batch_size=16, run=run, resume=run is not None, callbacks=hooks, show=False
        )

    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "run", [boom("train_batch_begin", 2, 3)])
    assert torch.equal(go(tmp_path / "run").model.weight, go(None).model.weight)


class Centred(nn.Module):
    """A loss that follows the mean of what it sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, predictions, targets):
        if torch.is_grad_enabled():
            self.mean = self.mean * 0.9 + 0.1 * predictions.detach().mean()
        return ((predictions - targets) ** 2).mean() + 0.1 * (predictions - self.mean).abs().mean()


@pytest.mark.parametrize("at", ["train_batch_begin", "train_batch_after_loss"])
def test_the_state_of_a_loss_comes_back(tmp_path, at):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[boom(at, 2, 3)], of=lambda: linear(loss=Centred()))
    resumed = fit(tmp_path / "run", of=lambda: linear(loss=Centred()))
    assert came_out(resumed) == came_out(fit(None, of=lambda: linear(loss=Centred())))


def test_another_loss_is_another_training(tmp_path):
    fit(tmp_path / "run", epochs=1)
    with pytest.raises(stoker.StateMismatch, match=r"loss: MSELoss\(\) before, L1Loss\(\) now"):
        fit(tmp_path / "run", of=lambda: linear(loss=nn.L1Loss()))


def test_a_write_that_failed_does_not_cost_the_next(tmp_path, monkeypatch):
    write, failed = Store.write, []

    def fails_once(store, state, place):
        if place.update == 12 and not failed:
            failed.append(1)
            time.sleep(0.3)  # seconds: the fit is over before it is known
            raise OSError(28, "No space left on device")
        return write(store, state, place)

    monkeypatch.setattr(Store, "write", fails_once)
    fitted = fit(tmp_path / "run", checkpoint=Checkpoint(every=12))
    assert failed and fitted.stopped == "Completed 3 epochs"
    assert came_out(fit(tmp_path / "run")) == came_out(fitted), "the end was written all the same"


def test_a_run_without_its_run_json_is_not_begun_anew(tmp_path):
    fit(tmp_path / "run", epochs=1)
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(stoker.BadFile, match="its run.json, which says whose they are, is not there"):
        fit(tmp_path / "run", epochs=1)


def test_a_copy_is_not_resumed_as_what_it_was_copied_from(tmp_path, monkeypatch, capsys):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[boom("train_batch_begin", 2, 3)])
    (tmp_path / "run").rename(tmp_path / "moved")
    assert main(["resume", str(tmp_path / "moved"), "--yes"]) == 1
    told = capsys.readouterr().err
    assert "was begun as" in told and "start the script yourself with run=" in told


class Drawing:
    """Samples with noise from a generator that the data set keeps."""

    def __init__(self):
        self.rng = torch.Generator().manual_seed(1)

    def __len__(self):
        return 64

    def __getitem__(self, number):
        x = torch.randn(3, generator=self.rng)
        return x, x.sum(0, keepdim=True)


def test_a_data_set_that_draws_from_a_generator_of_its_own_is_told(tmp_path):
    def texts_of(source):
        fitted = linear().fit(source, epochs=1, batch_size=16, run=tmp_path / type(source).__name__, show=False)
        return texts(fitted.record)

    (told,) = texts_of(Drawing())
    assert told.startswith("the Drawing draws from a generator of its own (rng), which can't be put back")
    assert texts_of(list(zip(*line(), strict=True))) == []


def test_what_a_checkpoint_cant_hold_of_the_users_own_is_told_and_stops_nothing(tmp_path):
    odd = {"best": time.gmtime(0), "few": torch.eye(2).to_sparse()}
    hook = callbacks.on(fit_begin=lambda ctx: ctx.state.update(odd))
    told = texts(fit(tmp_path / "run", hooks=[hook]).record)
    assert [text.split(" is a ")[0] for text in told] == ["ctx.state['best']", "ctx.state['few']"]
