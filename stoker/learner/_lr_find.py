"""`lr_find`: the loss while the learning rate grows, and a suggestion to start with."""

import copy
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy

from stoker._tree import find_tensors
from stoker.callbacks import Callback, Context
from stoker.distributed import join
from stoker.engine import preserve_rng
from stoker.errors import InvalidArgument, NotFinite
from stoker.learner._learner import Learner

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LrCurve:
    """The smoothed loss at each learning rate, and the rate at which it fell fastest."""

    rates: Sequence[float]
    losses: Sequence[float]
    suggestion: float

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Draws the curve and marks the suggestion; needs matplotlib (`stoker[plot]`)."""
        from stoker.view.report import lr_curve

        return lr_curve(self.rates, self.losses, self.suggestion, ax=ax)

    def _repr_html_(self) -> str:
        """The suggestion above the curve, an SVG that needs no matplotlib."""
        from stoker.view.report import lr_curve_html

        return lr_curve_html(self.rates, self.losses, self.suggestion)


class _LossCurve(Callback):
    """Keeps the smoothed loss of every update, and stops when it has clearly risen."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._mean = 0.0

    def on_update(self, ctx: Context) -> None:
        loss = float(ctx.loss) if ctx.loss is not None else math.nan
        self._mean = 0.9 * self._mean + 0.1 * loss
        smooth = self._mean / (1 - 0.9 ** (len(self.losses) + 1))
        self.rates.append(float(ctx.lr))
        self.losses.append(smooth)
        if len(self.losses) > 10 and smooth > 4 * min(self.losses):
            ctx.stop("the loss has risen")


def lr_find(
    learner: Learner,
    train: Any,
    *,
    start_lr: float = 1e-7,
    end_lr: float = 1.0,
    steps: int = 100,
    batch_size: int | None = None,
    micro_batch: int | Literal["auto"] | None = None,
    callbacks: Sequence[Callback] = (),
) -> LrCurve:
    """Trains a copy of the model for `steps` updates while the learning rate grows exponentially.

    >>> import torch
    >>> learner = Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0)
    >>> curve = lr_find(learner, (torch.randn(64, 3), torch.randn(64, 1)), steps=40)
    >>> 1e-7 <= curve.suggestion <= 1.0
    True

    The learner, its model, its loss and the global random numbers do not change. The copy is a `copy.deepcopy`. If the
    model holds what that can't copy, such as a lock or a closure that uses the model, give the learner a function that
    makes the model.
    """
    if not 0 < start_lr < end_lr:
        raise InvalidArgument(f"the rate grows from start_lr to end_lr, both above 0; got {start_lr!r} and {end_lr!r}")
    if steps < 10:
        raise InvalidArgument(f"a curve needs at least 10 steps, got {steps}")
    growth = (end_lr / start_lr) ** (1 / (steps - 1))
    model, loss = _copy_modules(learner.model, learner.loss)
    trial = replace(
        learner,
        model=model,
        loss=loss,
        lr=lambda update: start_lr * growth**update,
        metrics=(),
        ema=None,
        on_nan="stop",
    )
    curve = _LossCurve()
    with preserve_rng(), suppress(NotFinite):  # the rate is too large: the curve ends there
        trial.fit(
            train,
            updates=steps,
            batch_size=batch_size,
            micro_batch=micro_batch,
            callbacks=[*callbacks, curve],
            keep="last",
            show=False,
        )
    # Each rank has the losses of its own samples; those of rank 0 are used.
    rates, losses = join(learner.device).broadcast_object((curve.rates, curve.losses))
    if len(losses) < 5:
        raise InvalidArgument(f"the loss was not finite after {len(losses)} updates; use a smaller start_lr")
    return LrCurve(rates, losses, _steepest(rates, losses))


def _copy_modules(model: Any, loss: Any) -> tuple[Any, Any]:
    """Copies of a model and a loss, which may share parameters; functions and classes are returned as they are."""
    with_graph = [tensor for tensor in find_tensors((model, loss)) if tensor.grad_fn is not None]  # can't be copied
    try:
        return copy.deepcopy((model, loss), {id(tensor): tensor.detach().clone() for tensor in with_graph})
    except Exception as error:
        raise InvalidArgument(
            f"lr_find trains a copy, and the model or the loss can't be copied ({error}); make a Learner with a "
            "function that returns a new model: Learner(lambda: Net(...), ...)"
        ) from error


def _steepest(rates: Sequence[float], losses: Sequence[float]) -> float:
    """The rate at which the loss falls fastest before its lowest point.

    The slope is that of a straight line through a fifth of the curve: between two updates, the noise of the batches
    is larger than the effect of the learning rate.
    """
    lowest = min(range(len(losses)), key=losses.__getitem__)
    width = max(3, len(losses) // 10)
    middles = range(width, max(lowest - width, width + 1))
    lines = [numpy.asarray(losses[middle - width : middle + width + 1]) for middle in middles]
    slopes = [numpy.polyfit(range(len(line)), line, deg=1)[0] for line in lines]
    return rates[middles[int(numpy.argmin(slopes))]]
