"""A learning rate to start with: the loss while the rate grows, from too small to too large."""

import copy
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from stoker.callbacks import Callback, Context
from stoker.distributed import joined
from stoker.engine import preserve_rng
from stoker.errors import InvalidArgument, NotFinite
from stoker.learner._learner import Learner
from stoker.learner._start import start_fit
from stoker.learner._wish import Wish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LrCurve:
    """The loss at each learning rate, and the rate at which it fell fastest."""

    rates: Sequence[float]
    losses: Sequence[float]  # smoothed
    suggestion: float

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Draws the curve with the suggestion marked; needs matplotlib (`stoker[plot]`)."""
        from stoker.view.report import lr_curve

        return lr_curve(self.rates, self.losses, self.suggestion, ax=ax)


class _Watch(Callback):
    """Notes the smoothed loss of every update; stops when it has clearly gone up."""

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
            ctx.stop("the loss has gone up")


def lr_find(
    learner: Learner,
    train: Any,
    *,
    start_lr: float = 1e-7,
    end_lr: float = 1.0,
    steps: int = 100,
    batch_size: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> LrCurve:
    """Trains a copy of the model for some updates with a growing learning rate; learner and data stay as they are.

    >>> import torch
    >>> learner = Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0)
    >>> curve = lr_find(learner, (torch.randn(64, 3), torch.randn(64, 1)), steps=40)
    >>> 1e-7 <= curve.suggestion <= 1.0
    True
    """
    if not 0 < start_lr < end_lr:
        raise InvalidArgument(f"the rate grows from start_lr to end_lr; got {start_lr!r} and {end_lr!r}")
    if steps < 10:
        raise InvalidArgument(f"a curve needs 10 steps or more, got {steps}")
    spec, watch = learner._spec, _Watch()
    model = copy.deepcopy(spec.model) if isinstance(spec.model, nn.Module) else spec.model
    growth = (end_lr / start_lr) ** (1 / (steps - 1))
    rate = lambda update: start_lr * growth**update  # noqa: E731  a schedule
    tried = replace(spec, model=model, lr=rate, metrics=(), ema=None, on_nan="stop")
    with preserve_rng(), suppress(NotFinite):  # too large a rate: the curve ends there
        wish = Wish(train, updates=steps, batch_size=batch_size, callbacks=[*callbacks, watch], keep="last")
        start_fit(tried, wish, show=False)
    # Of several ranks each has seen its own losses; the first one's are as good as any.
    rates, losses = joined(spec.device).told((watch.rates, watch.losses))
    if len(losses) < 5:
        raise InvalidArgument(f"the loss was not finite after {len(losses)} updates; begin with a smaller start_lr")
    return LrCurve(rates, losses, _steepest(rates, losses))


def _steepest(rates: Sequence[float], losses: Sequence[float]) -> float:
    """The rate at which the loss falls fastest on the way to its lowest point.

    Fastest by a straight line through a fifth of the curve at a time: between two updates the noise of the batches
    falls faster than any learning rate makes it.
    """
    lowest = min(range(len(losses)), key=losses.__getitem__)
    width = max(3, len(losses) // 10)
    places = range(width, max(lowest - width, width + 1))
    return rates[min(places, key=lambda place: _slope(losses[place - width : place + width + 1]))]


def _slope(values: Sequence[float]) -> float:
    """Of the straight line that lies closest to values at equal distances."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    return sum((place - middle) * (value - mean) for place, value in enumerate(values))
