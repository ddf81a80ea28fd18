"""Gradients on their way to an update, and what hooks may do with them."""

import pytest
import torch
from torch import nn

from stoker import Accumulator, WrongType, callbacks, metrics, optim
from tests.engine.fits import line, linear, same


def test_a_hook_may_change_the_gradients():
    def none(ctx):
        ctx.grads = ctx.grads.scale(0.0)

    model = nn.Linear(3, 1)
    before = model.weight.detach().clone()
    frozen = callbacks.on(train_batch_after_backward=none)
    linear(model=model).fit(line(), epochs=1, callbacks=[frozen], show=False)
    assert torch.equal(model.weight, before)


def test_gradients_that_a_hook_took_away_are_an_error():
    gone = callbacks.on(train_batch_after_backward=lambda ctx: setattr(ctx, "grads", None))
    with pytest.raises(WrongType, match="a callback set ctx.grads to NoneType"):
        linear().fit(line(), epochs=1, callbacks=[gone], show=False)


def test_after_step_and_update_come_only_where_the_weights_changed():
    seen = []
    watch = callbacks.on(
        train_batch_after_step=lambda ctx: seen.append("step"),
        update=lambda ctx: seen.append(ctx.update),
        train_batch_end=lambda ctx: seen.append("end"),
    )
    linear(accumulate=2).fit(line(48), epochs=1, batch_size=16, callbacks=[watch], show=False)
    assert seen == ["end", "step", 1, "end", "step", 2, "end"]


def test_nothing_stays_in_grad_and_no_accumulator_keeps_anything():
    result = linear(accumulate=3).fit(line(), epochs=2, batch_size=16, show=False)
    assert all(parameter.grad is None for parameter in result.model.parameters())
    windows = result._prepared.fit.state.accumulators
    assert isinstance(windows[None], Accumulator) and not len(windows[None])


def test_a_hook_may_change_the_learning_rate_and_scale_it_for_good():
    class Zero(callbacks.Callback):
        def on_train_batch_begin(self, ctx):
            ctx.lr = 0.0

    class Scale(callbacks.Callback):
        def on_fit_begin(self, ctx):
            ctx.lr_scale = 0.5

    torch.manual_seed(1)
    models = [nn.Linear(3, 1) for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    before = models[0].weight.detach().clone()
    linear(model=models[0]).fit(line(), epochs=1, callbacks=[Zero()], show=False)
    assert torch.equal(models[0].weight, before)
    linear(model=models[1], lr={"*": 0.1}).fit(line(), epochs=1, callbacks=[Scale()], show=False)
    linear(model=models[2], lr={"*": 0.05}).fit(line(), epochs=1, show=False)
    assert same(models[1], models[2])


def test_the_gradient_norm_is_that_of_the_update_before_clipping():
    plain = linear(metrics=[metrics.GradientNorm()], optimizer=optim.SGD(), lr=1e-9)
    clipped = linear(metrics=[metrics.GradientNorm()], optimizer=optim.SGD(), lr=1e-9, clip_norm=1e-3)
    values = []
    for learner in (plain, clipped):
        torch.manual_seed(0)
        learner.model.reset_parameters()
        history = learner.fit(line(), epochs=1, batch_size=64, show=False).history
        (name,) = [column for column in history.columns if "norm" in column and "max" not in column][:1]
        values.append(history[name][0])
    assert values[0] == pytest.approx(values[1]) and values[0] > 1e-3
