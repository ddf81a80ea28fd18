"""`TrainState`: everything that a checkpoint saves, with what is needed to save and load it."""

import copy
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from stoker._tree import map_tensors
from stoker.callbacks import Context, Hooks
from stoker.checkpoint import (
    RandomWatch,
    has_extra_state,
    load_model_state,
    model_state,
    random_state,
    set_random_state,
)
from stoker.data import Loader
from stoker.engine._precision import LossScale
from stoker.engine._totals import RunningTotals, TotalsSnapshot
from stoker.engine._weights import EMA, WeightCopy, copy_weights, weights_of
from stoker.errors import StateMismatch
from stoker.gradients import Accumulator
from stoker.metrics import GradientNorm, State
from stoker.optim import Optimizer
from stoker.record import Best

Stage = Literal["closed", "train", "validate"]
_foreach_copy_: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]

# Names of entries in checkpoints that were written before these entries were renamed.
_OLD_NAMES = {
    "window": "accumulators",
    "scaler": "loss_scale",
    "tally": "totals",
    "norms": "gradient_norms",
    "judged": "eval_weights",
    "loop": "progress",
}


@dataclass(slots=True)
class Progress:
    """Counters that callbacks do not see. Those that they see are in `Context`."""

    stage: Stage = "closed"  # before an epoch, inside its training, or after its training
    validated_update: int = -1  # the update that was validated last
    needs_validation: bool = False  # the last batch was an update, and no validation has followed it
    skipped: int = 0  # batches whose loss or gradients were not finite
    epoch_start: tuple[int, int] = (0, 0)  # updates and skipped batches when the epoch began
    epoch_start_time: float = 0.0  # on the monotonic clock
    loader_rng: Mapping[str, Any] = field(default_factory=dict)  # generators when the epoch began, for a DataLoader


class ResumePoint(NamedTuple):
    """The small part of the state after a batch: with the weights unchanged since, the whole state can be built.

    Values that are replaced and never written in place are references; everything else is copied.
    """

    progress: dict[str, Any]  # epoch, batch, update and the other counters
    random: Any  # a snapshot of the state's `RandomWatch`; None if the generators did not move since
    buffers: list[Tensor]
    loss_buffers: list[Tensor]
    extra: list[Any]  # of modules with a `get_extra_state`
    loader: Mapping[str, Any]
    totals: TotalsSnapshot
    gradient_norms: list[dict[str, Tensor]]
    callbacks: dict[str, dict[str, Any]]
    loss_scale: dict[str, Any] | None
    best_weights: WeightCopy | None
    versions: tuple[int, ...]  # of the parameters: every write makes them larger

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and batch."""
        return self.progress["epoch"], self.progress["batch"]


@dataclass(slots=True)
class TrainState:
    """Owns everything that a checkpoint saves: model, optimizer, accumulators, totals, counters, random numbers.

    `state_dict` returns all of it. `load_state_dict` restores it, and `finish_loading` the part that `on_fit_begin` may
    change. The tensors that a training step writes are allocated once and written in place, so that a CUDA graph or a
    compiled program can refer to them.
    """

    model: nn.Module
    loss: nn.Module | None  # the loss function, if it is a module
    optimizer: Optimizer
    totals: RunningTotals  # of the current epoch's training
    ctx: Context  # position, learning rate, metrics and whatever else callbacks see
    hooks: Hooks
    train: Loader
    valid: Mapping[str, Loader]
    reduce: Literal["mean", "sum"] = (
        "mean"  # how the loss combines samples, and an accumulation window its micro-batches
    )
    ema: EMA | None = None
    loss_scale: LossScale | None = None
    gradient_norms: dict[GradientNorm, State] = field(default_factory=dict)  # of the current epoch
    accumulators: dict[str | None, Accumulator] = field(default_factory=dict)  # by objective
    progress: Progress = field(default_factory=Progress)
    best_weights: WeightCopy | None = None
    keep_best: bool = True  # whether `best_weights` is used
    identity: Mapping[str, Any] = field(default_factory=dict)  # settings that a resumed run is compared by
    _tracker: "_Tracker | None" = None

    @property
    def eval_model(self) -> nn.Module:
        """The model that is validated: the EMA if there is one."""
        return self.model if self.ema is None else self.ema.model

    def begin_epoch(self) -> None:
        """Resets what counts within an epoch."""
        ctx, progress = self.ctx, self.progress
        ctx.epoch += 1
        ctx.batch_number, ctx.metrics = 0, {}
        progress.epoch_start_time, progress.needs_validation = time.monotonic(), False
        progress.epoch_start = ctx.update, progress.skipped

    def reset_totals(self) -> None:
        """Sets the totals of the epoch to zero."""
        self.totals.reset()
        for meter, state in self.gradient_norms.items():
            for name, value in meter.init(self.totals._device).items():
                state[name].copy_(value)

    # --- resume points

    def track_changes(self) -> None:
        """Prepares for resume points, which are taken after every batch that closes its window."""
        self._tracker = _Tracker(self.model, self.loss)

    def resume_point(self, stop_reason: str | None) -> ResumePoint:
        """The current position, in some microseconds. `stop_reason`: why the fit ends, unless it was interrupted."""
        tracker = self._tracker
        assert tracker is not None, "track_changes comes first"
        return ResumePoint(
            self._counters(stop_reason),
            tracker.random.snapshot(),
            copy_tensors(list_buffers(tracker.buffer_tables)),
            copy_tensors(list_buffers(tracker.loss_buffer_tables)),
            [copy_user_state(module.get_extra_state()) for module in tracker.with_extra_state],
            self._loader_position(),
            self.totals.snapshot(),
            [dict(map_tensors(torch.clone, state)) for state in self.gradient_norms.values()],
            {name: copy_user_state(callback.state_dict()) for name, callback in self.hooks.stateful.items()},
            None if self.loss_scale is None else self.loss_scale.state_dict(),
            self.best_weights,
            tracker.versions(),
        )

    def _counters(self, stop_reason: str | None) -> dict[str, Any]:
        ctx, progress, now = self.ctx, self.progress, time.monotonic()
        return {
            "epoch": ctx.epoch,
            "batch": ctx.batch_number,
            "update": ctx.update,
            "stage": progress.stage,
            "lr": ctx.lr,
            "lr_scale": ctx.lr_scale,
            "metrics": dict(ctx.metrics),
            "best": ctx.best,
            "state": copy_user_state(ctx.state),
            "validated_update": progress.validated_update,
            "skipped": progress.skipped,
            "needs_validation": progress.needs_validation,
            "epoch_start": progress.epoch_start,
            "stop_reason": stop_reason,
            "events": len(ctx.record),
            "seconds": now - ctx.started,
            "epoch_seconds": now - progress.epoch_start_time,
        }

    def is_unchanged_since(self, point: ResumePoint) -> bool:
        """Whether the parameters have not been written to since a resume point."""
        assert self._tracker is not None
        return point.versions == self._tracker.versions()

    def window_is_open(self) -> bool:
        """Whether an accumulation window has micro-batches in it."""
        return any(len(window) for window in self.accumulators.values())

    def _loader_position(self) -> Mapping[str, Any]:
        """What the training data needs for continuing here besides the epoch and the batch number."""
        if not self.train.needs_rng_state:
            return {}
        inside = self.progress.stage == "train" and self.ctx.batch_number > 0
        return self.progress.loader_rng if inside else {"generators": self.train.generator_states()}

    # --- saving

    def state_dict(self, at: ResumePoint | None = None, *, stop_reason: str | None = None) -> dict[str, Any]:
        """The whole state now; or at a resume point, if no update was applied since. Tensors are references."""
        if self._tracker is None:
            self.track_changes()
        assert self._tracker is not None
        point = self.resume_point(stop_reason) if at is None else at
        random = random_state() if at is None or at.random is None else self._tracker.random.state_at(at.random)
        if random is None:
            raise StateMismatch("Python's or numpy's generators were used since, and their earlier state is unknown")
        model = _with_buffers(model_state(self.model), point.buffers)
        model["extra"] = dict(zip(model["extra"], point.extra, strict=True))
        # Resume points are only taken where no window is open.
        open_windows = {part: each.state_dict() for part, each in self.accumulators.items() if len(each) and at is None}
        return {
            "model": model,
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.ema is None else self.ema.state_dict(),
            "best": point.best_weights,
            "accumulators": open_windows,
            "loss_scale": point.loss_scale,
            "random": random,
            "loader": point.loader,
            "valid": {name: each.generator_states() for name, each in self.valid.items() if each.needs_rng_state},
            "totals": self.totals.state_dict(point.totals),
            "gradient_norms": point.gradient_norms,
            "callbacks": point.callbacks,
            "progress": _savable_counters(point.progress),
            "eval_weights": self._eval_weights(),
            "loss": None if self.loss is None else _with_buffers(model_state(self.loss), point.loss_buffers),
            "identity": dict(self.identity),
        }

    def _eval_weights(self) -> WeightCopy | None:
        """The weights to evaluate, if the optimizer trains others (schedule-free)."""
        with self.optimizer.evaluation_weights() as differ:
            return copy_weights(self.model) if differ else None

    # --- loading

    def load_state_dict(self, state: Mapping[str, Any], learning_rates: Callable[[int, float], Any]) -> None:
        """Restores what `state_dict` returned, except for callbacks and random numbers: see `finish_loading`.

        `learning_rates(update, scale)` gives the selectors of the learning rates, which no file can hold.
        """
        ctx, progress, saved = self.ctx, self.progress, state["progress"]
        load_model_state(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.ema is not None:
            self.ema.load_state_dict(state["average"])
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])
        if self.loss is not None and state["loss"] is not None:
            load_model_state(self.loss, state["loss"])
        self._load_best_weights(state["best"])
        for part, window in state["accumulators"].items():
            self.accumulators[part] = Accumulator(self.reduce)
            self.accumulators[part].load_state_dict(window, self.model)
        self.totals.load_state_dict(state["totals"])
        for own, values in zip(self.gradient_norms.values(), state["gradient_norms"], strict=False):
            for name, value in values.items():
                own[name].copy_(value)
        ctx.epoch, ctx.batch_number, ctx.update = saved["epoch"], saved["batch"], saved["update"]
        progress.stage, progress.skipped = saved["stage"], saved["skipped"]
        progress.validated_update, progress.needs_validation = saved["validated_update"], saved["needs_validation"]
        progress.epoch_start, ctx.lr_scale = (saved["epoch_start"][0], saved["epoch_start"][1]), saved["lr_scale"]
        if self.identity["limits"] == state["identity"]["limits"]:  # otherwise the run continues: with more epochs, say
            ctx.stopping = saved["stop_reason"]
        now = time.monotonic()
        ctx.started, progress.epoch_start_time = now - saved["seconds"], now - saved["epoch_seconds"]
        ctx.metrics, ctx.state, progress.loader_rng = dict(saved["metrics"]), dict(saved["state"]), state["loader"]
        # A best value is only known together with its weights.
        has_weights = self.best_weights is not None or not self.keep_best
        ctx.best = Best(*saved["best"]) if saved["best"] is not None and has_weights else None
        ctx.lr = _match_rates(saved["lr"], learning_rates(ctx.update, ctx.lr_scale))
        for name, generators in state["valid"].items():
            if name in self.valid and self.valid[name].needs_rng_state:  # the validation sets may be others now
                self.valid[name].load_generator_states(generators)

    def _load_best_weights(self, saved: WeightCopy | None) -> None:
        own = weights_of(self.model)
        default = next(iter(own.values())).device if own else torch.device("cpu")
        if self.keep_best and saved is not None:
            self.best_weights = {
                name: value.to(own[name].device if name in own else default) for name, value in saved.items()
            }

    def finish_loading(self, state: Mapping[str, Any]) -> list[str]:
        """Restores what `on_fit_begin` may have changed, callback states and random numbers.

        Returns the names of saved callback states that no callback takes.
        """
        if "model" in state:
            load_model_state(self.model, state["model"])
        dropped = self.hooks.load_states(state["callbacks"])
        if state["random"] is not None:
            set_random_state(state["random"])
        return dropped


class _Tracker:
    """What resume points look at, collected once: walking over all modules takes longer than all the rest."""

    def __init__(self, model: nn.Module, loss: nn.Module | None) -> None:
        self.random = RandomWatch()
        self.buffer_tables = [module._buffers for module in model.modules()]
        self.loss_buffer_tables = [] if loss is None else [module._buffers for module in loss.modules()]
        self.with_extra_state = [module for module in model.modules() if has_extra_state(module)]
        self._parameters = list(model.parameters())

    def versions(self) -> tuple[int, ...]:
        return tuple([parameter._version for parameter in self._parameters])


def upgrade_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state that an earlier version saved, with today's names; a state with today's names is returned as it is."""
    if not state or "progress" in state:
        return dict(state)
    renamed = {_OLD_NAMES.get(name, name): value for name, value in state.items()}
    loop = dict(renamed["progress"])
    loop["validated_update"], loop["epoch_start"] = loop.pop("validated"), loop.pop("before")
    loop["needs_validation"], loop["stop_reason"] = loop.pop("applied"), loop.pop("stopping")
    ranks = [{_OLD_NAMES.get(name, name): value for name, value in part.items()} for part in state.get("ranks", ())]
    return {**renamed, "progress": loop, **({"ranks": ranks} if "ranks" in state else {})}


def _savable_counters(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Counters as plain values. A learning rate on a device is waited for here; selectors can't be saved."""
    lr, best = progress["lr"], progress["best"]
    rates = [float(rate) for rate in lr.values()] if isinstance(lr, Mapping) else None if lr is None else float(lr)
    user_state = {key: value for key, value in progress["state"].items() if is_storable(key) and is_storable(value)}
    epoch_start = list(progress["epoch_start"])
    saved_best = None if best is None else list(best)
    return {**progress, "lr": rates, "best": saved_best, "state": user_state, "epoch_start": epoch_start}


def _with_buffers(state: dict[str, Any], buffers: list[Tensor]) -> dict[str, Any]:
    return {**state, "buffers": dict(zip(state["buffers"], buffers, strict=True))}


def list_buffers(tables: Sequence[Mapping[str, Tensor | None]]) -> list[Tensor]:
    """The buffers of modules in their order, each once."""
    found = {id(buffer): buffer for table in tables for buffer in table.values() if buffer is not None}
    return list(found.values())


def copy_tensors(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of tensors, with one launch for all of a type."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    with torch.no_grad():
        for dtype in {tensor.dtype for tensor in tensors}:
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            _foreach_copy_([copies[place] for place in places], [tensors[place] for place in places])
    return copies


def copy_user_state(value: Any) -> Any:
    """A copy of a user's state that later changes of its containers and tensors do not affect."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: copy_user_state(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copy_user_state(each) for each in value)
    return copy.copy(value) if isinstance(value, set | deque) else value


def is_storable(value: Any) -> bool:
    """Whether a checkpoint can hold a user's value: tensors and plain values only."""
    if type(value) in (list, tuple):  # a namedtuple would be loaded as a tuple
        return all(is_storable(each) for each in value)
    if isinstance(value, dict):
        return all(is_storable(each) for pair in value.items() for each in pair)
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided
    return value is None or isinstance(value, bool | int | float | str | bytes)


def _match_rates(saved: Any, current: Any) -> Any:
    """The saved learning rates with the selectors of the current ones; the current ones if they do not match."""
    selectors = current.keys() if isinstance(current, Mapping) else None
    if isinstance(saved, list):
        return dict(zip(selectors, saved, strict=True)) if selectors and len(selectors) == len(saved) else current
    return saved if selectors is None else current
