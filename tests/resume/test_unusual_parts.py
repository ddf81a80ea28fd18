"""Unusual models, losses, optimizers and data that resume exactly, or say why they can't."""

import time

import pytest
import torch
from torch import nn

import stoker
from stoker import Callback, Checkpoint, callbacks, optim
from stoker.checkpoint import Store
from tests.learner.fits import line, linear, result_of, texts

RARELY = Checkpoint(every="60 minutes", background=False)


def fit(run, model=None, hooks=(), of=None, **arguments):
    torch.manual_seed(0)
    learner = of() if of else linear(model=model() if model else None)
    saved = {"run": run, "resume": True, "checkpoint": RARELY} if run is not None else {}
    arguments = {"valid": line(), "epochs": 3, "batch_size": 16, "callbacks": list(hooks), **saved, **arguments}
    return learner.fit(line(), show=False, **arguments)


def raise_at(at, epoch, batch=None):
    def fail(ctx):
        if ctx.epoch == epoch and batch in (None, ctx.batch_number):
            raise ZeroDivisionError("boom")

    return callbacks.on(**{at: fail})


class Encoder(nn.Module):
    """Has a copy whose weights follow in every forward, outside of the optimizer."""

    def __init__(self):
        super().__init__()
        self.own, self.twin = nn.Linear(3, 1), nn.Linear(3, 1).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.twin.weight.lerp_(self.own.weight, 0.1)
        return self.own(x) + self.twin(x)


@pytest.mark.parametrize("at", ["train_batch_after_pred", "train_batch_after_loss"])
def test_weights_that_a_forward_has_changed_are_not_saved_after_an_exception(tmp_path, at):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", Encoder, [raise_at(at, 2, 3)])
    record = stoker.Record.open(tmp_path / "run")
    assert "the weights had changed since the last batch was done: that state was not saved" in texts(record, "note")
    assert result_of(fit(tmp_path / "run", Encoder)) == result_of(fit(None, Encoder))


class Growing(nn.Module):
    """Replaces buffers that are not persistent by larger ones, and by None."""

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


def test_a_buffer_may_grow_or_disappear(tmp_path):
    """The best weights are of an epoch in which it was smaller."""

    def growing():
        return linear(model=Growing(), lr=lambda update: 0.1 if update < 4 else 1.2)

    whole = fit(None, of=growing)
    assert whole.best.epoch < 3
    assert (
        result_of(fit(tmp_path / "run", of=growing)) == result_of(whole) == result_of(fit(tmp_path / "run", of=growing))
    )
    loaded = stoker.Fitted.load(tmp_path / "run", growing())
    assert torch.equal(loaded.model.body.weight, whole.model.body.weight)


class Expanded(nn.Module):
    """One buffer is expanded, and another is replaced by an expanded one: several elements share their memory."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 1)
        self.register_buffer("fixed", torch.ones(1, 3).expand(2, 3))
        self.register_buffer("count", torch.zeros(1, 3).expand(2, 3))

    def forward(self, x):
        if self.training:
            self.count = (self.count[:1] + 1).expand(2, 3)
        return self.body(x) + self.count.mean() / 100


def test_expanded_buffers_are_restored(tmp_path):
    """With the best weights, which are not the last, when the run is resumed, and when it is loaded."""

    def expanded():
        return linear(model=Expanded(), lr=lambda update: 0.1 if update < 4 else 1.2)

    whole = fit(None, of=expanded)
    assert whole.best.epoch < 3 and whole.model.count[1, 2] == 4 * whole.best.epoch
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", of=expanded, hooks=[raise_at("train_batch_begin", 2, 3)])
    assert result_of(fit(tmp_path / "run", of=expanded)) == result_of(whole)
    loaded = stoker.load_for_inference(tmp_path / "run", Expanded())
    assert torch.equal(loaded.count, whole.model.count) and torch.equal(loaded.fixed, torch.ones(2, 3))


def compiled():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))
    return torch.compile(model, backend="aot_eager", dynamic=False)


def test_a_compiled_model_resumes_to_the_same_bits(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", compiled, [raise_at("train_batch_begin", 2, 3)])
    assert result_of(fit(tmp_path / "run", compiled)) == result_of(fit(None, compiled))


class Warmup(Callback):
    """Starts with a small learning rate, and counts in `ctx.state`."""

    def on_fit_begin(self, ctx):
        ctx.state["n"], ctx.lr_scale = 0, 0.1

    def on_update(self, ctx):
        ctx.state["n"] += 1
        ctx.lr_scale = min(1.0, ctx.lr_scale * 1.3)


def test_on_fit_begin_does_not_replace_the_saved_state(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[Warmup(), raise_at("train_batch_begin", 2, 3)])
    assert result_of(fit(tmp_path / "run", hooks=[Warmup()])) == result_of(fit(None, hooks=[Warmup()]))


class Wide(torch.optim.Optimizer):
    """Keeps 32-bit copies of 16-bit weights, as many optimizers do."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state.setdefault("wide", parameter.float())
                    state["wide"] = state["wide"] - group["lr"] * parameter.grad.float() * 1.001
                    parameter.copy_(state["wide"])


def test_the_state_of_a_wrapped_optimizer_keeps_its_precision(tmp_path):
    def wide_learner():
        torch.manual_seed(0)
        model = nn.Linear(3, 1).bfloat16()
        return stoker.Learner(
            model, loss=lambda a, b: ((a.float() - b) ** 2).mean(), optimizer=optim.wrap(Wide), lr=0.03, seed=0
        )

    def wide_fit(run, hooks=()):
        x, y = line()
        return wide_learner().fit(
            (x.bfloat16(), y), epochs=3, batch_size=16, run=run, resume=run is not None, callbacks=hooks, show=False
        )

    with pytest.raises(ZeroDivisionError):
        wide_fit(tmp_path / "run", [raise_at("train_batch_begin", 2, 3)])
    assert torch.equal(wide_fit(tmp_path / "run").model.weight, wide_fit(None).model.weight)


class Centred(nn.Module):
    """A loss with a running mean of the predictions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, predictions, targets):
        if torch.is_grad_enabled():
            self.mean = self.mean * 0.9 + 0.1 * predictions.detach().mean()
        return ((predictions - targets) ** 2).mean() + 0.1 * (predictions - self.mean).abs().mean()


@pytest.mark.parametrize("at", ["train_batch_begin", "train_batch_after_loss"])
def test_the_state_of_a_loss_is_restored(tmp_path, at):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", hooks=[raise_at(at, 2, 3)], of=lambda: linear(loss=Centred()))
    resumed = fit(tmp_path / "run", of=lambda: linear(loss=Centred()))
    assert result_of(resumed) == result_of(fit(None, of=lambda: linear(loss=Centred())))


def test_another_loss_is_refused(tmp_path):
    fit(tmp_path / "run", epochs=1)
    with pytest.raises(stoker.StateMismatch, match=r"loss: MSELoss\(\) before, L1Loss\(\) now"):
        fit(tmp_path / "run", of=lambda: linear(loss=nn.L1Loss()))


def test_a_failed_write_does_not_prevent_the_next(tmp_path, monkeypatch):
    write, failed = Store.write, []

    def fails_once(store, state, place):
        if place.update == 12 and not failed:
            failed.append(1)
            time.sleep(0.3)  # seconds: the fit has ended by then
            raise OSError(28, "No space left on device")
        return write(store, state, place)

    monkeypatch.setattr(Store, "write", fails_once)
    fitted = fit(tmp_path / "run", checkpoint=Checkpoint(every=12))
    assert failed and fitted.stopped == "Completed 3 epochs"
    assert result_of(fit(tmp_path / "run")) == result_of(fitted)


def test_a_run_without_its_run_json_is_refused(tmp_path):
    fit(tmp_path / "run", epochs=1)
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(stoker.BadFile, match="its run.json, which identifies the run, is missing"):
        fit(tmp_path / "run", epochs=1)


class Drawing:
    """Samples with noise from the dataset's own generator."""

    def __init__(self):
        self.rng = torch.Generator().manual_seed(1)

    def __len__(self):
        return 64

    def __getitem__(self, number):
        x = torch.randn(3, generator=self.rng)
        return x, x.sum(0, keepdim=True)


def test_a_dataset_with_its_own_generator_is_a_warning(tmp_path):
    def warnings_of(source):
        fitted = linear().fit(source, epochs=1, batch_size=16, run=tmp_path / type(source).__name__, show=False)
        return texts(fitted.record)

    (warning,) = warnings_of(Drawing())
    assert warning.startswith("the Drawing draws from its own generator (rng), whose state can't be restored")
    assert warnings_of(list(zip(*line(), strict=True))) == []
