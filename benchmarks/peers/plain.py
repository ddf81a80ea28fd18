"""Plain torch: the loop that everybody writes, and the same on indexed tensors; no metric."""

import torch
from torch import nn

from benchmarks._harness import BATCH, batches_of, toy


def fit(epochs, loss=None):
    """Batches from a `DataLoader`, and `loss.item()` for the mean of the epoch."""
    return _fit(epochs, loss, dataloader=True)


def fit_indexing(epochs, loss=None):
    """Batches indexed out of the tensors, and nobody looks at the loss."""
    return _fit(epochs, loss, dataloader=False)


def _fit(epochs, loss, *, dataloader):
    x, y, model = toy()
    epoch = epoch_by_hand(x, y, model, loss or nn.MSELoss(), dataloader=dataloader)
    updates = sum(epoch() for _ in range(epochs))
    return model, updates


def epoch_by_hand(x, y, model, criterion, *, dataloader, limit=None, fused=None):
    """A function that trains for one epoch and returns the number of its updates."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    loader = batches_of(x, y)

    def indexed():
        order = torch.randperm(len(x))
        for start in range(0, len(x), BATCH):
            rows = order[start : start + BATCH]
            yield x[rows], y[rows]

    def epoch():
        total, updates = 0.0, 0
        for inputs, targets in loader if dataloader else indexed():
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            if limit is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            if dataloader:
                total += loss.item()
            updates += 1
        return updates

    return epoch
