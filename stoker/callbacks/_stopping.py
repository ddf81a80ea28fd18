"""Callbacks that stop a fit, or reduce its learning rate, by a metric or by the time it has taken."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from stoker.callbacks._callback import Callback, read_state
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, NoSuchMetric, did_you_mean
from stoker.record import Direction


class _Monitor(Callback):
    """Compares one metric of the record with its best value so far, at the end of every epoch that measured it."""

    _saved: ClassVar[Mapping[str, Any]]  # types of what is saved beside the metric: of the attribute `_best`, "best"

    def __init__(
        self,
        monitor: str | None,
        *,
        patience: int,
        min_delta: float,
        direction: Direction | None,
        mode: Direction | None,  # another name for it, that of `fit`
    ) -> None:
        if monitor is not None and (not isinstance(monitor, str) or not monitor):
            raise InvalidArgument(f'monitor takes the name of a metric, such as "valid/loss"; got {monitor!r}')
        if direction is not None and mode is not None:
            raise InvalidArgument(f"got direction={direction!r} and mode={mode!r}; they mean the same, give one")
        direction = mode if direction is None else direction
        if direction not in (None, "min", "max"):
            raise InvalidArgument(f'direction is "min", "max" or None (the metric\'s own); got {direction!r}')
        if not min_delta >= 0:
            raise InvalidArgument(f"min_delta must be at least 0, got {min_delta!r}")
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.direction: Direction | None = direction
        self._followed = monitor  # the metric that `_best` is a value of; until a fit begins, the given one
        self._best: float | None = None
        self._waited = 0  # epochs without an improvement

    def state_dict(self) -> dict[str, Any]:
        """Returns the metric, its best value so far, and what has been counted since."""
        return {name: getattr(self, f"_{name}") for name in self._saved} | {"monitor": self._followed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, unless it is about another metric."""
        *entries, monitor = read_state(state, owner=type(self).__name__, **self._saved, monitor=str | None)
        if self._followed is None or monitor in (None, self._followed):
            vars(self).update({f"_{name}": value for name, value in zip(self._saved, entries, strict=True)})

    def _name(self, ctx: Context) -> str:
        """The metric: the given one, or the one that decides which weights are best."""
        return self.monitor or ctx.monitor or "valid/loss"

    def _value(self, ctx: Context) -> float | None:
        """This epoch's value, or None if this epoch did not measure it; raises if no metric has this name."""
        name, values = self._name(ctx), ctx.record.rows.get(ctx.epoch, {})
        if name in values:
            return values[name]
        known = ctx.record.columns
        has_validated = any("/" in each and not each.startswith(("train/", "lr/")) for each in known)
        if name in known or ctx.stopping is not None or (not has_validated and _will_validate(ctx)):
            return None
        if name.startswith("valid/") and not has_validated:
            advice = "; nothing was validated: give fit valid=..."
        else:
            order = f"; a callback that logs it has to come before {type(self).__name__} in callbacks=[...]"
            advice = did_you_mean(name, known) or order
        raise NoSuchMetric(
            f"{type(self).__name__} monitors {name!r}, but there is no such metric{advice} "
            f"(the metrics are: {', '.join(known) or 'none'})"
        )

    def _improves(self, value: float, ctx: Context) -> bool:
        """Whether `value` is better than the best by more than `min_delta`; NaN never is."""
        name = self._name(ctx)
        direction = self.direction or ctx.record.direction(name)
        if direction is None:
            raise InvalidArgument(
                f"{type(self).__name__} does not know whether a larger {name!r} is better; "
                'give it direction="min" or direction="max"'
            )
        if direction == "min":
            return value < (math.inf if self._best is None else self._best) - self.min_delta
        return value > (-math.inf if self._best is None else self._best) + self.min_delta


class EarlyStopping(_Monitor):
    """Stops training when a metric has not improved for `patience` epochs.

    >>> EarlyStopping(patience=10)
    EarlyStopping(monitor=None, patience=10, min_delta=0.0, direction=None, warmup=0, baseline=None)

    The metric is the one that `fit` monitors for the best weights, unless `monitor` names another. A value counts as an
    improvement if it is better by more than `min_delta`, in the metric's own direction unless `direction` (or `mode`,
    as in `fit`) is given. With a `baseline`, the first improvement has to beat it. NaN is never an improvement. The
    first `warmup` epochs, and epochs that did not measure the metric, do not count as waiting.
    """

    _saved: ClassVar[Mapping[str, Any]] = {"best": float | int | None, "best_epoch": int, "waited": int}

    def __init__(
        self,
        monitor: str | None = None,
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        warmup: int = 0,
        baseline: float | None = None,
        direction: Direction | None = None,
        mode: Direction | None = None,
    ) -> None:
        super().__init__(monitor, patience=patience, min_delta=min_delta, direction=direction, mode=mode)
        _check_epochs("patience", patience, at_least=1)
        _check_epochs("warmup", warmup, at_least=0)
        self.warmup = warmup
        self.baseline = baseline
        self._best_epoch = 0

    def on_fit_begin(self, ctx: Context) -> None:
        """Starts counting from zero."""
        self._followed = self._name(ctx)
        self._best, self._best_epoch, self._waited = self.baseline, 0, 0

    def on_epoch_end(self, ctx: Context) -> None:
        """Compares this epoch's value with the best one, and stops when `patience` is used up."""
        value = self._value(ctx)
        if value is None:
            return
        if self._improves(value, ctx):
            self._best, self._best_epoch, self._waited = value, ctx.epoch, 0
        elif ctx.epoch > self.warmup:
            self._waited += 1
            if self._waited >= self.patience:
                ctx.stop(self._reason(ctx))

    def _reason(self, ctx: Context) -> str:
        name = self._name(ctx)
        if self._best is None:
            what = f"{name} was not a finite number"
        elif self._best_epoch == 0:
            what = f"{name} was not better than the baseline {self._best:.4g}"
        else:
            what = f"{name} was not better than {self._best:.4g} (epoch {self._best_epoch})"
        limit = "" if ctx.epochs is None else f" of {ctx.epochs}"
        epochs = "1 epoch" if self.patience == 1 else f"{self.patience} epochs"
        return f"Early stopping at epoch {ctx.epoch}{limit}: {what} for {epochs}"


class ReduceLROnPlateau(_Monitor):
    """Multiplies every learning rate by `factor` when a metric has not improved for more than `patience` epochs.

    >>> ReduceLROnPlateau(factor=0.5, patience=3).factor
    0.5

    The metric is the one that `fit` monitors for the best weights, unless `monitor` names another. It counts like
    torch's scheduler of this name with `threshold_mode="abs"`: it waits `patience` epochs, reduces after the next one,
    and then ignores `cooldown` epochs. It scales the rates of the schedule through `ctx.lr_scale`, which it never makes
    smaller than `min_scale`. `direction` (or `mode`, as in `fit`) says which values are better, if the metric does not.
    """

    _saved: ClassVar[Mapping[str, Any]] = {"best": float | int | None, "waited": int, "cooling": int}

    def __init__(
        self,
        monitor: str | None = None,
        *,
        factor: float = 0.1,
        patience: int = 10,
        cooldown: int = 0,
        min_delta: float = 0.0,
        min_scale: float = 0.0,
        direction: Direction | None = None,
        mode: Direction | None = None,
    ) -> None:
        super().__init__(monitor, patience=patience, min_delta=min_delta, direction=direction, mode=mode)
        _check_epochs("patience", patience, at_least=0)
        _check_epochs("cooldown", cooldown, at_least=0)
        if not 0 < factor < 1:
            raise InvalidArgument(f"factor must be between 0 and 1, so that the learning rate shrinks; got {factor!r}")
        if not 0 <= min_scale <= 1:
            raise InvalidArgument(f"min_scale is a fraction of the schedule's rate, from 0 to 1; got {min_scale!r}")
        self.factor = factor
        self.cooldown = cooldown
        self.min_scale = min_scale
        self._cooling = 0  # epochs that are still to be ignored

    def on_fit_begin(self, ctx: Context) -> None:
        """Starts counting from zero."""
        self._followed = self._name(ctx)
        self._best, self._waited, self._cooling = None, 0, 0

    def on_epoch_end(self, ctx: Context) -> None:
        """Compares this epoch's value with the best one, and reduces the rates when `patience` is used up."""
        value = self._value(ctx)
        if value is None:
            return
        if self._improves(value, ctx):
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if self._cooling > 0:
            self._cooling -= 1
            self._waited = 0
        if self._waited > self.patience:
            self._waited, self._cooling = 0, self.cooldown
            scale = max(ctx.lr_scale * self.factor, self.min_scale)
            if scale < ctx.lr_scale:
                ctx.lr_scale = scale
                ctx.note(f"{self._name(ctx)} is on a plateau at epoch {ctx.epoch}: learning rates × {scale:.4g}")


class StopOnTime(Callback):
    """Stops after the first training batch that ends past a time limit; the end hooks still run.

    >>> StopOnTime(minutes=90)
    StopOnTime(seconds=5400.0)

    The time starts at `on_fit_begin`, includes validation, and starts again when a run is resumed: it limits this
    process, while `fit(minutes=...)` limits the run. `clock` returns monotonic seconds.
    """

    transient = True

    def __init__(
        self,
        *,
        minutes: float | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if (minutes is None) == (seconds is None):
            raise InvalidArgument("StopOnTime takes either minutes= or seconds=")
        limit = seconds if minutes is None else minutes * 60
        if limit is None or not limit > 0:
            raise InvalidArgument(f"StopOnTime takes a time above 0, got {limit!r} seconds")
        self.seconds = float(limit)
        self._clock = clock
        self._started: float | None = None

    def on_fit_begin(self, ctx: Context) -> None:
        """Starts the clock."""
        self._started = self._clock()

    def on_train_batch_end(self, ctx: Context) -> None:
        """Stops if the limit is reached."""
        if self._started is not None and self._clock() - self._started >= self.seconds:
            limit = f"{self.seconds / 60:g} minutes" if self.seconds >= 60 else f"{self.seconds:g} seconds"
            ctx.stop(f"Time limit of {limit} reached at epoch {ctx.epoch}, batch {ctx.batch_number}")


def _will_validate(ctx: Context) -> bool:
    """Whether the fit has validation data, also if no epoch has validated yet (`validate_every=1000`, say)."""
    return ctx.record.begin is not None and bool(ctx.record.begin.extra.get("valid"))


def _check_epochs(name: str, value: int, *, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InvalidArgument(f"{name} is a whole number of epochs, at least {at_least}; got {value!r}")
