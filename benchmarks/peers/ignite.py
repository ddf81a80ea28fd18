"""Ignite: `create_supervised_trainer` with the mean loss and the absolute error attached; no handlers that show."""

import torch
from ignite.engine import create_supervised_trainer
from ignite.metrics import Average, MeanAbsoluteError
from torch import nn

from benchmarks._harness import batches_of, toy


def fit(epochs, loss=None):
    x, y, model = toy()
    trainer = create_supervised_trainer(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        loss or nn.MSELoss(),
        output_transform=lambda inputs, targets, predictions, value: (predictions, targets, value.item()),
    )
    MeanAbsoluteError(output_transform=lambda output: output[:2]).attach(trainer, "mae")
    Average(output_transform=lambda output: output[2]).attach(trainer, "loss")
    state = trainer.run(batches_of(x, y), max_epochs=epochs)
    return model, state.iteration
