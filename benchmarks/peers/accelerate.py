"""Accelerate: the loop is the user's, the parts are prepared; it has no metrics of its own."""

import torch
from accelerate import Accelerator
from torch import nn

from benchmarks._harness import batches_of, toy


def fit(epochs, loss=None):
    x, y, model = toy()
    criterion = loss or nn.MSELoss()
    accelerator = Accelerator(cpu=True)
    model, optimizer, batches = accelerator.prepare(
        model, torch.optim.Adam(model.parameters(), lr=1e-3), batches_of(x, y)
    )
    updates = 0
    for _ in range(epochs):
        total = 0.0
        for inputs, targets in batches:
            optimizer.zero_grad()
            value = criterion(model(inputs), targets)
            accelerator.backward(value)
            optimizer.step()
            total += value.item()
            updates += 1
    return accelerator.unwrap_model(model), updates
