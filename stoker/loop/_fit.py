"""What one fit works with: made by the learner, changed by the loop."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stoker.callbacks import Context, Hooks
from stoker.checkpoint import RandomWatch, Saver, Unsaved
from stoker.data import Loader
from stoker.distributed import Agreement, Parallel, World
from stoker.gradients import Accumulator, Differentiator, GradientReducer
from stoker.loop._precision import Scaler
from stoker.loop._tally import Later, Tally
from stoker.loop._weights import Average, Snapshot
from stoker.metrics import GradientNorm, Meter, Metric, State
from stoker.optim import Optimizer
from stoker.program import Plan, Verdict
from stoker.record import Control, Event, Record, Run
from stoker.steps import Supervised

Stage = Literal["closed", "train", "validate"]


@dataclass(frozen=True)
class Settings:
    """How to train, and for how long."""

    epochs: int | None = None
    updates: int | None = None
    minutes: float | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    precision: str = "fp32"
    on_nan: Literal["stop", "skip"] = "stop"
    compile: bool = False
    validate_every: int | None = None  # updates; None for every epoch
    keep: Literal["best", "last"] = "best"
    monitor: str | None = None  # the number that says which weights are best; None without validation


@dataclass(slots=True)
class Fit:
    """One fit: the parts, in the order in which a batch meets them, and where it stands."""

    settings: Settings
    device: torch.device
    home: torch.device  # where the model came from, and goes back to
    train: Loader
    valid: Mapping[str, Loader]
    model: nn.Module
    supervised: Supervised | None  # None where the model has a step of its own
    optimizer: Optimizer
    rates: Callable[[int, float], Any]  # (update, scale) → a learning rate, or one for each selector
    train_metrics: Sequence[Metric]
    valid_metrics: Sequence[Metric]
    meters: Sequence[Meter]
    record: Record
    hooks: Hooks
    ctx: Context
    world: World = field(default_factory=World)  # the processes that train together
    split: World = field(default_factory=World)  # those among which a batch is split: all, unless a mesh says otherwise
    parallel: Parallel = field(default_factory=Parallel)  # and how
    shared: GradientReducer | None = None  # gradients of all of them, where there are several
    sharded: bool = False  # the model itself sees to its gradients: it is in shards, or was wrapped by the user
    accord: Agreement | None = None  # what they agree on after every batch
    common: bool = False  # the exception that is on its way goes through every process
    average: Average | None = None
    scaler: Scaler | None = None
    accumulators: dict[str | None, Accumulator] = field(default_factory=dict)
    differentiators: dict[str | None, Differentiator] = field(default_factory=dict)  # of an epoch: then they look again
    best: Snapshot | None = None
    random: Mapping[str, Any] | None = None  # where the random numbers stood at the end, to go on from
    last: Snapshot | None = None  # where the model was when the best weights took its place
    applied: bool = False  # whether the current batch counts as an update
    moved: bool = False  # whether that has changed weights: on a GPU a batch of nothing counts, and has not
    late: bool = False  # whether nobody waits for the verdict about an eager step, on any rank
    refused: bool = False  # whether the current batch counts for nothing: its loss is no number
    interrupted: bool = False  # by somebody who wants it to end, and perhaps to go on later
    left: str | None = None  # why it was interrupted: a run that goes on does not stop for that
    terminated: bool = False  # by SIGTERM
    parent: int | None = None  # torchrun's process: when it is gone, nobody looks after this one
    waiting: bool = False  # for a batch that other processes make: an interrupt need not wait for it
    norms: dict[GradientNorm, State] = field(default_factory=dict)  # of the epoch's gradients, where somebody asks
    buffers: Sequence[Tensor] = ()  # as they were before the batch, where it may be skipped
    validated: int = -1  # the update that was validated last
    skipped: int = 0  # batches whose loss or gradients were not finite
    plan: Sequence[str | Plan] = ()  # what was decided, in words
    step: Plan = field(default_factory=lambda: Plan("eager"))  # how a batch goes through the stations
    program: Any = None  # that runs them so: an Eager, Captured or Compiled
    steady: bool = False  # the learning rates are plain numbers: they change only by a callback's wish
    picks: bool = False  # rows are gathered by the program itself
    verdict: Verdict | None = None  # the device's own, while nothing may be read
    suspect: tuple[str, str, str] | None = None  # what was not finite in a window, at which batch, and why
    searching: bool = False  # a batch is run again to find what was not finite in it: nothing is applied
    rates_held: Any = None  # the learning rates as tensors, meanwhile
    tell_facts: Callable[[Mapping[str, Any]], None] | None = None  # where facts have changed since the run began
    trained: float = 0.0  # seconds, when it was last over
    reported: float = 0.0  # when progress was last told, on the monotonic clock
    coming: tuple[Event, Later] | None = None  # progress whose numbers are still on their way from the device
    control: Control | None = None  # what somebody who watches asks for
    # where in an epoch it stands, between two batches
    stage: Stage = "closed"  # before an epoch, inside its training, or after that
    before: tuple[int, int] = (0, 0)  # updates and skipped batches when the epoch began
    began: float = 0.0  # when the epoch did, on the monotonic clock
    opened: Mapping[str, Any] = field(default_factory=dict)  # generators when it began, for a loader that needs them
    # what makes it durable
    identity: Mapping[str, Any] = field(default_factory=dict)  # what a run that goes on must have in common with it
    saver: Saver | None = None
    watch: RandomWatch | None = None
    unsaved: Unsaved | None = None
    watched: Sequence[Tensor] = ()  # the parameters, which a mark doesn't copy
    homes: Sequence[Mapping[str, Tensor | None]] = ()  # the modules' own tables of buffers
    loss_homes: Sequence[Mapping[str, Tensor | None]] = ()  # and those of the loss
    extras: Sequence[nn.Module] = ()  # modules with a `get_extra_state` of their own
    warned: set[str] = field(default_factory=set)  # of what no checkpoint can hold
    mark: Any = None  # the last good state: a `Mark`, until the next update begins
    marks: deque[Any] = field(default_factory=lambda: deque(maxlen=4))  # the newest ones: a verdict may come late
    saved: Any = None  # the place that was saved last
    clocked: bool = False  # when to save is looked up on the clock
    is_due: bool = False  # and all ranks have been asked to
    resumed: Mapping[str, Any] | None = None  # the state to go on from
    reopen: Callable[[], Run] | None = None  # takes the run up, where it was over already and nothing was written
    cut: bool = False  # it has ended in a way that a longer fit would not go through
    leave_at: float | None = None  # seconds since 1970: the cluster's deadline, less what saving takes
    heard: bool = field(init=False)  # some callback listens between batches
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.heard = any(map(self.hooks.has, ("on_train_batch_begin", "on_train_batch_end", "on_update")))
        self.tally = Tally(self.train_metrics, self.device, self.where)

    def where(self) -> str:
        """The place in words, for the note of an exception."""
        return f", {self.ctx.set_name}, epoch {self.ctx.epoch}, batch {self.ctx.batch_number}"

    @property
    def plan_lines(self) -> list[str]:
        """The plan in words, as far as it is known now."""
        return [line for each in self.plan for line in (each.lines() if isinstance(each, Plan) else [each])]

    @property
    def reduce(self) -> Literal["mean", "sum"]:
        """What a window of batches makes of their gradients: what the loss itself makes of its samples."""
        return "sum" if self.supervised is not None and self.supervised.sums else "mean"

    @property
    def written_out(self) -> bool:
        """Whether the update is one that can be compiled, also where it is not; of many ranks nobody's can."""
        return self.settings.compile and self.world.size == 1

    @property
    def own_windows(self) -> bool:
        """Whether each rank adds its micro-batches up by itself, and gradients are shared when a window closes."""
        return self.shared is not None and self.settings.accumulate > 1 and not self.sharded

    @property
    def judged(self) -> nn.Module:
        """The weights that count: the running average, where there is one."""
        return self.model if self.average is None else self.average.model
