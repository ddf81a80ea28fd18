"""Steps of the model's own: typed outputs, objectives with an optimizer each, and 16-bit precision."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stoker
from stoker import ClassificationOutput, Objective, RegressionOutput, callbacks, data, metrics, optim, schedule
from tests.features.models import CLASSES, Gan, Net, X, Y, fit, learner, linear, same_weights


class Classifier(Net):
    """Notes for every call which step it was, and the modes of the module and of autograd."""

    calls = []  # of all instances: validation runs on a view of the model

    def __init__(self):
        super().__init__(d_out=3, dropout=0.5)
        self.calls.clear()

    def train_step(self, batch):
        return self.output("train", *batch)

    def valid_step(self, batch):
        return self.output("valid", *batch)

    def output(self, phase, x, targets):
        self.calls.append((phase, self.training, torch.is_grad_enabled()))
        logits = self(x)
        return ClassificationOutput(F.cross_entropy(logits, targets), logits, targets)


def test_each_step_runs_in_its_phase_with_the_right_modes():
    found = fit((X, CLASSES), model=Classifier, loss=None, valid=(X, CLASSES), epochs=1)
    assert found.model.calls == [("train", True, True)] * 3 + [("valid", False, False)] * 3
    assert all(parameter.grad is None for parameter in found.model.parameters())


@dataclass
class OwnOutput:
    loss: Tensor
    predictions: Tensor
    targets: Tensor


@pytest.mark.parametrize("output", [RegressionOutput, OwnOutput])
def test_an_output_is_any_object_with_a_loss(output):
    class Line(nn.Linear):
        def train_step(self, batch):
            predictions = self(batch[0])
            return output(F.mse_loss(predictions, batch[1]), predictions, batch[1])

    found = fit(model=Line(4, 1), loss=None, lr=0.05, metrics=[metrics.MAE()], epochs=10)
    assert found.history["train/mae"][-1] < found.history["train/mae"][0]


# --- objectives


def test_no_gradient_of_one_objective_reaches_the_step_of_another():
    model, reference = Gan(), Gan()
    recipe = {"critic": optim.Adam(fused=False), "generator": optim.SGD(momentum=0.9, fused=False)}
    fit(data.Loader((X,), batch_size=16), model=model, loss=None, optimizer=recipe)
    adam = torch.optim.Adam(reference.critic.parameters(), lr=1e-2)
    sgd = torch.optim.SGD(reference.generator.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(2):
        for x in X.split(16):
            for (name, loss), optimizer in zip(reference.losses(x), (adam, sgd), strict=True):
                part = list(getattr(reference, name).parameters())
                for parameter, grad in zip(part, torch.autograd.grad(loss, part), strict=True):
                    parameter.grad = grad
                optimizer.step()
    assert same_weights(model, reference)


def test_every_objective_has_its_loss_optimizer_and_schedule():
    steps = []
    hook = callbacks.on(train_batch_after_step=lambda ctx: steps.append(ctx.batch_number))
    found = fit(
        (X,),
        model=Gan(),
        loss=None,
        optimizer={"critic": optim.Adam(), "generator": optim.SGD()},
        lr={"critic": schedule.linear(1e-2, 0.0, steps=6), "generator": schedule.constant(1e-3)},
        metrics=[metrics.LearningRate()],
        callbacks=[hook],
    )
    assert {"train/critic", "train/generator"} <= set(found.history.columns) and len(steps) == 2 * 6
    assert found.history["lr/critic"] == [pytest.approx(1e-2 * 4 / 6), pytest.approx(1e-2 / 6)]
    assert found.history["lr/generator"] == [1e-3, 1e-3]


# --- 16-bit precision


def first_update(precision, hook, **settings):
    """How far one update moves the weights, and the gradients that hooks see."""
    model, seen = linear(), []
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    note = callbacks.on(train_batch_after_backward=lambda ctx: seen.append(ctx.grads["weight"].clone()))
    learner(model, optimizer=optim.SGD(), precision=precision, lr=1.0, **settings).fit(
        (X, Y), updates=1, batch_size=80, show=False, callbacks=[note, *hook]
    )
    return nn.utils.parameters_to_vector(model.parameters()).detach() - before, seen[
        -1
    ]  # the last: before it the scale may have overflowed


# One limit clips the true gradients; the other would clip only gradients that are still scaled.
@pytest.mark.parametrize("limit", [0.001, 100.0])
@pytest.mark.parametrize("how", ["clip_norm", "clip_value", "hook"])
def test_clipping_and_hooks_see_unscaled_gradients_in_fp16(how, limit):
    def clip(ctx):
        ctx.grads = ctx.grads.clip_norm(limit)

    hook = [callbacks.on(train_batch_after_backward=clip)] if how == "hook" else []
    settings = {} if how == "hook" else {how: limit}
    (full, full_grads), (half, half_grads) = (first_update(each, hook, **settings) for each in ("fp32", "fp16"))
    torch.testing.assert_close(half, full, rtol=2e-2, atol=1e-5)
    torch.testing.assert_close(half_grads, full_grads, rtol=2e-2, atol=1e-3)


def test_an_overflow_of_one_objective_leaves_the_gradients_of_the_other_right():
    """The critic overflows in the second half of a window, while the generator's sum has the old scale."""

    class Overflowing(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.critic = nn.Parameter(torch.zeros(1))
            self.generator = nn.Parameter(torch.zeros(1))
            self.weight = weight  # of the critic's loss: its gradient is finite, and overflows when it is scaled

        def train_step(self, batch):
            yield Objective("critic", (self.weight * self.critic).sum())
            yield Objective("generator", (batch[0].mean() * self.generator).sum())

    moved = []
    for weight in (1.0, 1e37):
        model = Overflowing(weight)
        stoker.Learner(model, optimizer=optim.SGD(), lr=1.0, precision="fp16", accumulate=2, seed=0).fit(
            data.Loader((torch.ones(4, 1),), batch_size=2), epochs=1, show=False
        )
        moved.append(model.generator.item())
    assert moved == [pytest.approx(-1.0), pytest.approx(-1.0)]


def test_a_skipped_update_is_counted_once():
    class Overflowing(nn.Linear):
        def train_step(self, batch):
            return (self(batch[0]).float() * 1e37).mean()

    found = fit((torch.ones(8, 4),), model=Overflowing(4, 1), loss=None, lr=0.0, precision="fp16", epochs=3)
    assert found.record.events_of("end")[-1].extra["skipped"] == 3 and found.updates == 0
