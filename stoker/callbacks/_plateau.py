"""Smaller learning rates where a number no longer improves."""

from collections.abc import Mapping
from typing import Any

from stoker.callbacks._callback import Callback, read_state
from stoker.callbacks._context import Context
from stoker.callbacks._monitor import check_count, check_monitor, direction_of, fresh, improved
from stoker.errors import InvalidArgument
from stoker.record import Direction


class ReduceLROnPlateau(Callback):
    """Multiplies every learning rate with `factor` when a number has not improved for more than `patience` epochs.

    >>> ReduceLROnPlateau(factor=0.5, patience=3).factor
    0.5

    It counts as torch's scheduler of this name does (`threshold_mode="abs"`): `patience` epochs are waited through,
    the next one reduces, and `cooldown` epochs after that are not counted. It scales what the schedule says, through
    `ctx.lr_scale`, and never below `min_scale`.
    """

    def __init__(
        self,
        monitor: str = "valid/loss",
        *,
        factor: float = 0.1,
        patience: int = 10,
        cooldown: int = 0,
        min_delta: float = 0.0,
        min_scale: float = 0.0,
        direction: Direction | None = None,
    ) -> None:
        check_monitor(monitor, direction, min_delta)
        check_count("patience", patience, least=0)
        check_count("cooldown", cooldown, least=0)
        if not 0 < factor < 1:
            raise InvalidArgument(f"factor is between 0 and 1, so that the learning rate shrinks; got {factor!r}")
        if not 0 <= min_scale <= 1:
            raise InvalidArgument(f"min_scale is between 0 and 1, a part of the schedule's rate; got {min_scale!r}")
        self.monitor = monitor
        self.factor = factor
        self.patience = patience
        self.cooldown = cooldown
        self.min_delta = min_delta
        self.min_scale = min_scale
        self.direction: Direction | None = direction
        self._best: float | None = None
        self._waited = self._cooling = 0

    def on_fit_begin(self, ctx: Context) -> None:
        """Starts to count anew."""
        self._best, self._waited, self._cooling = None, 0, 0

    def on_epoch_end(self, ctx: Context) -> None:
        """Compares this epoch's number with the best, and reduces where the patience is used up."""
        value = fresh(ctx, self.monitor, who="ReduceLROnPlateau")
        if value is None:
            return
        direction = direction_of(ctx, self.monitor, self.direction, who="ReduceLROnPlateau")
        if improved(value, self._best, direction=direction, min_delta=self.min_delta):
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if self._cooling > 0:
            self._cooling -= 1
            self._waited = 0
        if self._waited > self.patience:
            self._waited, self._cooling = 0, self.cooldown
            self._reduce(ctx)

    def _reduce(self, ctx: Context) -> None:
        scale = max(ctx.lr_scale * self.factor, self.min_scale)
        if scale < ctx.lr_scale:
            ctx.lr_scale = scale
            ctx.note(f"{self.monitor} is on a plateau at epoch {ctx.epoch}: learning rates × {scale:.4g} from now on")

    def state_dict(self) -> dict[str, Any]:
        """The best so far, how long it has been waited since, and what is left of the cooldown."""
        return {"best": self._best, "waited": self._waited, "cooling": self._cooling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on counting where `state_dict` was taken."""
        parts = read_state(state, "best", "waited", "cooling", who="ReduceLROnPlateau")
        self._best, self._waited, self._cooling = parts
