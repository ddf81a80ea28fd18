"""Validation: when it runs, which weights are the best, and that training does not notice it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, data, optim
from tests.learner.fits import copy_state, learner, line, linear, same, samples


def fit_with_valid_losses(losses, **settings):
    """A fit whose validation losses are given; each epoch has one update, which adds 1 to the weight."""

    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))
            self.script = iter(losses)

        def train_step(self, batch):
            return -self.weight

        def valid_step(self, batch):
            return torch.tensor(next(self.script))

    one = (torch.zeros(1, 1),)
    scripted = stoker.Learner(Scripted(), optimizer=optim.SGD(), lr=1.0, seed=0)
    return scripted.fit(one, valid=one, epochs=len(losses), show=False, **settings)


# --- the best weights


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([3.0, 1.0, 2.0], 2),
        ([1.0, 1.0, 1.0], 1),  # the first of equal ones
        ([math.nan, 2.0, math.nan], 2),  # NaN is never the best
        ([math.inf, math.nan, 5.0], 3),
        ([2.0, -math.inf, 1.0], 2),
    ],
)
def test_the_model_has_the_best_weights_after_the_fit(losses, best):
    result = fit_with_valid_losses(losses)
    assert result.best.epoch == best and result.best.name == "valid/loss"
    assert result.model.weight.item() == best


def test_the_last_weights_stay_if_every_loss_is_nan():
    result = fit_with_valid_losses([math.nan, math.nan])
    assert result.best is None and result.model.weight.item() == 2


def test_keep_last_leaves_the_last_weights():
    result = fit_with_valid_losses([1.0, 2.0, 3.0], keep="last")
    assert result.best.epoch == 1 and result.model.weight.item() == 3


# --- when it runs


def test_validate_every_counts_updates_and_the_last_weights_are_validated():
    seen = []
    watch = callbacks.on(validation=lambda ctx: seen.append((ctx.epoch, ctx.update)))
    result = linear().fit(line(), valid=line(), epochs=2, batch_size=8, validate_every=3, callbacks=[watch], show=False)
    assert seen == [(1, 3), (1, 6), (2, 9), (2, 12), (2, 15), (2, 16)]
    assert [update for update, _ in result.record.all("valid/loss")] == [3, 6, 9, 12, 15, 16]
    assert len(result.history["valid/loss"]) == 2


@pytest.mark.parametrize(("every", "expected"), [(3, 4), (5, 2), (100, 1)])
def test_a_limit_in_updates_ends_with_a_validation(every, expected):
    fitted = linear().fit(line(), valid=line(), updates=10, batch_size=8, validate_every=every, show=False)
    points = fitted.record.all("valid/loss")
    assert len(points) == expected and points[-1][0] == 10 and fitted.best is not None


def test_validate_every_counts_the_update_of_a_streams_last_window():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(*line(24), strict=True))

    result = linear(accumulate=2).fit(Stream(), valid=line(), epochs=3, batch_size=8, validate_every=2, show=False)
    assert [update for update, _ in result.record.all("valid/loss")] == [2, 4, 6]


def test_the_event_has_the_position_of_the_training():
    """Readers see by it whether a validation was inside an epoch or at its end."""
    end = linear().fit(line(), valid=line(20), epochs=1, batch_size=16, show=False).record.events_of("valid")
    assert [(event.batch, event.update) for event in end] == [(4, 4)]
    inside = linear().fit(line(), valid=line(20), epochs=1, batch_size=16, validate_every=2, show=False)
    assert [(event.batch, event.update) for event in inside.record.events_of("valid")] == [(2, 2), (4, 4)]


# --- sets and callbacks


def test_callbacks_see_the_set_and_afterwards_the_training_again():
    seen = []
    watch = callbacks.on(
        valid_begin=lambda ctx: seen.append((ctx.phase, ctx.set_name, ctx.batches)),
        validation=lambda ctx: seen.append((ctx.phase, ctx.set_name, ctx.batches, ctx.batch_number)),
    )
    sets = {"a": line(30), "b": line(50)}
    linear().fit(line(64), valid=sets, epochs=1, batch_size=16, callbacks=[watch], show=False)
    assert seen == [("valid", "a", 2), ("valid", "b", 4), ("train", "train", 4, 4)]


def test_a_validation_loader_gives_the_same_batches_every_time_and_is_not_advanced():
    seen = []

    def transform(x, y):
        noise = torch.rand(3)
        seen.append(noise)
        return x + noise, y

    loader = data.Loader(line(8), batch_size=4, shuffle=1, transform=transform)
    linear().fit(line(), valid=loader, epochs=2, show=False)
    del seen[:4]  # of the batch that is tried before the first update
    assert torch.equal(torch.stack(seen[:8]), torch.stack(seen[8:]))
    first = [y for _, y in loader]
    assert all(torch.equal(a, b) for a, b in zip(first, [y for _, y in loader.at(epoch=0)], strict=True))


def test_a_fit_without_a_seed_holds_out_the_same_samples_every_time():
    model, seen = nn.Linear(3, 1), []
    watch = callbacks.on(valid_batch_end=lambda ctx: seen.append(ctx.batch[0]))
    for _ in range(2):
        linear(model=model, seed=None).fit(line(), valid=0.25, epochs=1, batch_size=16, callbacks=[watch], show=False)
    assert len(seen) == 2 and torch.equal(seen[0], seen[1])


# --- other weights than the trained ones


def test_the_ema_is_validated_and_returned():
    seen = {}
    watch = callbacks.on(validation=lambda ctx: seen.update({ctx.update: ctx.metrics["valid/loss"]}))
    result = learner(ema=0.8).fit(
        samples(), valid=samples(), updates=20, batch_size=16, validate_every=5, callbacks=[watch], show=False
    )
    assert result.evaluate(samples())["loss"] == pytest.approx(result.best.value, rel=1e-6)
    assert result.best.value == min(seen.values()) == seen[result.best.update]


def schedule_free(**settings):
    import schedulefree

    return learner(lambda: nn.Linear(6, 4), optimizer=optim.wrap(schedulefree.AdamWScheduleFree), lr=0.05, **settings)


def schedule_free_by_hand(updates):
    """The model with the weights to evaluate after some updates, and the weights that are trained."""
    import schedulefree

    torch.manual_seed(3)
    model = nn.Linear(6, 4)
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05)
    optimizer.train()
    loader = data.Loader(samples(), batch_size=16, shuffle=3)
    done = 0
    for epoch in range(updates):
        for x, y in loader.at(epoch=epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == updates:
                trained = copy_state(model)
                optimizer.eval()
                return model, trained
    raise AssertionError("not reached")


def test_a_schedule_free_fit_returns_the_weights_to_evaluate():
    result = schedule_free().fit(samples(), updates=30, batch_size=16, show=False)
    assert same(result.model, schedule_free_by_hand(30)[0])


def test_validating_a_schedule_free_optimizer_does_not_change_the_training():
    """Its own way to the other weights and back rounds."""
    trained_weights = {}
    watch = callbacks.on(update=lambda ctx: trained_weights.update(copy_state(ctx.model)))
    result = schedule_free().fit(
        samples(), valid=samples(), updates=30, batch_size=16, validate_every=1, callbacks=[watch], show=False
    )
    evaluated, trained = schedule_free_by_hand(30)
    assert same(trained_weights, trained)
    with torch.no_grad():
        x, y = samples()
        assert result.record.last("valid/loss") == pytest.approx(F.cross_entropy(evaluated(x), y).item(), rel=1e-6)
