"""Where training stands and what a callback may do there: the one argument of every milestone."""

import time
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.gradients import Gradients
from stoker.optim import Optimizer
from stoker.record import Best, Event, History, Record


class Context:
    """What every milestone is given; the loop fills it in, and takes back what is marked with (w).

    >>> ctx = Context(model=nn.Linear(2, 1), epochs=3)
    >>> ctx.epoch = 2
    >>> ctx.log("temperature", 36.6)
    >>> ctx.stop("seen enough")
    >>> ctx.metrics, ctx.stopping
    ({'temperature': 36.6}, 'seen enough')

    It has these fields and no others: a misspelt one is an `AttributeError`, read or written. Fields without (w) are
    to be read; what a callback writes there, the loop writes over or is misled by.
    """

    __slots__ = (
        "accumulating",
        "batch",
        "batch_number",
        "batches",
        "best",
        "can_save",
        "device",
        "epoch",
        "epochs",
        "ghost",
        "grads",
        "loss",
        "loss_mix",
        "lr",
        "lr_scale",
        "metrics",
        "model",
        "optimizer",
        "output",
        "phase",
        "pred",
        "record",
        "saving",
        "seed",
        "set_name",
        "started",
        "state",
        "stopping",
        "update",
        "updates_planned",
        "wishes",
    )
    # what is trained, with what, and what is known of it
    model: nn.Module
    optimizer: Optimizer | None
    record: Record
    device: torch.device
    seed: int | None
    # the plan
    epochs: int | None
    updates_planned: int | None
    batches: int | None  # in an epoch of this phase, where that is known
    # the position
    phase: Literal["train", "valid"]
    set_name: str  # of the set that is validated: "valid", or its name among several
    epoch: int  # from 1; 0 before the first
    batch_number: int  # from 1 in its phase
    update: int  # updates that were applied so far
    accumulating: bool  # this batch does not end an update
    ghost: bool  # of several processes this one has no sample of the batch: it goes along with one that doesn't count
    started: float  # seconds of `time.monotonic`
    # the numbers
    metrics: dict[str, float]  # the latest finished value of each name
    best: Best | None
    stopping: str | None  # why training is going to stop
    saving: str | None  # why a checkpoint is going to be written after this batch
    can_save: bool  # whether there is a run to write it into
    wishes: dict[str, Any] | None  # of this process to all that train together; None where it trains alone
    # what the loop takes back
    batch: Any  # (w) at batch_begin
    pred: Any  # (w) at after_pred
    output: Any  # (w) at after_loss
    loss: Tensor | None  # (w) at after_loss; 0-d, with its graph
    loss_mix: tuple[Any, Tensor] | None  # (w) at batch_begin: other targets, and how much the batch's own count, [B]
    grads: Gradients | None  # (w) at after_backward
    lr: Any  # (w) of the coming update: a number, or a mapping of selectors to numbers
    lr_scale: float  # (w) multiplies every learning rate from now on
    state: dict[Any, Any]  # (w) the user's own

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        record: Record | None = None,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        epochs: int | None = None,
        updates_planned: int | None = None,
        batches: int | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.record = Record() if record is None else record
        self.device = torch.device(device)
        self.seed = seed
        self.epochs, self.updates_planned, self.batches = epochs, updates_planned, batches
        self.phase, self.set_name = "train", "valid"
        self.epoch = self.batch_number = self.update = 0
        self.accumulating = self.ghost = False
        self.started = time.monotonic()
        self.metrics = {}
        self.best = self.stopping = self.saving = None
        self.can_save = False
        self.wishes = None
        self.batch = self.pred = self.output = self.loss = self.loss_mix = self.grads = self.lr = None
        self.lr_scale = 1.0
        self.state = {}

    @property
    def history(self) -> History:
        """The record as a table of epochs."""
        return History(self.record)

    def stop(self, reason: str) -> None:
        """Ends training after this batch, with its end milestones; the first reason is the one that is kept.

        Where several processes train together it is a wish: any rank may have it, and all of them end after the next
        batch, or with the epoch or validation that is just over.
        """
        if not isinstance(reason, str) or not reason:
            raise InvalidArgument(f"ctx.stop needs the reason, as a text that people will read; got {reason!r}")
        if self.wishes is not None:
            self.wishes.setdefault("stop", reason)
        elif self.stopping is None:
            self.stopping = reason

    def save(self, reason: str) -> None:
        """Writes a checkpoint when this batch is done (at the end of an epoch: at once), for a reason that is kept.

        Where several processes train together it is a wish, as `stop` is: all of them save after the next batch.
        """
        if not isinstance(reason, str) or not reason:
            raise InvalidArgument(f"ctx.save needs the reason, as a text that people will read; got {reason!r}")
        if not self.can_save:
            raise InvalidArgument("nothing can be saved: the fit has no run=... (or checkpoint=False), or it is over")
        if self.wishes is not None:
            self.wishes["save"] = reason
        else:
            self.saving = reason

    def log(self, name: str, value: float | Tensor) -> None:
        """Puts a number into the record, and so into the row of this epoch; a tensor on a device is waited for."""
        if not isinstance(name, str) or not name:
            raise WrongType(f"ctx.log takes a name and a number; the name is {name!r}")
        number = _number(name, value)
        self.metrics[name] = number
        self._append("log", values={name: number})

    def note(self, text: str) -> None:
        """Says something in the record, the console and the log."""
        self._append("note", text=text)

    def warn(self, text: str) -> None:
        """Says that something is probably wrong, in the record, the console and the log; of any rank, in rank 0's."""
        self._append("warning", text=text)
        if self.wishes is not None:
            self.wishes.setdefault("said", []).append(text)

    def _append(self, kind: str, **what: Any) -> None:
        position = {"epoch": self.epoch, "batch": self.batch_number, "update": self.update}
        self.record.append(Event(kind=kind, time=time.time(), **position, **what))

    # Costs the loop 0.1 µs for each field that it writes.
    def __setattr__(self, name: str, value: Any) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            _no_field(name, "; what is your own goes into ctx.state")

    def __getattr__(self, name: str) -> NoReturn:  # asked only where there is no such field
        _no_field(name, f"; there are: {', '.join(Context.__slots__)}, history")


def _no_field(name: str, otherwise: str) -> NoReturn:
    known = [each for each in dir(Context) if not each.startswith("_")]
    if name in known:
        raise AttributeError(f"ctx.{name} can't be set")
    raise AttributeError(f"ctx has no {name!r}{did_you_mean(name, known) or otherwise}") from None


def _number(name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.item())
    if not isinstance(value, Tensor) and hasattr(value, "__float__"):
        return float(value)  # pyright: ignore[reportArgumentType]
    given = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise WrongType(f"ctx.log({name!r}, ...) takes one number, got {given}; text goes to ctx.note")
