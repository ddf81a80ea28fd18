"""Callbacks that a random program chooses from, by name.

What they do is a function of the position in the training, or of a state that they save, so that a run that resumes
does the same. Those in `NOT_RESUMABLE` change the model at one hook and do not repeat it when a run resumes.
"""

import contextlib
import random

import torch
from torch import nn

from stoker import callbacks
from stoker.callbacks import HOOK_NAMES, Callback, on
from stoker.errors import InvalidArgument
from tests.random_programs.models import columns


def _nothing(ctx):
    """A hook that does nothing."""


def _replace_columns(ctx, change):
    x, y = change(*columns(ctx.batch))
    ctx.batch = dict(zip(ctx.batch, (x, y), strict=True)) if isinstance(ctx.batch, dict) else type(ctx.batch)((x, y))


def _negate(ctx):
    if ctx.batch_number % 2:
        _replace_columns(ctx, lambda x, y: (-x, y))


def _take_half(ctx):
    if ctx.update % 3 == 1:
        _replace_columns(ctx, lambda x, y: (x[: (len(x) + 1) // 2], y[: (len(x) + 1) // 2]))


def _write_into_batch(ctx):
    columns(ctx.batch)[0].mul_(0.5)


def _set_rate(ctx):
    ctx.lr = 2.0 ** -(4 + ctx.batch_number % 3) + 0.001


def _set_rates(ctx):
    ctx.lr = {"head.*": 0.1 / (3 + ctx.update % 4), "*": 0.013}


class ReusedMapping(Callback):
    """Changes a mapping of learning rates in place."""

    transient = True

    def __init__(self):
        self.rates = {"head.*": 0.0, "*": 0.01}

    def on_train_batch_begin(self, ctx):
        self.rates["head.*"] = 0.03 / (1 + ctx.update % 3)
        ctx.lr = self.rates


class ScaleRates(Callback):
    """Multiplies learning rates after every epoch."""

    def on_epoch_end(self, ctx):
        ctx.lr_scale *= 0.7


def _scale_rates_each_batch(ctx):
    ctx.lr_scale = 1.0 / (1 + ctx.update % 3)


def _temperature(ctx):
    ctx.model.temperature = 1.0 + ctx.epoch % 2


def _temperature_each_batch(ctx):
    ctx.model.temperature = 1.0 + ctx.batch_number % 2


def _loss_factor(ctx):
    for module in (getattr(ctx.model, "loss", None), *ctx.model.modules()):
        if hasattr(module, "factor"):
            module.factor = 1.0 + ctx.epoch % 2


def _shrink_weights(ctx):
    if ctx.update % 3 == 0:
        for parameter in ctx.model.head.parameters():
            parameter.mul_(0.75)


def _move_weights(ctx):
    if ctx.batch_number % 3 == 0:
        for parameter in ctx.model.parameters():
            parameter.data = parameter.data.clone()


def _move_buffers(ctx):
    if ctx.batch_number % 3 == 0:
        for module in ctx.model.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, buffer.clone())


def _load_weights(ctx):
    if ctx.update % 4 == 1:
        ctx.model.load_state_dict({name: value * 1 for name, value in ctx.model.state_dict().items()})


def _freeze_head(ctx):
    ctx.model.head.requires_grad_(ctx.epoch != 2)


def _freeze_each_batch(ctx):
    ctx.model.head.bias.requires_grad_(ctx.update % 4 != 2)


def _eval_mode(ctx):
    ctx.model.body.train(ctx.epoch != 2)


def _dropout(ctx):
    for module in ctx.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5 / ctx.epoch


def _replace_module(ctx):
    ctx.model.body[2] = nn.ReLU() if ctx.epoch % 2 else nn.Tanh()


def _double_loss(ctx):
    with torch.enable_grad():
        ctx.loss = ctx.loss * 2


def _scale_predictions(ctx):
    with torch.enable_grad():
        ctx.pred = ctx.pred * 0.5


def _scale_gradients(ctx):
    ctx.grads = ctx.grads.scale(0.5)


def _clip_gradients(ctx):
    ctx.grads = ctx.grads.clip_norm(0.1)


def _draw(ctx):
    ctx.state["drawn"] = torch.rand(3, device=ctx.device).sum().item() + torch.rand(1).item() + random.random()


def _log(ctx):
    ctx.log("head", ctx.model.head.weight.square().mean())


def _predict(ctx):
    x = torch.linspace(-1, 1, 18, device=ctx.device, dtype=ctx.model.head.weight.dtype).reshape(3, 6)
    with ctx.evaluating() as model:
        ctx.log("prediction", model.head(model.body[0](x)[:, :5]).sum())


def _save(ctx):
    if ctx.update % 3 == 1:
        with contextlib.suppress(InvalidArgument):  # a fit without a run
            ctx.save("a callback asks for it")


def _stop(ctx):
    if ctx.update == 6:
        ctx.stop("seen enough")


def _raise(ctx):
    if ctx.update == 5:
        raise ValueError("raised by a callback")


def _count_in_state(ctx):
    ctx.state["batches"] = ctx.state.get("batches", 0) + 1
    ctx.lr_scale = 1.0 / (1 + ctx.state["batches"] % 4)


class Counts(Callback):
    """Counts batches, saves the number, and computes the learning rate of it."""

    def on_fit_begin(self, ctx):
        self.batches = 0

    def on_train_batch_begin(self, ctx):
        self.batches += 1
        ctx.lr = 0.03 / (1 + self.batches % 5)

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


class KeepsTensors(Callback):
    """Keeps tensors of a phase until its end, and raises if one was overwritten."""

    transient = True

    def __init__(self, phase):
        setattr(self, f"on_{phase}_batch_end", self._keep)
        setattr(self, f"on_{phase}_end", self._compare)
        self._found = []

    def _keep(self, ctx):
        for tensor in (ctx.loss, ctx.pred):
            if isinstance(tensor, torch.Tensor):
                self._found.append((tensor, tensor.detach().cpu().clone()))

    def _compare(self, ctx):
        for tensor, copy in self._found:
            if not torch.equal(tensor.detach().cpu().nan_to_num(), copy.nan_to_num()):
                raise AssertionError("a tensor that a callback has kept was overwritten")
        self._found.clear()


def _on_position(change):
    """A change that is a function of the epoch, made wherever the model may be used next."""
    return on(epoch_begin=change, train_batch_begin=change, valid_begin=change)


CALLBACKS = {
    "negate batches": lambda: on(train_batch_begin=_negate),
    "half batches": lambda: on(train_batch_begin=_take_half),
    "write into batches": lambda: on(train_batch_begin=_write_into_batch),
    "write into validation batches": lambda: on(valid_batch_begin=_write_into_batch),
    "MixUp": lambda: callbacks.MixUp(0.4),
    "set rate": lambda: on(train_batch_begin=_set_rate),
    "set rates": lambda: on(train_batch_begin=_set_rates),
    "reused mapping of rates": ReusedMapping,
    "scale rates": ScaleRates,
    "scale rates each batch": lambda: on(train_batch_begin=_scale_rates_each_batch),
    "temperature": lambda: _on_position(_temperature),
    "temperature at epochs": lambda: on(epoch_begin=_temperature),
    "temperature each batch": lambda: on(train_batch_begin=_temperature_each_batch),
    "loss factor": lambda: _on_position(_loss_factor),
    "shrink weights": lambda: on(train_batch_end=_shrink_weights),
    "shrink weights at epochs": lambda: on(epoch_begin=_shrink_weights),
    "shrink weights after an update": lambda: on(update=_shrink_weights),
    "move weights": lambda: on(train_batch_end=_move_weights),
    "move buffers": lambda: on(train_batch_begin=_move_buffers),
    "load weights": lambda: on(train_batch_begin=_load_weights),
    "freeze head": lambda: _on_position(_freeze_head),
    "freeze head at epochs": lambda: on(epoch_begin=_freeze_head),
    "freeze each batch": lambda: on(train_batch_begin=_freeze_each_batch),
    "FreezeUntil": lambda: callbacks.FreezeUntil("body", epoch=2),
    "eval mode": lambda: on(train_begin=_eval_mode),
    "dropout": lambda: _on_position(_dropout),
    "replace module": lambda: _on_position(_replace_module),
    "double loss": lambda: on(train_batch_after_loss=_double_loss),
    "scale predictions": lambda: on(train_batch_after_pred=_scale_predictions),
    "scale gradients": lambda: on(train_batch_after_backward=_scale_gradients),
    "clip gradients": lambda: on(train_batch_after_backward=_clip_gradients),
    "draw": lambda: on(train_batch_end=_draw),
    "draw in validation": lambda: on(valid_batch_end=_draw),
    "log": lambda: on(train_batch_end=_log),
    "predict": lambda: on(train_batch_end=_predict),
    "predict at epochs": lambda: on(epoch_end=_predict),
    "save": lambda: on(train_batch_end=_save),
    "stop": lambda: on(train_batch_end=_stop),
    "raise": lambda: on(train_batch_end=_raise),
    "raise before a batch": lambda: on(train_batch_begin=_raise),
    "count": Counts,
    "count in ctx.state": lambda: on(train_batch_begin=_count_in_state),
    "keep tensors": lambda: KeepsTensors("train"),
    "keep tensors of validation": lambda: KeepsTensors("valid"),
    "EarlyStopping": lambda: callbacks.EarlyStopping(patience=1),
    "ReduceLROnPlateau": lambda: callbacks.ReduceLROnPlateau(patience=0, factor=0.5),
    **{
        f"nothing in {hook.removeprefix('on_')}": lambda hook=hook: on(**{hook.removeprefix("on_"): _nothing})
        for hook in HOOK_NAMES
    },
}

# They set numbers or modules that are not in a checkpoint.
CHANGES_PYTHON = {"temperature", "temperature each batch", "loss factor", "dropout", "replace module"}
# What they do depends on the validation.
FOLLOWS_VALIDATION = {"EarlyStopping", "ReduceLROnPlateau", "draw in validation"}
NOT_RESUMABLE = {"temperature at epochs", "freeze head at epochs", "shrink weights at epochs", "eval mode"}
