"""The small part of a fit's state, noted after every update: with the weights untouched since, it is a whole state."""

import copy
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker.loop._fit import Fit
from stoker.loop._walk import place_in
from stoker.loop._weights import Snapshot

_copy_all: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]  one kernel for all of them


class Mark(NamedTuple):
    """What every batch changes, as it stood after one. Values that are replaced and never changed are references."""

    time: float  # of the monotonic clock
    epoch: int
    batch: int
    update: int
    lr: Any
    lr_scale: float
    metrics: dict[str, float]
    state: dict[Any, Any]  # of the context: the user's own
    stage: str
    validated: int
    skipped: int
    applied: bool
    stopping: str | None  # why the fit is to end, but for an interrupt
    events: int
    random: Any  # a mark of the fit's `RandomWatch`; None where they stand as they did
    buffers: list[Tensor]
    loss: list[Tensor]  # the loss's own buffers
    extra: list[Any]  # of modules that hold more than tensors
    loader: Mapping[str, Any]
    tally: Any  # a mark of the fit's `Tally`
    norms: list[dict[str, Tensor]]
    callbacks: dict[str, dict[str, Any]]
    scaler: dict[str, Any] | None
    best: Snapshot | None
    found: Any  # the context's `Best`
    versions: tuple[int, ...]  # of what is not copied here


def marked(fit: Fit) -> Mark:
    """Where the fit stands now. It is taken after every update, and costs some microseconds."""
    ctx, watch = fit.ctx, fit.watch
    assert watch is not None
    return Mark(
        time.monotonic(),
        ctx.epoch,
        ctx.batch_number,
        ctx.update,
        ctx.lr,
        ctx.lr_scale,
        dict(ctx.metrics),
        held(ctx.state),
        fit.stage,
        fit.validated,
        fit.skipped,
        fit.applied,
        None if ctx.stopping == fit.left else ctx.stopping,
        len(fit.record),
        watch.snapshot(),
        _copied(buffers_in(fit.homes)),
        _copied(buffers_in(fit.loss_homes)),
        [held(module.get_extra_state()) for module in fit.extras],
        place_in(fit),
        fit.tally.mark(),
        list(fit.norms.values()),
        {name: held(callback.state_dict()) for name, callback in fit.hooks.stateful.items()},
        None if fit.scaler is None else fit.scaler.state_dict(),
        fit.best,
        ctx.best,
        versions_of(fit),
    )


def mark_before(fit: Fit, epoch: int, batch: int) -> None:
    """Goes back to the newest mark that is from before a batch.

    No run since then was allowed to change a weight, but each has written what was there.
    """
    mark = next((each for each in reversed(fit.marks) if (each.epoch, each.batch) < (epoch, batch)), None)
    fit.mark = None if mark is None else mark._replace(versions=versions_of(fit))


def versions_of(fit: Fit) -> tuple[int, ...]:
    """A number for each parameter that every change to it, by whomever, makes larger."""
    return tuple([tensor._version for tensor in fit.watched])


def buffers_in(homes: Sequence[Mapping[str, Tensor | None]]) -> list[Tensor]:
    """The buffers of modules in their order, each once; walking over all modules would cost more than all the rest."""
    found = {id(buffer): buffer for home in homes for buffer in home.values() if buffer is not None}
    return list(found.values())


def _copied(tensors: list[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(tensor) for tensor in tensors]
    with torch.no_grad():
        for dtype in {tensor.dtype for tensor in tensors}:
            own = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            _copy_all([copies[place] for place in own], [tensors[place] for place in own])
    return copies


def held(value: Any) -> Any:
    """A state of the user's, safe from what is done next to its containers and tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: held(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(held(each) for each in value)
    return copy.copy(value) if isinstance(value, set | deque) else value


def is_storable(value: Any) -> bool:
    """Whether something of the user's is tensors and plain values only."""
    if type(value) in (list, tuple):  # a named tuple would come back as another thing
        return all(is_storable(each) for each in value)
    if isinstance(value, dict):
        return all(is_storable(each) for pair in value.items() for each in pair)
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided
    return value is None or isinstance(value, bool | int | float | str | bytes)
