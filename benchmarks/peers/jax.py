"""JAX with optax: the whole update jitted, batch by batch or scanned over the epoch; data on the device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch


def fit(work, epochs, clock):
    """One call of a jitted update for each batch."""
    return _fit(work, epochs, clock, scan=False)


def fit_scan(work, epochs, clock):
    """One call for an epoch; a short last batch is a separate call."""
    return _fit(work, epochs, clock, scan=True)


def _fit(work, epochs, clock, *, scan):
    model = work.model("cpu")
    data = tuple(jnp.asarray(each.numpy()) for each in work.data())
    params = [jnp.asarray(each.detach().numpy()) for each in model.parameters()]
    optimizer = optax.adam(work.lr)
    update = partial(_update, FORWARD[work.name], work.dropout, optimizer)
    one = jax.jit(update, donate_argnums=1)
    many = jax.jit(lambda data, carry, rows: jax.lax.scan(partial(update, data), carry, rows), donate_argnums=1)
    shuffled = jax.jit(partial(jax.random.permutation, x=work.samples))
    carry = params, optimizer.init(params), jax.random.key(0), jnp.zeros(())
    whole, updates = work.samples // work.batch, 0
    for epoch in range(epochs):
        order = shuffled(jax.random.key(epoch))
        rows = order[: whole * work.batch].reshape(whole, work.batch)
        if scan:
            carry, _ = many(data, carry, rows)
        else:
            for each in np.asarray(rows):
                carry, _ = one(data, carry, each)
        updates += whole
        if work.samples % work.batch:
            carry, _ = one(data, carry, order[whole * work.batch :])
            updates += 1
        jax.block_until_ready(carry)
        clock()
    _copy_back(carry[0], model)
    return model, updates


def _update(forward, dropout, optimizer, data, carry, rows):
    params, state, key, total = carry
    key, drawn = jax.random.split(key) if dropout else (key, key)
    inputs, targets = (each[rows] for each in data)

    def loss_of(params):
        predictions = forward(params, inputs, drawn, dropout)
        if jnp.issubdtype(targets.dtype, jnp.integer):
            return optax.softmax_cross_entropy_with_integer_labels(predictions, targets).mean()
        return jnp.square(predictions - targets).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    changes, state = optimizer.update(grads, state)
    return (optax.apply_updates(params, changes), state, key, total + loss), None


def _mlp(params, x, key, dropout):
    layers = list(zip(params[::2], params[1::2], strict=True))
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight.T + bias)
    weight, bias = layers[-1]
    return x @ weight.T + bias


def _digits(params, images, key, dropout):
    kernel1, bias1, kernel2, bias2, weight1, shift1, weight2, shift2 = params
    keys = jax.random.split(key, 3)
    x = _drop(_conv(images[..., None], kernel1) + bias1, keys[0], dropout)
    x = jax.nn.relu(_drop(_conv(x, kernel2) + bias2, keys[1], dropout))
    x = x.reshape(len(x), 8, 3, 8, 3, -1).mean((2, 4))  # 24 × 24 to 8 × 8
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)  # torch's layout
    x = jax.nn.relu(_drop(x @ weight1.T + shift1, keys[2], dropout))
    return x @ weight2.T + shift2


def _conv(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"))


def _drop(x, key, rate):
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def _copy_back(params, model):
    with torch.no_grad():
        for weight, parameter in zip(params, model.parameters(), strict=True):
            parameter.copy_(torch.tensor(np.asarray(weight)))


FORWARD = {"toy": _mlp, "tabular": _mlp, "digits": _digits}
