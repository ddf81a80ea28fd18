"""`TrainState`: everything that a checkpoint saves, with what is needed to save and load it."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker._tree import map_tensors
from stoker.callbacks import Context, Hooks
from stoker.checkpoint import (
    Frozen,
    RandomWatch,
    check_model_state,
    choose_left_out,
    fingerprint_tensors,
    has_extra_state,
    load_model_state,
    model_state,
    random_state,
)
from stoker.data import Loader
from stoker.engine._evaluating import evaluating
from stoker.engine._precision import LossScale
from stoker.engine._signals import delay_interrupt
from stoker.engine._totals import RunningTotals, TotalsSnapshot
from stoker.engine._weights import EMA, WeightCopy, copy_user_state, copy_weights, weights_of
from stoker.errors import BadFile, StateMismatch
from stoker.gradients import Accumulator
from stoker.metrics import GradientNorm, State
from stoker.optim import Optimizer
from stoker.record import Best

Stage = Literal["closed", "train", "validate"]
_foreach_copy_: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]

_MISSING = object()
_NUMBER = int | float
# What a state has to hold; the parts check the rest themselves.
_ENTRIES = {
    **dict.fromkeys(("model", "optimizer", "random", "loader", "valid", "callbacks", "progress"), Mapping),
    **dict.fromkeys(("accumulators", "identity", "totals"), Mapping),
    **dict.fromkeys(("average", "best", "best_extra", "loss_scale", "eval_weights", "loss"), Mapping | None),
    "gradient_norms": list,
}
_COUNTERS = {
    **dict.fromkeys(("epoch", "batch", "update", "validated_update", "skipped", "events"), int),
    **dict.fromkeys(("seconds", "epoch_seconds", "lr_scale"), _NUMBER),
    **dict.fromkeys(("metrics", "state"), Mapping),
    "stage": str,
    "lr": _NUMBER | list | None,
    "best": list | None,
    "epoch_start": list,
    "needs_validation": bool,
    "loss_is_sum": bool | None,
    "loss_count": list | None,
    "micro_batch": int | None,
    "stop_reason": str | None,
}
_BEST = {"epoch": int, "update": int, "value": _NUMBER, "name": str}
_IDENTITY = dict.fromkeys(("fixed", "free", "limits"), Mapping)


@dataclass(slots=True, eq=False, repr=False)
class Progress:
    """Counters that callbacks do not see. Those that they see are in `Context`."""

    stage: Stage = "closed"  # between two epochs; in the training of one; after that, in validation
    validated_update: int = -1  # the update that was validated last
    needs_validation: bool = False  # the last batch was an update, and no validation has followed it: one may be due
    loss_is_sum: bool | None = None  # as the first call of the loss showed; None before it, or if a step computes it
    loss_count: list[Any] | None = None  # `LossCount.saved` of the step that computes the loss
    micro_batch: int | None = None  # the limit that micro_batch="auto" has found; None while whole batches fit
    skipped: int = 0  # batches whose loss or gradients were not finite
    epoch_start: tuple[int, int] = (0, 0)  # updates and skipped batches when the epoch began
    epoch_start_time: float = 0.0  # on the monotonic clock
    # Generators when the epoch began, for a DataLoader; and the source's own state where a resumed fit continues.
    loader_rng: Mapping[str, Any] = field(default_factory=dict)


class ResumePoint(NamedTuple):
    """The small part of the state after a batch: with the weights unchanged since, the whole state can be built.

    Values that are replaced and never written in place are references; everything else is copied.
    """

    progress: dict[str, Any]  # epoch, batch, update and the other counters
    random: Any  # a snapshot of the state's `RandomWatch`; None: the generators are as they were then
    buffers: list[Tensor]
    loss_buffers: list[Tensor]
    extra: list[Any]  # of modules with a `get_extra_state`
    loader: Mapping[str, Any]
    totals: TotalsSnapshot
    gradient_norms: list[dict[str, Tensor]]
    callbacks: dict[str, dict[str, Any]]
    loss_scale: dict[str, Any] | None
    best_weights: WeightCopy | None
    versions: tuple[int, ...]  # version counters of the parameters, which every write increments

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and batch."""
        return self.progress["epoch"], self.progress["batch"]


@dataclass(slots=True, eq=False, repr=False)
class TrainState:
    """Owns everything that a checkpoint saves: model, optimizer, accumulators, totals, counters, random numbers.

    `state_dict` returns all of it. `resume` (`_begin.py`) restores it in one order, by `load_position`, `load_rest` and
    `load_valid_generators`. The tensors that a training
    step writes are allocated once and written in place, so that a CUDA graph or a compiled program can refer to them.
    """

    model: nn.Module
    loss: nn.Module | None  # the loss function, if it is a module
    trained: nn.Module  # the model; with the loss, if that is trained too
    optimizer: Optimizer
    totals: RunningTotals  # of the current epoch's training
    ctx: Context  # position, learning rate, metrics and whatever else callbacks see
    hooks: Hooks
    train: Loader
    valid: Mapping[str, Loader]
    ema: EMA | None = None
    loss_scale: LossScale | None = None
    gradient_norms: dict[GradientNorm, State] = field(default_factory=dict)  # of the current epoch
    accumulators: dict[str | None, Accumulator] = field(default_factory=dict)  # by objective
    progress: Progress = field(default_factory=Progress)
    best_weights: WeightCopy | None = None
    keep_best: bool = True  # whether `best_weights` is used
    identity: Mapping[str, Any] = field(default_factory=dict)  # settings that a resumed run is compared by
    # Fingerprints of the frozen parameters that checkpoints and copies of the weights leave out; none is added later.
    left_out: dict[str, str] = field(default_factory=dict)
    _left_out_parameters: list[Tensor] = field(default_factory=list)
    _tracker: "_Tracker | None" = None

    def evaluating(self) -> AbstractContextManager[nn.Module]:
        """The model, in eval mode with the weights that are validated and kept: see `stoker.engine.evaluating`."""
        return evaluating(self.model, self.evaluation_weights(), loss=self.loss)

    def evaluation_weights(self) -> Mapping[str, Tensor] | None:
        """The weights that are validated and kept, by name, if they are not those being trained.

        They are the EMA, or those of an optimizer that trains others (schedule-free). Buffers are the model's.
        """
        if self.ema is not None:
            return self.ema.weights
        with delay_interrupt():  # the optimizer computes them in the model
            return self.optimizer.evaluation_weights()

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

    # --- frozen parameters

    def leave_out_frozen(self, frozen: Frozen) -> None:
        """Chooses the frozen parameters that are left out, before the first batch of a new run.

        A resumed run leaves out what its checkpoint did, and nothing else: the weights that the run started from do not
        contain what has changed since.
        """
        parameters = named_parameters(self.model)
        names = choose_left_out(parameters, frozen)
        self._set_left_out(fingerprint_tensors({name: parameters[name] for name in names}))

    def _set_left_out(self, fingerprints: Mapping[str, str]) -> None:
        parameters = named_parameters(self.model)
        self.left_out = dict(fingerprints)
        self._left_out_parameters = [parameters[name] for name in fingerprints if name in parameters]
        self._complete_best_weights()

    def note_unfrozen(self) -> None:
        """Includes parameters that have become trainable, before the first update that changes them."""
        if self.ema is not None:
            self.ema.add_unfrozen()
        if any(parameter.requires_grad for parameter in self._left_out_parameters):
            parameters = named_parameters(self.model)
            frozen = {name: each for name, each in self.left_out.items() if not parameters[name].requires_grad}
            self._set_left_out(frozen)

    def _complete_best_weights(self) -> None:
        """Adds parameters that are not left out any more; they have had the same values in the best weights."""
        if self.best_weights is None:
            return
        tensors, extra = self.best_weights
        missing = {
            name: parameter.detach().clone()
            for name, parameter in model_state(self.trained)["parameters"].items()
            if name not in tensors and name not in self.left_out
        }
        self.best_weights = WeightCopy({**tensors, **missing}, extra)  # a resume point may refer to the old one

    def _find_unchanged(self) -> dict[str, str]:
        """Those of the parameters to leave out that still have their fingerprint.

        Parameters may change in ways that no counter shows (`parameter.data.mul_(0.9)`), so their bytes are read.
        """
        if not self.left_out:
            return {}
        parameters = model_state(self.model)["parameters"]
        own = fingerprint_tensors({name: parameters[name] for name in self.left_out if name in parameters})
        return {name: each for name, each in own.items() if each == self.left_out[name]}

    def _include_changed(self) -> None:
        """Includes parameters that have changed although they are frozen: a callback may average weights into them."""
        unchanged = self._find_unchanged()
        changed = [name for name in self.left_out if name not in unchanged]
        if not changed:
            return
        lacking = [name for name in changed if self.best_weights is not None and name not in self.best_weights.tensors]
        if lacking:
            self.ctx.warn(
                f"{lacking[0]}{f' and {len(lacking) - 1} more' if len(lacking) > 1 else ''} changed after the best "
                "weights were copied, although frozen: of these parameters only the last values are kept. Give "
                'Checkpoint(frozen="save") if something else than the optimizer changes frozen parameters'
            )
        self._set_left_out(unchanged)

    # --- resume points

    def track_changes(self) -> None:
        """Prepares for resume points, which are taken after every batch that closes its window."""
        self._tracker = _Tracker(self.model, self.loss, list(self.trained.parameters()))

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
            "loss_is_sum": progress.loss_is_sum,
            "loss_count": progress.loss_count,
            "micro_batch": progress.micro_batch,
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
        epoch, batch, needs_rng = self.ctx.epoch - 1, self.ctx.batch_number, self.train.needs_rng_state
        if self.progress.stage != "train" or batch == 0:
            return {"generators": self.train.generator_states()} if needs_rng else {}
        begin = {name: value for name, value in self.progress.loader_rng.items() if name != "source"}
        source, saved = self.saved_source, self.train.source_state(epoch=epoch, batch=batch)
        if saved is not None:
            source = {"epoch": epoch, "batch": batch, "state": saved, "generators": self.train.generator_states()}
        return {**(begin if needs_rng else {}), **({} if source is None else {"source": source})}

    @property
    def saved_source(self) -> Mapping[str, Any] | None:
        """The training data's own state and its generators, if a resumed fit continues from them here."""
        saved = self.progress.loader_rng.get("source")
        is_here = saved is not None and (saved["epoch"], saved["batch"]) == (self.ctx.epoch - 1, self.ctx.batch_number)
        return saved if is_here else None

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
        self._include_changed()
        model = _without(_with_buffers(model_state(self.model), point.buffers), self.left_out)
        model["extra"] = dict(zip(model["extra"], point.extra, strict=True))
        # Resume points are only taken where no window is open.
        best = point.best_weights
        weights = self.optimizer.evaluation_weights()  # of one that trains others (schedule-free)
        if weights is not None:
            weights = {name: tensor for name, tensor in weights.items() if name not in self.left_out}
        open_windows = {part: each.state_dict() for part, each in self.accumulators.items() if len(each) and at is None}
        return {
            "model": model,
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.ema is None else self.ema.state_dict(leave_out=self.left_out),
            "best": None if best is None else best.tensors,
            "best_extra": None if best is None else best.extra,
            "accumulators": open_windows,
            "loss_scale": point.loss_scale,
            "random": random,
            "loader": point.loader,
            "valid": {name: each.generator_states() for name, each in self.valid.items() if each.needs_rng_state},
            "totals": self.totals.state_dict(point.totals),
            "gradient_norms": point.gradient_norms,
            "callbacks": point.callbacks,
            "progress": _savable_counters(point.progress),
            "eval_weights": weights,
            "loss": None if self.loss is None else _with_buffers(model_state(self.loss), point.loss_buffers),
            "identity": dict(self.identity),
        }

    def copy_eval_weights(self) -> WeightCopy:
        """A copy of the weights that are validated, with the buffers and the extra state of the model."""
        self._include_changed()
        return copy_weights(self.trained, self.evaluation_weights(), leave_out=self.left_out)

    # --- loading

    def check_shapes(self, saved: Mapping[str, Any]) -> None:
        """Raises `StateMismatch` if the saved tensors are not those of the model and the loss.

        Does nothing if a callback may still change the model in `on_fit_begin`: then loading compares them.
        """
        if self.hooks.may_change_model:
            return
        check_model_state(self.model, saved["model"], resize_buffers=True)
        if self.loss is not None and saved["loss"] is not None:
            check_model_state(self.loss, saved["loss"], resize_buffers=True)

    def load_position(self, state: Mapping[str, Any], learning_rates: Callable[[int, float], Any]) -> None:
        """Restores the counters of a saved state, and what `ctx` shows.

        `learning_rates(update, scale)` gives the selectors of the learning rates, which no file can hold.
        """
        ctx, progress, saved = self.ctx, self.progress, state["progress"]
        ctx.epoch, ctx.batch_number, ctx.update = saved["epoch"], saved["batch"], saved["update"]
        progress.stage, progress.skipped = saved["stage"], saved["skipped"]
        progress.validated_update, progress.needs_validation = saved["validated_update"], saved["needs_validation"]
        progress.loss_is_sum, progress.loss_count = saved["loss_is_sum"], saved["loss_count"]
        progress.micro_batch = saved["micro_batch"]
        progress.epoch_start, ctx.lr_scale = (saved["epoch_start"][0], saved["epoch_start"][1]), saved["lr_scale"]
        has_same_limits = self.identity["limits"] == state["identity"]["limits"]
        if has_same_limits and saved["stop_reason"] is not None:  # otherwise the run continues: with more epochs, say
            ctx.stopping = saved["stop_reason"]  # and a signal that came meanwhile still stops it
        now = time.monotonic()
        ctx.started, progress.epoch_start_time = now - saved["seconds"], now - saved["epoch_seconds"]
        ctx.metrics, ctx.state = dict(saved["metrics"]), dict(saved["state"])
        ctx.best = Best(*saved["best"]) if saved["best"] is not None and self.has_best_weights(state) else None
        ctx.lr = _match_rates(saved["lr"], learning_rates(max(ctx.update - 1, 0), ctx.lr_scale))  # the last update's

    def has_best_weights(self, state: Mapping[str, Any]) -> bool:
        """Whether a saved state has the weights of its best value, which is only known together with them."""
        return state["best"] is not None or not self.keep_best

    def load_rest(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state but for the position, the callbacks and the random generators."""
        load_model_state(self.model, state["model"], resize_buffers=True)
        self._set_left_out(state["model"].get("frozen", {}))
        if self.loss is not None and state["loss"] is not None:
            load_model_state(self.loss, state["loss"], resize_buffers=True)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.ema is not None:
            self.ema.load_state_dict(state["average"])
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])
        self._load_best_weights(state["best"], state["best_extra"])
        for part, window in state["accumulators"].items():
            self.accumulators[part] = Accumulator(window["reduce"])
            self.accumulators[part].load_state_dict(window, self.trained)
        self.totals.load_state_dict(state["totals"])
        for own, values in zip(self.gradient_norms.values(), state["gradient_norms"], strict=False):
            for name, value in values.items():
                own[name].copy_(value)
        self.progress.loader_rng = state["loader"]

    def load_valid_generators(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restores the generators of validation sets that are in a `DataLoader`; the sets may be others now."""
        for name, generators in states.items():
            if name in self.valid and self.valid[name].needs_rng_state:
                self.valid[name].load_generator_states(generators)

    def _load_best_weights(self, tensors: Mapping[str, Tensor] | None, extra: Mapping[str, Any] | None) -> None:
        if not self.keep_best or tensors is None:
            return
        own = weights_of(self.trained)
        default = next((tensor.device for tensor in own.values()), torch.device("cpu"))
        devices = {name: own[name].device if name in own else default for name in tensors}
        self.best_weights = WeightCopy({name: each.to(devices[name]) for name, each in tensors.items()}, extra)
        self._complete_best_weights()


class _Tracker:
    """What resume points read, collected once: walking over all modules takes longer than reading it. No `Tracker`."""

    def __init__(self, model: nn.Module, loss: nn.Module | None, parameters: list[nn.Parameter]) -> None:
        self.random = RandomWatch()
        self.buffer_tables = [module._buffers for module in model.modules()]
        self.loss_buffer_tables = [] if loss is None else [module._buffers for module in loss.modules()]
        self.with_extra_state = [module for module in model.modules() if has_extra_state(module)]
        self._parameters = parameters

    def versions(self) -> tuple[int, ...]:
        return tuple([parameter._version for parameter in self._parameters])


def check_state(state: Mapping[str, Any]) -> None:
    """Raises `BadFile` unless a saved state has all entries, with values of their types: later code relies on it."""
    _check_types("the state", state, _ENTRIES)
    ranks = state.get("ranks", [])  # of the other processes, if there are some
    _check_types("the state", {"ranks": ranks}, {"ranks": list})
    for part in ranks:
        _check_types("'ranks'", {"rank": part}, {"rank": Mapping})
    _check_types("'identity'", state["identity"], _IDENTITY)
    progress = state["progress"]
    _check_types("'progress'", progress, _COUNTERS)
    _check_types("'epoch_start'", dict(enumerate(progress["epoch_start"])), {0: int, 1: int})
    if progress["best"] is not None:
        _check_types("'best'", dict(zip(Best._fields, progress["best"], strict=False)), _BEST)


def _check_types(where: str, saved: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    """Raises `BadFile` unless `saved` has values of these types."""
    for name, kind in expected.items():
        value = saved.get(name, _MISSING)
        is_bool = isinstance(value, bool) and kind not in (bool, bool | None)  # which Python takes for an integer
        if not isinstance(value, kind) or is_bool:
            given = "is missing" if value is _MISSING else f"is a {type(value).__name__}"
            raise BadFile(f"the checkpoint does not hold the state of a fit: {name!r} of {where} {given}")


def _savable_counters(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Counters as plain values. A learning rate on a device is waited for here; selectors can't be saved."""
    lr, best = progress["lr"], progress["best"]
    rates = [float(rate) for rate in lr.values()] if isinstance(lr, Mapping) else None if lr is None else float(lr)
    user_state = {key: value for key, value in progress["state"].items() if is_storable(key) and is_storable(value)}
    epoch_start = list(progress["epoch_start"])
    saved_best = None if best is None else list(best)
    return {**progress, "lr": rates, "best": saved_best, "state": user_state, "epoch_start": epoch_start}


def _without(state: dict[str, Any], frozen: Mapping[str, str]) -> dict[str, Any]:
    """The state of a model without frozen parameters, whose fingerprints it has instead."""
    if not frozen:
        return state
    parameters = {name: each for name, each in state["parameters"].items() if name not in frozen}
    return {**state, "parameters": parameters, "frozen": dict(frozen)}


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
