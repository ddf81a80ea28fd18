"""Validation between updates: when it happens, what it leaves behind, and which weights are the best."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, data, metrics, optim
from tests.engine.fits import Net, copied, learner, line, linear, same, samples


def scripted(losses):
    """A model whose validation gives these losses, one after the other, and whose weight says how far it is."""

    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))
            self.script = iter(losses)

        def train_step(self, batch):
            return -self.weight

        def valid_step(self, batch):
            return torch.tensor(next(self.script))

    return stoker.Learner(Scripted(), optimizer=optim.SGD(), lr=1.0, seed=0)


def scripted_fit(losses, **settings):
    one = (torch.zeros(1, 1),)
    return scripted(losses).fit(one, valid=one, epochs=len(losses), show=False, **settings)


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([3.0, 1.0, 2.0], 2),
        ([1.0, 1.0, 1.0], 1),  # of equal ones the first
        ([math.nan, 2.0, math.nan], 2),  # NaN never wins
        ([math.inf, math.nan, 5.0], 3),
        ([2.0, -math.inf, 1.0], 2),
    ],
)
def test_the_best_weights_are_kept(losses, best):
    result = scripted_fit(losses)
    assert result.best.epoch == best and result.best.name == "valid/loss"
    assert result.model.weight.item() == best  # one update an epoch, each adds 1


def test_where_no_loss_is_a_number_the_last_weights_stay():
    result = scripted_fit([math.nan, math.nan])
    assert result.best is None and result.model.weight.item() == 2


def test_keep_last():
    result = scripted_fit([1.0, 2.0, 3.0], keep="last")
    assert result.best.epoch == 1 and result.model.weight.item() == 3


def test_validate_every_counts_updates():
    seen = []
    watch = callbacks.on(validation=lambda ctx: seen.append((ctx.epoch, ctx.update)))
    result = linear().fit(line(), valid=line(), epochs=2, batch_size=8, validate_every=3, callbacks=[watch], show=False)
    assert seen == [(1, 3), (1, 6), (2, 9), (2, 12), (2, 15), (2, 16)]  # and the last weights, whatever they are
    assert [update for update, _ in result.record.all("valid/loss")] == [3, 6, 9, 12, 15, 16]
    assert len(result.history["valid/loss"]) == 2


def test_validate_every_counts_the_update_of_a_streams_last_window():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(*line(24), strict=True))

    result = linear(accumulate=2).fit(Stream(), valid=line(), epochs=1, batch_size=8, validate_every=2, show=False)
    assert [update for update, _ in result.record.all("valid/loss")] == [2]


def test_several_sets_have_their_names_and_the_first_decides():
    x, y = line()
    sets = {"near": (x, y), "far": (x + 3, y)}
    result = linear(metrics=[metrics.MAE()]).fit((x, y), valid=sets, epochs=2, show=False)
    assert {"near/loss", "near/mae", "far/loss", "far/mae"} <= set(result.history.columns)
    assert result.best.name == "near/loss"


def test_hooks_know_the_set_and_get_back_what_was():
    seen = []

    class Watch(callbacks.Callback):
        def on_valid_begin(self, ctx):
            seen.append((ctx.phase, ctx.set_name, ctx.batches))

        def on_validation(self, ctx):
            seen.append((ctx.phase, ctx.set_name, ctx.batches, ctx.batch_number))

    sets = {"a": line(30), "b": line(50)}
    linear().fit(line(64), valid=sets, epochs=1, batch_size=16, callbacks=[Watch()], show=False)
    assert seen == [("valid", "a", 2), ("valid", "b", 4), ("train", "train", 4, 4)]


def test_the_event_stands_where_the_training_stands():
    """Readers tell a validation inside an epoch from one at its end by the batches of the epoch that are done."""
    end = linear().fit(line(), valid=line(20), epochs=1, batch_size=16, show=False).record.events_of("valid")
    assert [(event.batch, event.update) for event in end] == [(4, 4)]
    inside = linear().fit(line(), valid=line(20), epochs=1, batch_size=16, validate_every=2, show=False)
    assert [(event.batch, event.update) for event in inside.record.events_of("valid")] == [(2, 2), (4, 4)]


def test_what_hooks_write_in_validation_counts():
    def perfect(ctx):
        ctx.pred = ctx.batch[1]

    def more(ctx):
        ctx.loss = ctx.loss + 1

    hooks = callbacks.on(valid_batch_after_pred=perfect, valid_batch_after_loss=more)
    result = linear(metrics=[metrics.MAE()]).fit(line(), valid=line(), epochs=1, callbacks=[hooks], show=False)
    assert result.history["valid/loss"] == [1.0] and result.history["valid/mae"] == [0.0]


def test_a_validation_loader_is_walked_the_same_way_every_time_and_left_as_it_was():
    seen = []

    def transform(x, y):
        noise = torch.rand(3)
        seen.append(noise)
        return x + noise, y

    loader = data.Loader(line(8), batch_size=4, shuffle=1, transform=transform)
    linear().fit(line(), valid=loader, epochs=2, show=False)
    assert torch.equal(torch.stack(seen[:8]), torch.stack(seen[8:]))
    first = [y for _, y in loader]  # the loader's own first epoch is still to come
    assert all(torch.equal(a, b) for a, b in zip(first, [y for _, y in loader.at(epoch=0)], strict=True))


def test_the_numbers_of_validation_do_not_depend_on_the_batch_size():
    model = Net()
    x, y = samples()
    for batch_size in (7, 64, 150):
        fixed = learner(model, lr=0.0, metrics=[metrics.Accuracy()], optimizer=optim.SGD())
        eval_model = fixed.fit((x, y), valid=(x, y), updates=1, batch_size=batch_size, keep="last", show=False)
        view = stoker.valid(eval_model.model)
        with torch.no_grad():
            exact = F.cross_entropy(view(x), y).item()
            hits = (view(x).argmax(1) == y).double().mean().item()
        assert eval_model.history["valid/loss"][0] == pytest.approx(exact, rel=1e-6)
        assert eval_model.history["valid/accuracy"][0] == pytest.approx(hits)


def test_the_average_is_what_is_judged_and_kept():
    result = learner(ema=0.8).fit(samples(), valid=samples(), updates=20, batch_size=16, show=False)
    assert result.evaluate(samples())["loss"] == pytest.approx(result.best.value, rel=1e-6)
    assert same(
        result.model, {**copied(result._prepared.fit.state.ema.model), **result._prepared.fit.state.best_weights}
    )


def schedule_free(**settings):
    import schedulefree

    return learner(lambda: nn.Linear(6, 4), optimizer=optim.wrap(schedulefree.AdamWScheduleFree), lr=0.05, **settings)


def schedule_free_by_hand(updates):
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
                trained = copied(model)
                optimizer.eval()
                return model, trained
    raise AssertionError("not reached")


def test_a_schedule_free_optimizer_gives_the_weights_that_it_wants_judged():
    result = schedule_free().fit(samples(), updates=30, batch_size=16, show=False)
    assert same(result.model, schedule_free_by_hand(30)[0])


def test_a_schedule_free_optimizer_is_judged_by_them_and_trains_on_exactly():
    """Its own way there and back rounds; validation must not be felt by the training."""
    result = schedule_free().fit(samples(), valid=samples(), updates=30, batch_size=16, validate_every=1, show=False)
    judged, trained = schedule_free_by_hand(30)
    assert same(result._prepared.ending.last_weights, trained)
    with torch.no_grad():
        x, y = samples()
        assert result.record.last("valid/loss") == pytest.approx(F.cross_entropy(judged(x), y).item(), rel=1e-6)
