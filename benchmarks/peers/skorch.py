"""skorch: a `NeuralNetRegressor` without a validation split and without its printed log."""

import torch
from skorch import NeuralNetRegressor
from skorch.callbacks import EpochScoring
from torch import nn

from benchmarks._harness import BATCH, toy


def fit(epochs, loss=None):
    x, y, model = toy()
    net = NeuralNetRegressor(
        model,
        criterion=(lambda: loss) if loss else nn.MSELoss,  # what makes the criterion
        optimizer=torch.optim.Adam,
        lr=1e-3,
        batch_size=BATCH,
        max_epochs=epochs,
        iterator_train__shuffle=True,
        train_split=None,
        callbacks=[EpochScoring("neg_mean_absolute_error", lower_is_better=False, on_train=True, name="mae")],
        callbacks__print_log=None,
        callbacks__valid_loss=None,
        verbose=0,
    )
    net.fit(x, y)
    state = net.optimizer_.state[next(net.module_.parameters())]
    return net.module_, int(state["step"])
