"""Stopping where training no longer helps."""

from collections.abc import Mapping
from typing import Any

from stoker.callbacks._callback import Callback, read_state
from stoker.callbacks._context import Context
from stoker.callbacks._monitor import check_count, check_monitor, direction_of, fresh, improved
from stoker.record import Direction


class EarlyStopping(Callback):
    """Stops when a number of the record has not improved for `patience` epochs.

    >>> EarlyStopping(patience=10)
    EarlyStopping(monitor='valid/loss', patience=10, min_delta=0.0, warmup=0, baseline=None, direction=None)

    An improvement is one by more than `min_delta`, in the metric's own `direction` where none is given; the first has
    to beat `baseline`, where there is one. NaN never improves. Epochs up to `warmup` may improve, and are not counted
    as waiting. An epoch that did not measure the number is not counted at all.
    """

    def __init__(
        self,
        monitor: str = "valid/loss",
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        warmup: int = 0,
        baseline: float | None = None,
        direction: Direction | None = None,
    ) -> None:
        check_monitor(monitor, direction, min_delta)
        check_count("patience", patience, least=1)
        check_count("warmup", warmup, least=0)
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.warmup = warmup
        self.baseline = baseline
        self.direction: Direction | None = direction
        self._best, self._best_epoch, self._waited = baseline, 0, 0

    def on_fit_begin(self, ctx: Context) -> None:
        """Starts to count anew."""
        self._best, self._best_epoch, self._waited = self.baseline, 0, 0

    def on_epoch_end(self, ctx: Context) -> None:
        """Compares this epoch's number with the best."""
        value = fresh(ctx, self.monitor, who="EarlyStopping")
        if value is None:
            return
        direction = direction_of(ctx, self.monitor, self.direction, who="EarlyStopping")
        if improved(value, self._best, direction=direction, min_delta=self.min_delta):
            self._best, self._best_epoch, self._waited = value, ctx.epoch, 0
        elif ctx.epoch > self.warmup:
            self._waited += 1
            if self._waited >= self.patience:
                ctx.stop(self._reason(ctx))

    def state_dict(self) -> dict[str, Any]:
        """The best so far, its epoch, and how long it has been waited since."""
        return {"best": self._best, "best_epoch": self._best_epoch, "waited": self._waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on counting where `state_dict` was taken."""
        parts = read_state(state, "best", "best_epoch", "waited", who="EarlyStopping")
        self._best, self._best_epoch, self._waited = parts

    def _reason(self, ctx: Context) -> str:
        planned = "" if ctx.epochs is None else f" of {ctx.epochs}"
        if self._best is None:
            why = f"{self.monitor} has not been a finite number"
        elif self._best_epoch == 0:
            why = f"{self.monitor} has not been better than the baseline {self._best:.4g}"
        else:
            why = f"{self.monitor} has not been better than {self._best:.4g} (epoch {self._best_epoch})"
        epochs = "1 epoch" if self.patience == 1 else f"{self.patience} epochs"
        return f"Early stopping at epoch {ctx.epoch}{planned}: {why} for {epochs}"
