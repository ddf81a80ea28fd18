"""Keras 3 on torch: `compile` and `fit`, nothing shown; numpy in, as its documentation has it."""

import os

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is imported

import keras

from benchmarks._harness import BATCH, toy


def fit(epochs, loss=None):
    x, y, start = toy()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
    weights = [start[0].weight.T, start[0].bias, start[2].weight.T, start[2].bias]
    model.set_weights([weight.detach().numpy() for weight in weights])
    # its own epsilon is 1e-7; torch's is 1e-8
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3, epsilon=1e-8),
        loss=(lambda targets, predictions: loss(predictions, targets)) if loss else "mse",
        metrics=["mae"],
    )
    model.fit(x.numpy(), y.numpy(), batch_size=BATCH, epochs=epochs, shuffle=True, verbose=0)
    return model, int(model.optimizer.iterations)
