"""`ctx`, the argument of every hook: where training is, and what a callback may read, replace and request."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import InitVar, dataclass, field, fields
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.gradients import Gradients
from stoker.optim import Optimizer
from stoker.record import Best, Event, History, MediaLog, Record
from stoker.steps import Supervised


@dataclass(slots=True, eq=False, repr=False)
class Requests:
    """What callbacks have requested and the training loop has not carried out yet; internal to the loop.

    With one process `pending` is `None`, and requests take effect at once. With several, `pending` collects the
    requests of this rank until the ranks exchange them: then all of them stop or save after the same batch.
    """

    save_reason: str | None = None  # a checkpoint is written after this batch
    can_save: bool = False
    pending: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class BatchContext:
    """The fields of `Context` that describe the current batch."""

    phase: Literal["train", "valid"] = "train"
    set_name: str = "train"
    batch_number: int = 0
    batches: int | None = None
    accumulating: bool = False
    is_padding: bool = False
    batch: Any = None
    pred: Any = None
    output: Any = None
    loss: Tensor | None = None
    loss_mix: tuple[Any, Tensor] | None = None
    grads: Gradients | None = None
    lr: Any = None


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class Context(BatchContext, MediaLog):
    """The state of a fit as callbacks see it; the loop fills it in and reads back the fields marked with (w).

    >>> ctx = Context(model=nn.Linear(2, 1), epochs=3)
    >>> ctx.epoch = 2
    >>> ctx.log("temperature", 36.6)
    >>> ctx.stop("seen enough")
    >>> ctx.metrics, ctx.stopping
    ({'temperature': 36.6}, 'seen enough')

    | the fit | |
    |---|---|
    | `model`, `optimizer`, `device`, `seed` | what is trained, and with what |
    | `evaluating` | `with ctx.evaluating() as model:` is the model in eval mode, with the weights that are validated |
    | `epochs`, `updates_planned` | the limits given to `fit`, or `None` |
    | `record`, `history` | the recorded events, and a table of them with a row per epoch |
    | `metrics` | the final values of this epoch so far, by name: `ctx.metrics["valid/loss"]` after the validation |
    | `monitor` | the metric that decides which weights are best, as `fit(monitor=...)` says; `None` without one |
    | `best` | the best value of the monitored metric so far, and where it was reached |
    | `started` | when training started, in seconds of `time.monotonic` |
    | `stopping` | why training is about to stop, or `None` |
    | `lr_scale` (w) | multiplies every learning rate from now on |
    | `state` (w) | a dictionary for your own values, saved in checkpoints |
    | `log_image`, `log_histogram`, `log_text`, `log_table`, `log_figure`, `log_audio` | see `stoker.record.MediaLog` |

    | the position | |
    |---|---|
    | `epoch` | counts from 1; 0 before the first |
    | `update` | the number of updates applied so far |
    | `phase`, `set_name` | "train" or "valid", and the name of the validation set |
    | `batch_number`, `batches` | counts from 1 within the phase; the number of batches, if known |
    | `lr` (w) | of this or the last update: a number, or a mapping of selectors to numbers; `None` at first |
    | `accumulating` | True if this batch does not end an accumulation window |
    | `is_padding` | True if this rank has no sample of the batch and processes one that does not count |

    | the current batch | `None` between batches |
    |---|---|
    | `batch` (w) | from `on_..._batch_begin` on; on the device |
    | `loss_mix` (w) | set in `on_train_batch_begin`: second targets, and the weight of the first ones, [B] |
    | `pred` (w) | from `on_..._batch_after_pred` on |
    | `output` (w), `loss` (w) | from `on_..._batch_after_loss` on; the loss is 0-d and has its graph |
    | `grads` (w) | from `on_train_batch_after_backward` on |

    With `fit(micro_batch=)` the hooks between forward and step see one micro-batch at a time, and
    `on_train_batch_end` sees the last one.

    The other fields are for reading only. A name that is not a field raises `AttributeError`, read or written.
    """

    model: nn.Module
    optimizer: Optimizer | None = None
    record: Record = field(default_factory=Record)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int | None = None
    epochs: int | None = None
    updates_planned: int | None = None
    started: float = field(default_factory=time.monotonic)
    epoch: int = 0
    update: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    best: Best | None = None
    stopping: str | None = None
    lr_scale: float = 1.0
    state: dict[Any, Any] = field(default_factory=dict)
    requests: InitVar[Requests | None] = None
    supervised: InitVar[Supervised | None] = None
    evaluation: InitVar[Callable[[], AbstractContextManager[nn.Module]] | None] = None
    _requests: Requests = field(init=False)
    _supervised: Supervised | None = field(init=False)  # splits batches; None for a model with a train_step
    _evaluation: Callable[[], AbstractContextManager[nn.Module]] | None = field(init=False)

    def __post_init__(
        self,
        requests: Requests | None,
        supervised: Supervised | None,
        evaluation: Callable[[], AbstractContextManager[nn.Module]] | None,
    ) -> None:
        self._requests = Requests() if requests is None else requests
        self._supervised = supervised
        self._evaluation = evaluation

    @property
    def history(self) -> History:
        """The record as a table with a row per epoch."""
        return History(self.record)

    @property
    def monitor(self) -> str | None:
        """The metric that decides which weights are best, as the record declares it."""
        return None if self.record.begin is None else self.record.begin.extra.get("monitor")

    def evaluating(self) -> AbstractContextManager[nn.Module]:
        """Gives the model in eval mode, with the weights that are validated and kept, for the length of a `with` block.

        These are the average with `ema=`, and the optimizer's own for one that trains others (schedule-free). It is the
        model itself: afterwards modes, weights, buffers and random generators are as before. With several processes
        whose model is sharded, all of them have to call it.
        """
        if self._evaluation is None:
            raise InvalidArgument("ctx.evaluating needs the context of a fit, which knows the weights to evaluate")
        return self._evaluation()

    def stop(self, reason: str) -> None:
        """Stops training after this batch; the end hooks still run, and only the first reason is kept.

        With several processes, any rank may call it. All of them stop after the next batch, or at the end of the
        epoch or validation that is just finished.
        """
        _check_reason("stop", reason)
        if self._requests.pending is not None:
            self._requests.pending.setdefault("stop", reason)
        elif self.stopping is None:
            self.stopping = reason

    def save(self, reason: str) -> None:
        """Writes a checkpoint after this batch (at the end of an epoch: at once); the reason is stored in it.

        With several processes, any rank may call it, and all of them save after the next batch.
        """
        _check_reason("save", reason)
        if not self._requests.can_save:
            raise InvalidArgument(
                "ctx.save has no run to write to: give fit run=... without checkpoint=False, and call ctx.save before "
                "the fit has ended"
            )
        if self._requests.pending is not None:
            self._requests.pending["save"] = reason
        else:
            self._requests.save_reason = reason

    def log(self, name: str, value: float | Tensor) -> None:
        """Adds a number to the record and to this epoch's row; waits for the device if `value` is on one."""
        if not isinstance(name, str) or not name:
            raise WrongType(f"ctx.log takes a name and a number; got the name {name!r}")
        number = _to_number(name, value)
        self.metrics[name] = number
        self._append("log", values={name: number})

    def note(self, text: str) -> None:
        """Adds a remark to the record; it is shown on the console."""
        self._append("note", text=text)

    def warn(self, text: str) -> None:
        """Adds a warning to the record; it is shown on the console. Warnings of other ranks reach rank 0's record."""
        self._append("warning", text=text)
        if self._requests.pending is not None:
            self._requests.pending.setdefault("warnings", []).append(text)

    def _media_place(self) -> tuple[Record, int, int, int]:
        return self.record, self.epoch, self.batch_number, self.update

    def _append(self, kind: str, **content: Any) -> None:
        position = {"epoch": self.epoch, "batch": self.batch_number, "update": self.update}
        self.record.append(Event(kind=kind, time=time.time(), **position, **content))

    # Adds 0.1 µs to every field that the loop writes.
    def __setattr__(self, name: str, value: Any) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            _raise_no_field(name, "; use ctx.state for your own values")

    def __getattr__(self, name: str) -> NoReturn:  # called only if there is no such field
        _raise_no_field(name, f"; the fields are: {', '.join(_field_names())}")


def _field_names() -> list[str]:
    return sorted(["history", "monitor", *(field.name for field in fields(Context) if not field.name.startswith("_"))])


def _raise_no_field(name: str, otherwise: str) -> NoReturn:
    known = [name for name in dir(Context) if not name.startswith("_")]
    if name in known:
        raise AttributeError(f"ctx.{name} cannot be set")
    raise AttributeError(f"ctx has no field {name!r}{did_you_mean(name, known) or otherwise}") from None


def _check_reason(method: str, reason: object) -> None:
    if not isinstance(reason, str) or not reason:
        raise InvalidArgument(f"ctx.{method} takes the reason as a text for people to read; got {reason!r}")


def _to_number(name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.item())
    if not isinstance(value, Tensor) and hasattr(value, "__float__"):
        return float(value)  # pyright: ignore[reportArgumentType]
    given = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise WrongType(f"ctx.log({name!r}, ...) takes one number, got {given}; use ctx.note for text")
