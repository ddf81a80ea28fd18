"""stoker: `Learner.fit`, nothing shown."""

from torch import nn

import stoker
from benchmarks._harness import BATCH, toy
from stoker import metrics, optim


def fit(epochs, loss=None):
    x, y, model = toy()
    learner = stoker.Learner(
        model, loss=loss or nn.MSELoss(), optimizer=optim.Adam(), lr=1e-3, metrics=[metrics.MAE()], seed=0
    )
    fitted = learner.fit((x, y), epochs=epochs, batch_size=BATCH, show=False)
    return fitted.model, fitted.updates
