"""Data that every rank has its own part of, and several sources, on two processes."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import stoker
from stoker import data
from stoker.data import Loader
from tests.distributed.processes import run

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1, keepdim=True) + 0.1
PARTS = [range(13), range(13, 20)]  # the samples of each rank: 5 batches of 3, and 3
BATCHES = [[list(part)[start : start + 3] for start in range(0, len(part), 3)] for part in PARTS]


class OwnStream(IterableDataset):
    """The samples of a rank, which saves its position, and counts what it reads."""

    def __init__(self, rank):
        self.rank, self.start, self.place, self.reads = rank, 0, 0, 0

    def __iter__(self):
        first, self.start = self.start, 0
        for place in range(first, len(PARTS[self.rank])):
            number, self.place = PARTS[self.rank][place], place
            self.reads += 1
            yield X[number], Y[number]

    def state_dict(self):
        return {"place": self.place + 1}

    def load_state_dict(self, state):
        self.start = state["place"]


def own_data(kind, rank):
    rows = list(PARTS[rank])
    if kind == "columns":
        return Loader((X[rows], Y[rows]), batch_size=6, sharded=True)
    if kind == "stream":
        return Loader(OwnStream(rank), batch_size=6, sharded=True)
    return Loader(DataLoader([(X[number], Y[number]) for number in rows], 3), sharded=True)


def linear():
    torch.manual_seed(1)
    return nn.Linear(3, 1).double()


def learner():
    return stoker.Learner(linear(), loss=nn.MSELoss(), optimizer=stoker.optim.SGD(), lr=0.1, seed=0)


class TwoLosses(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = linear()

    def train_step(self, batch):
        x, y = batch["labeled"]
        return nn.functional.mse_loss(self.linear(x), y) + self.linear(batch["unlabeled"]).square().mean()


def fit_two_sources():
    sources = data.zip(labeled=data.cycle((X[:6], Y[:6])), unlabeled=X)
    two = stoker.Learner(TwoLosses(), optimizer=stoker.optim.SGD(), lr=0.01, seed=3)
    mixed = data.mix(a=(X[:7], Y[:7]), b=(X, Y), weights={"a": 1, "b": 2})
    one = learner().fit(
        Loader(mixed, batch_size=4, shuffle=1, transform=data.batchable(lambda batch: next(iter(batch.values())))),
        epochs=2,
        show=False,
    )
    return two.fit(sources, epochs=2, batch_size=4, show=False).model.linear.weight.detach(), one.model.weight.detach()


def fit_own_parts(rank, size, folder):
    found = {"sources": fit_two_sources()}
    for kind in ("columns", "stream", "DataLoader"):
        fitted = learner().fit(own_data(kind, rank), valid=own_data(kind, rank), epochs=2, show=False, keep="last")
        history = {name: fitted.history[name] for name in ("train/loss", "valid/loss")}
        score = fitted.evaluate(own_data(kind, rank))["loss"]
        found[kind] = fitted.model.weight.detach(), history, score
    place, stream = Path(folder) / "run", OwnStream(rank)
    learner().fit(own_data("stream", rank), updates=7, run=place, show=False)
    loader = Loader(stream, batch_size=6, sharded=True)
    fitted = learner().fit(loader, updates=10, run=place, resume=True, show=False)
    return {**found, "resumed": fitted.model.weight.detach(), "reads": stream.reads}


@pytest.mark.soak
def test_ranks_train_on_their_own_parts_with_exact_weights_and_resume(tmp_path):
    model, losses = linear(), []
    for _ in range(2):
        total = 0.0
        for number in range(5):
            rows = [row for batches in BATCHES for row in (batches[number] if number < len(batches) else [])]
            loss = nn.functional.mse_loss(model(X[rows]), Y[rows])
            total += float(loss.detach()) * len(rows)
            with torch.no_grad():
                for parameter, slope in zip(
                    model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
                ):
                    parameter -= 0.1 * slope
        losses.append(total / 20)
    final = float(nn.functional.mse_loss(model(X), Y).detach())
    alone = fit_two_sources()
    for rank, found in enumerate(run(fit_own_parts, 2, str(tmp_path))):
        for kind in ("columns", "stream", "DataLoader"):
            weight, history, score = found[kind]
            torch.testing.assert_close(weight, model.weight.detach(), rtol=1e-9, atol=1e-12)
            assert history["train/loss"] == pytest.approx(losses)
            assert history["valid/loss"][-1] == pytest.approx(final)
            assert score == pytest.approx(final)
        assert torch.equal(found["resumed"], found["stream"][0])
        assert found["reads"] == [7, 1][rank]  # the third batch of the second epoch and those after it
        for one, other in zip(found["sources"], alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
