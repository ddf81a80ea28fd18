"""Keras 3: `compile` and `fit` on numpy arrays, without output.

keras reads the backend from KERAS_BACKEND when it is imported.
"""

import keras
import torch
from torch import nn

FIRST, LAST = 0, 2  # indices of the linear layers in the torch model


def fit(work, epochs, clock):
    x, y = work.data()
    start = work.model()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
    weights = [start[FIRST].weight.T, start[FIRST].bias, start[LAST].weight.T, start[LAST].bias]
    model.set_weights([weight.detach().numpy() for weight in weights])
    own = isinstance(work.loss, nn.MSELoss)
    # Keras' default epsilon is 1e-7; torch's is 1e-8
    model.compile(
        optimizer=keras.optimizers.Adam(work.lr, epsilon=1e-8),
        loss="mse" if own else lambda targets, predictions: work.loss(predictions, targets),
        metrics=["mae"],
    )
    marks = keras.callbacks.LambdaCallback(on_epoch_end=clock)
    model.fit(x.numpy(), y.numpy(), batch_size=work.batch, epochs=epochs, shuffle=True, verbose=0, callbacks=[marks])
    return _to_torch(model, start), int(model.optimizer.iterations)


def _to_torch(model, start):
    """The torch model with the weights that Keras has trained."""
    first, first_bias, last, last_bias = (torch.tensor(weight) for weight in model.get_weights())
    named = {"weight": first.T, "bias": first_bias}, {"weight": last.T, "bias": last_bias}
    for place, weights in zip((FIRST, LAST), named, strict=True):
        start[place].load_state_dict(weights)
    return start
