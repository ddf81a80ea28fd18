"""Train and eval mode: `model.train()` is called as in any loop, and nothing else is in the wrong mode."""

import pytest
import torch
from torch import nn

import stoker
from stoker import callbacks
from tests.learner.fits import Net, copy_state, learner, same, samples, texts


class Wrapper(nn.Module):
    """A head on a body that arrives in eval mode, as `from_pretrained` gives it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).eval()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def modes_in_training(model, *hooks):
    """Which modules are in training mode during a fit, by name."""
    modes = {}

    def look(ctx):
        modes.update({name: module.training for name, module in ctx.model.named_modules()})

    fitted = learner(model).fit(
        samples(), valid=samples(), epochs=2, callbacks=[*hooks, callbacks.on(update=look)], show=False
    )
    return modes, fitted


def test_a_part_in_eval_mode_is_trained_in_training_mode_and_a_note_says_so():
    modes, fitted = modes_in_training(Wrapper())
    assert all(modes.values())
    (note,) = texts(fitted.record, "note")
    assert note == (
        "backbone came in eval mode and trains now, as model.train() was called; to keep it in eval mode, use "
        "stoker.freeze(model, 'backbone', eval=True), or override train()"
    )
    plain = Wrapper()
    plain.train()
    assert same(fitted.model, learner(plain).fit(samples(), valid=samples(), epochs=2, show=False).model)


def test_the_note_names_the_outermost_parts_only():
    model = Wrapper()
    model.backbone.append(nn.Sequential(nn.Linear(8, 8).eval()))  # in training mode, with a part in eval mode
    _, fitted = modes_in_training(model)
    (note,) = texts(fitted.record, "note")
    assert note.startswith("backbone came in eval mode and trains now")


def test_a_model_in_eval_mode_is_trained_without_a_note():
    modes, fitted = modes_in_training(Net().eval())
    assert all(modes.values()) and not texts(fitted.record, "note")


def test_an_overridden_train_is_called():
    class KeepsBatchNorm(Wrapper):
        def train(self, mode=True):
            super().train(mode)
            self.backbone[1].eval()
            return self

    model = KeepsBatchNorm()
    before = model.backbone[1].running_mean.clone()
    modes, fitted = modes_in_training(model)
    assert not modes.pop("backbone.1") and all(modes.values())
    assert torch.equal(fitted.model.backbone[1].running_mean, before)


@pytest.mark.parametrize("selector", ["backbone", "backbone.*"])
def test_what_is_frozen_with_eval_stays_in_eval_mode(selector):
    model = stoker.freeze(Wrapper().train(), selector, eval=True)
    before = copy_state(model.backbone)
    modes, fitted = modes_in_training(model)
    assert {name for name, training in modes.items() if training} == {"", "head"}
    assert not texts(fitted.record, "note") and same(model.backbone, before)
    modes, _ = modes_in_training(stoker.unfreeze(model))
    assert all(modes.values())


def test_what_is_frozen_without_eval_keeps_its_dropout_and_statistics_training():
    model = stoker.freeze(Wrapper(), "backbone")
    before = copy_state(model.backbone)
    modes, _ = modes_in_training(model)
    assert all(modes.values()) and not same(model.backbone, before)


def test_a_callback_can_switch_a_part_to_eval_mode():
    switch = callbacks.on(fit_begin=lambda ctx: ctx.model.backbone.eval())
    modes, _ = modes_in_training(Wrapper().train(), switch)
    assert {name for name, training in modes.items() if training} == {"", "head"}


class CountingLoss(nn.CrossEntropyLoss):
    """A loss with a running mean that it updates and uses while it is in training mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, logits, targets):
        loss = super().forward(logits, targets)
        if not self.training:
            return loss
        self.mean.lerp_(loss.detach(), 0.1)
        return loss / self.mean


def test_the_loss_is_in_eval_mode_in_validation_and_evaluation():
    def fit(loss, **arguments):
        return learner(loss=loss).fit(samples(), epochs=2, keep="last", show=False, **arguments)

    loss, alone = CountingLoss(), CountingLoss()
    fitted = fit(loss, valid=samples())
    assert same(fitted.model, fit(alone).model) and torch.equal(loss.mean, alone.mean)
    x, y = samples()
    expected = nn.functional.cross_entropy(fitted.model.eval()(x), y).item()
    assert fitted.history["valid/loss"][-1] == pytest.approx(expected, rel=1e-5)
    before = loss.mean.clone()
    assert fitted.evaluate(samples())["loss"] == pytest.approx(expected, rel=1e-5)
    stoker.lr_find(learner(loss=loss), samples(), steps=10)
    assert torch.equal(loss.mean, before) and loss.training
