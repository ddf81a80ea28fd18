"""What goes into a fit, and what comes out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stoker import callbacks, data, optim, schedule
from tests.features.models import X, Y, fit, same_weights

# --- the data


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "source",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        {"x": X, "y": Y},
        TensorDataset(X, Y),
        list(zip(X, Y, strict=True)),
        Stream(),
        DataLoader(TensorDataset(X, Y), batch_size=32),
        data.Loader((X, Y), batch_size=32),
    ],
    ids=["tensors", "arrays", "mapping", "dataset", "samples", "stream", "DataLoader", "Loader"],
)
def test_fit_takes_every_kind_of_data(source):
    found = fit(source)
    assert (found.updates, len(found.history["train/loss"])) == (6, 2)
    assert found.evaluate(source)["loss"] > 0 and found.predict(source).shape == (80, 1)


class AutoEncoder(nn.Linear):
    def train_step(self, batch):
        x = batch[0] if isinstance(batch, tuple | list) else batch
        return F.mse_loss(self(x), x)


@pytest.mark.parametrize(
    "source", [X, X.numpy(), (X,), list(X), TensorDataset(X)], ids=["tensor", "array", "tuple", "list", "dataset"]
)
def test_the_batch_size_applies_to_every_kind_of_data_also_without_targets(source):
    sizes = []
    count = callbacks.on(
        train_batch_begin=lambda ctx: sizes.append(
            len(ctx.batch[0] if isinstance(ctx.batch, list | tuple) else ctx.batch)
        )
    )
    fit(source, model=AutoEncoder(4, 4), loss=None, epochs=1, batch_size=30, callbacks=[count])
    assert sizes == [30, 30, 20]


def test_batches_have_32_samples_shuffled_in_training_and_in_order_in_validation():
    seen = {"train": [], "valid": []}

    def note(ctx):
        seen[ctx.phase].append(ctx.batch[0])

    fit(valid=(X, Y), epochs=1, callbacks=[callbacks.on(train_batch_begin=note, valid_batch_begin=note)])
    assert [len(batch) for batch in seen["train"]] == [len(batch) for batch in seen["valid"]] == [32, 32, 16]
    assert torch.equal(torch.cat(seen["valid"]), X) and not torch.equal(torch.cat(seen["train"]), X)


def test_workers_do_not_change_the_result():
    alone, helped = (
        fit(data.Loader((X, Y), batch_size=16, shuffle=1, batcher=_stack, workers=count), epochs=1) for count in (0, 2)
    )
    assert same_weights(alone.model, helped.model)


def _stack(items):
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


# --- what comes out


def test_predict_and_evaluate_do_not_advance_a_loader():
    found, used, untouched = fit(), *(data.Loader((X, Y), batch_size=16, shuffle=5) for _ in range(2))
    found.evaluate(used)
    found.predict(used)
    fit(valid=used)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(used, untouched, strict=True))


def test_the_best_weights_come_back_unless_the_last_are_asked_for():
    rate = schedule.constant(0.01).then(schedule.constant(2.0), at=9)
    best, last = (fit(valid=(X, Y), lr=rate, optimizer=optim.SGD(), epochs=4, keep=keep) for keep in ("best", "last"))
    losses = best.history["valid/loss"]
    assert best.best.epoch < 4 and losses[-1] > min(losses)
    assert best.evaluate((X, Y))["loss"] == pytest.approx(min(losses), rel=1e-6)
    assert last.evaluate((X, Y))["loss"] == pytest.approx(losses[-1], rel=1e-6)
