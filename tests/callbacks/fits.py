"""A fit by hand: a context, a real record, and a plain loop that fires the hooks in their order."""

import torch
from torch import nn

import stoker
from stoker import optim
from stoker.callbacks import Context, Hooks
from stoker.record import Event


def context(**given):
    return Context(model=given.pop("model", None) or nn.Linear(3, 1), **given)


def begin(ctx, *, monitor="valid/loss", **directions):
    metrics = {name: {"direction": direction, "unit": ""} for name, direction in directions.items()}
    ctx.record.append(Event("begin", extra={"metrics": metrics, "monitor": monitor, "valid": ["valid"]}))


def epoch_end(hooks, ctx, **values):
    """One epoch that has these numbers ("valid_loss" stands for "valid/loss")."""
    ctx.epoch += 1
    ctx.update += 10
    hooks.fire("on_epoch_begin", ctx)
    for kind in ("train", "valid"):
        own = {name.replace("_", "/", 1): value for name, value in values.items() if name.startswith(f"{kind}_")}
        if own:
            ctx.record.append(Event(kind, epoch=ctx.epoch, update=ctx.update, values=own))
    hooks.fire("on_epoch_end", ctx)


def drive(callback, numbers, *, name="valid_loss", ctx=None):
    """Runs epochs with one number each until a callback stops; returns the context."""
    ctx = ctx or context(epochs=len(numbers))
    hooks = Hooks([callback])
    hooks.fire("on_fit_begin", ctx)
    for number in numbers:
        epoch_end(hooks, ctx, **{name: number})
        if ctx.stopping:
            break
    hooks.fire("on_fit_end", ctx)
    return ctx


def train(callbacks, *, epochs=3, batches=4, model=None, optimizer=None, after_epoch=None):
    """Real training of a small model, with every hook that a training batch has."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = optimizer or optim.Adam().init(model)
    ctx, hooks = context(model=model, optimizer=optimizer, epochs=epochs, batches=batches), Hooks(callbacks)
    data = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(batches)]
    hooks.fire("on_fit_begin", ctx)
    for ctx.epoch in range(1, epochs + 1):
        hooks.fire("on_epoch_begin", ctx)
        for ctx.batch_number, ctx.batch in enumerate(data, 1):
            hooks.fire("on_train_batch_begin", ctx)
            ctx.loss = nn.functional.mse_loss(model(ctx.batch[0]), ctx.batch[1])
            ctx.grads = stoker.backward(ctx.loss, model)
            hooks.fire("on_train_batch_after_backward", ctx)
            optimizer.step(ctx.grads, lr=0.01 * ctx.lr_scale)
            ctx.update += 1
            hooks.fire("on_update", ctx)
            hooks.fire("on_train_batch_end", ctx)
            if ctx.stopping:
                break
        hooks.fire("on_epoch_end", ctx)
        if after_epoch is not None:
            after_epoch(ctx)
        if ctx.stopping:
            break
    hooks.fire("on_fit_end", ctx)
    return ctx
