"""Guards keep values that are not finite away from the weights: `HostGuard` reads them, `DeviceGuard` never waits.

`Update` asks the guard of the call before it writes weights. One fit uses both: a step that is recorded or compiled
whole takes the device's guard; its first batch, the end of an epoch and the search for the origin take the host's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from stoker.engine._batch import Batch
from stoker.engine._buffers import BufferValues
from stoker.engine._finite import NonFiniteSearch, all_finite, is_finite, join_values, largest_values
from stoker.engine._forward_loss import LossTerm
from stoker.engine._ranks import Ranks
from stoker.engine._state import TrainState
from stoker.errors import NotFinite
from stoker.gradients import Gradients

# What happens to an update. "skip batch" also leaves the batch out of losses and metrics.
Decision = Literal["apply", "skip update", "skip batch"]


class Guard(Protocol):
    """What an update asks: may it happen, and with which learning rates.

    `check` comes first. `allowed` is its answer if the host does not know it.
    """

    @property
    def allowed(self) -> Tensor | None:
        """Whether the update that was checked last may change anything: [] of bool on the device. None: see `check`."""
        ...

    @property
    def needs_norm(self) -> bool:
        """Whether `check` is cheaper with the norm of the gradients."""
        ...

    def rates(self, lr: Any) -> Any:
        """The learning rates of an update as the optimizer gets them."""
        ...

    def check(self, grads: Gradients, loss: LossTerm, norm: Tensor | None, batch: Batch) -> Decision:
        """Checks gradients, and with one process also the loss. A device guard returns "apply" and sets `allowed`."""
        ...


class LearningRates:
    """Learning rates as tensors, so that a new value does not trigger a new recording or compilation.

    >>> rates = LearningRates(torch.device("cpu"))
    >>> rates.set(0.5)
    >>> rates.tensors
    tensor(0.5000, dtype=torch.float64)
    """

    __slots__ = ("_device", "are_constants", "last", "tensors")

    def __init__(self, device: torch.device, *, are_constants: bool = False) -> None:
        self._device = device
        # The optimizer takes numbers only, which are constants in a CUDA graph: a new rate needs a new recording.
        self.are_constants = are_constants
        self.tensors: Any = None  # one tensor, or one for each selector; None until the first `set`
        self.last: Any = None

    def set(self, lr: Any) -> None:
        """Writes the learning rates of this update, if they are not those of the last one."""
        if type(lr) is float and lr == self.last:
            return
        by_name = isinstance(lr, Mapping)
        if self.tensors is None or (tuple(lr) if by_name else None) != (
            tuple(self.last) if isinstance(self.last, Mapping) else None
        ):
            # float64 as Python's numbers on the CPU; fused kernels of a GPU read float32.
            dtype = torch.float64 if self._device.type == "cpu" else torch.float32
            new = {key: torch.zeros((), dtype=dtype, device=self._device) for key in (lr if by_name else (None,))}
            self.tensors = new if by_name else new[None]
        self.last = dict(lr) if by_name else lr
        for key, rate in lr.items() if by_name else ((None, lr),):
            (self.tensors[key] if by_name else self.tensors).fill_(rate)

    def stack(self, rates: Sequence[Any]) -> list[tuple[Tensor, ...]]:
        """The rates of several updates as tensors, in the order of `all`."""
        values = [list(each.values()) if isinstance(each, Mapping) else [each] for each in rates]
        return [each.unbind() for each in torch.tensor(values, dtype=self.all()[0].dtype).unbind()]

    def all(self) -> list[Tensor]:
        """The tensors as a list."""
        found = self.tensors.values() if isinstance(self.tensors, Mapping) else (self.tensors,)
        return [rate for rate in found if rate is not None]


class DeviceGuard:
    """Decides on the device whether an update may be applied, so that the host never waits.

    >>> guard = DeviceGuard(LearningRates(torch.device("cpu")), torch.device("cpu"))
    >>> guard.check_values([torch.tensor(1.0), torch.tensor(2.0)])
    >>> guard.end_step()
    >>> guard.check_values([torch.tensor(1.0), torch.tensor(float("nan"))])
    >>> guard.end_step()
    >>> guard.allowed.item(), guard.found_nonfinite, guard.first_bad_step
    (False, True, 2)

    From the first step on whose values are not finite, no update is allowed until `clear`: the host, which learns of it
    later, finds the weights as they were before that step. Each operation here runs in every step, so there are few.
    """

    __slots__ = ("_checks_loss", "_rates", "allowed", "good_steps", "nonfinite", "weightless")

    needs_norm = False

    def __init__(self, rates: LearningRates, device: torch.device, *, checks_loss: bool = True) -> None:
        self._rates, self._checks_loss = rates, checks_loss
        self.nonfinite = torch.zeros((), device=device)  # 0, and NaN from the first bad step on
        self.good_steps = torch.zeros((), dtype=torch.int64, device=device)  # before the first bad one
        # Whether the last batch had weight 0; on the CPU only, where the host reads it.
        self.weightless = torch.zeros((), dtype=torch.bool, device=device)
        self.allowed: Tensor | None = None  # whether the last checked update may be applied

    def rates(self, lr: Any) -> Any:
        """The tensors that were set before the step; the numbers if the optimizer reads them on the host."""
        return lr if self._rates.tensors is None else self._rates.tensors

    def check(self, grads: Gradients, loss: LossTerm, norm: Tensor | None, batch: Batch) -> Decision:
        """Lets the device decide: the update is launched in any case."""
        self.check_values(largest_values(loss.value if self._checks_loss else None, grads), loss.weight)
        return "apply"

    def check_values(self, values: list[Tensor], weight: float | Tensor = 1) -> None:
        """Checks numbers that are finite if all is well; a batch of weight 0 is not a reason to stop."""
        stacked, device = join_values(values, self.nonfinite.device), self.nonfinite.device
        if not isinstance(weight, Tensor):
            self.nonfinite.add_(_nan_unless_finite(stacked))
            self.allowed = self.nonfinite == 0
            if device.type == "cpu":
                self.weightless.zero_()
            return
        weightless = weight.detach().to(device) == 0
        if torch.compiler.is_compiling():
            # Computed separately: if one is derived from the other, triton's compiler can fail.
            self.allowed = self.nonfinite + _nan_unless_finite(torch.where(weightless, torch.inf, stacked)) == 0
            self.nonfinite.add_(_nan_unless_finite(torch.where(weightless, 0, stacked)))
        else:
            self.nonfinite.add_(_nan_unless_finite(stacked).masked_fill_(weightless, 0))
            # (weightless, nonfinite): (0, 0) → True; (1, 0) → False; (any, NaN) → False. One kernel instead of two.
            self.allowed = weightless <= self.nonfinite
        if device.type == "cpu":
            self.weightless.copy_(weightless)

    def end_step(self) -> None:
        """Counts the step if all was finite so far."""
        self.good_steps.add_(self.nonfinite == 0)

    @property
    def found_nonfinite(self) -> bool:
        """Whether a step was bad; waits for the device."""
        return self.nonfinite.item() != 0

    @property
    def first_bad_step(self) -> int:
        """The number of the first bad step, from 1; waits for the device."""
        return int(self.good_steps.item()) + 1

    def clear(self) -> None:
        """Starts again."""
        for tensor in self.tensors():
            tensor.zero_()

    def tensors(self) -> list[Tensor]:
        """The tensors that a step writes."""
        return [self.nonfinite, self.good_steps, self.weightless]


def _nan_unless_finite(values: Tensor) -> Tensor:
    """0, or NaN if a value is not finite."""
    largest = torch.linalg.vector_norm(values, torch.inf)
    return largest - largest


class HostGuard:
    """Reads whether loss and gradients are finite, before the update; raises if not, or skips the batch.

    With several ranks only the reduced gradients are checked: a bad loss on one rank has made them NaN on all.
    """

    allowed = None

    def __init__(
        self,
        state: TrainState,
        rates: LearningRates,
        ranks: Ranks,
        search: NonFiniteSearch,
        device: torch.device,
        *,
        skips: bool,
        checks_loss: bool,
    ) -> None:
        self._state, self._rates, self._ranks, self._search = state, rates, ranks, search
        self._takes_rate_tensors = device.type == "cuda" and not rates.are_constants
        self._skips, self._checks_loss = skips, checks_loss
        self._buffers = BufferValues()  # from before the batch or the epoch
        self._suspect: tuple[str, str, str] | None = (
            None  # from `check_share`: a bad micro-batch of a window that is still open
        )
        # Of shards, the norm is one message to the other ranks; checking each shard would be many.
        self.needs_norm = ranks.model_is_distributed

    def remember_buffers(self) -> None:
        """Copies the buffers: running statistics see a batch before its loss is checked."""
        self._buffers = BufferValues(self._state.model, self._state.loss)

    def rates(self, lr: Any) -> Any:
        """On a GPU as tensors: torch rounds differently with numbers, and a recorded step has tensors."""
        if not self._takes_rate_tensors:
            return lr
        self._rates.set(lr)
        return self._rates.tensors

    def check(self, grads: Gradients, loss: LossTerm, norm: Tensor | None, batch: Batch) -> Decision:
        """Reads the values. A batch of weight 0 (all masked) changes nothing, whatever its loss is."""
        finite = is_finite(loss.value if self._checks_loss else None, grads, norm)
        return "skip update" if loss.weight == 0 else self._decide(grads, loss.value, batch, finite=finite)

    def check_share(self, grads: Gradients, loss: LossTerm, batch: Batch) -> tuple[Decision, Gradients]:
        """Checks a micro-batch of this rank, whose window is reduced later; returns the gradients to add to it.

        If they are bad they are all NaN, and so is the window on every rank, unless the batch is skipped.
        """
        is_fine = bool(loss.weight == 0) or is_finite(loss.value, grads, None)
        if self._skips or self._state.loss_scale is not None:
            return self._decide(grads, loss.value, batch, finite=self._ranks.world.all(is_fine)), grads
        if not is_fine:
            # No communication here: all ranks refuse the update when the window closes.
            self._suspect = self._suspect or self._locate(loss.value, grads, batch)
            grads = grads.scale(float("nan"))
        return "apply", grads

    def _decide(self, grads: Gradients, loss: Tensor | None, batch: Batch, *, finite: bool) -> Decision:
        """Accepts gradients, or leaves the weights alone: raises, or skips the batch if `on_nan="skip"`."""
        scale, progress, ctx = self._state.loss_scale, self._state.progress, self._state.ctx
        if scale is not None:
            scale.adjust(finite=finite)
        if finite:
            return "apply"
        progress.skipped += 1
        is_bad_loss = self._ranks.world.any(loss is not None and not bool(loss.isfinite()))
        if scale is not None and scale.factor > 1.0 and not is_bad_loss:
            return "skip update"  # the scale is still being found
        if not self._skips:
            raise self._describe(loss, grads, batch)
        ctx.warn(
            f"the update at epoch {batch.epoch}, batch {batch.number} was skipped: the loss or a gradient is not "
            f"finite ({progress.skipped} so far)"
        )
        self._buffers.restore()
        return "skip batch" if is_bad_loss else "skip update"

    def _locate(self, loss: Tensor | None, grads: Gradients, batch: Batch) -> tuple[str, str, str]:
        """What is not finite, at which batch, and where it comes from."""
        what = "a gradient" if loss is None else f"the loss ({loss.item():g}) or a gradient"
        always_forward = self._ranks.model_is_distributed
        origin = self._search.describe(batch.gather(), loss, grads, always_forward=always_forward)
        return what, f"epoch {batch.epoch}, batch {batch.number}", origin

    def _describe(self, loss: Tensor | None, grads: Gradients, batch: Batch) -> NotFinite:
        """The error that stops the run; of several ranks, it is about the first one whose own loss it was."""
        is_own = self._suspect is not None or (loss is not None and not bool(loss.isfinite()))
        what, where, origin = self._suspect or self._locate(loss, grads, batch)
        if self._ranks.world.size > 1:
            ranks = self._ranks.world.all_gather((is_own, (what, where, origin)))
            rank = next((rank for rank, (is_own, _) in enumerate(ranks) if is_own), 0)
            what, where, origin = ranks[rank][1]
            what = f"{what} of rank {rank}"
        # Running statistics have seen the bad batch: those that are not finite are reset to the start of the epoch.
        self._buffers.restore(keep=all_finite)
        return NotFinite(
            f"{what} is not finite at {where}: {origin}. The update was not applied. "
            "Lower the learning rate, clip (clip_norm=1.0), or skip such batches with Learner(on_nan='skip')",
            on_every_rank=True,
        )
