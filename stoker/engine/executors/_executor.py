"""The contract of executors, and the one that is always right: eager."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from stoker.engine._batch import Batch
from stoker.engine._step import StepResult, TrainStep
from stoker.engine.executors._plan import Plan
from stoker.errors import NotFinite

_REMEMBERED_STEPS = 32  # whose finite check may still be pending
_STEPS_IN_FLIGHT = 2  # the device never waits for the host, and a NaN is noticed soon

PoolContext = Callable[[], AbstractContextManager[None]]


class Executor(Protocol):
    """Runs training steps: one operation after the other, as a CUDA graph, or compiled."""

    plan: Plan

    def run(self, batch: Batch, lr: Any) -> StepResult:
        """Runs one batch. The device may still be computing when it returns."""
        ...

    def synchronize(self) -> None:
        """Waits until every step is known to be finite; raises `NotFinite` if one is not."""
        ...

    def drain(self) -> tuple[int, int] | None:
        """Waits for steps in flight after an exception; returns the position of one that is not finite."""
        ...

    def invalidate(self) -> None:
        """Tells the executor that a callback may have changed the model or anything else."""
        ...

    def share_graph_pool(self) -> AbstractContextManager[PoolContext]:
        """Lets validation allocate in the memory pool of CUDA graphs. Yields a context manager to use for a batch."""
        ...

    def close(self) -> None:
        """Frees what the executor has allocated."""
        ...


class Eager:
    """Runs each operation as it comes."""

    def __init__(self, step: TrainStep, plan: Plan) -> None:
        self._step, self.plan = step, plan
        self.run = step.run

    def synchronize(self) -> None:
        """Nothing is in flight: a step has checked its values when it returns."""

    def drain(self) -> None:
        """Nothing is in flight."""

    def invalidate(self) -> None:
        """Nothing but the list of modules is cached."""
        self._step.refresh()

    def share_graph_pool(self) -> AbstractContextManager[PoolContext]:
        """All memory is shared anyway."""
        return nullcontext(nullcontext)

    def close(self) -> None:
        """Nothing to free."""


class StepInFlight(NamedTuple):
    """A step that was started, and whose finite check the host has not read yet."""

    number: int
    batch: Batch


class StepLog:
    """Numbers the steps that run without reading values, so that the batch of a bad one can be found."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self.number = 0  # of steps since the flags were cleared
        self._recent: deque[StepInFlight] = deque(maxlen=_REMEMBERED_STEPS)

    def add(self, batch: Batch) -> None:
        """Counts a step that is about to start."""
        self.number += 1
        self._recent.append(StepInFlight(self.number, batch))

    def forget_until(self, number: int) -> None:
        """Drops the batches of steps that are known to be finite."""
        while self._recent and self._recent[0].number <= number:
            self._recent.popleft()

    def take_first_bad(self) -> Batch:
        """The batch of the first step that was not finite; starts again after it."""
        number = self._step.flags.first_bad_step
        self._step.flags.clear()
        bad = next(each.batch for each in self._recent if each.number == number)
        self.number = 0
        self._recent.clear()
        return bad

    def raise_first_bad(self) -> NoReturn:
        """Runs the bad batch again to find the origin of the values that are not finite, and raises."""
        bad = self.take_first_bad()
        try:
            self._step.diagnose(bad)
        except NotFinite as error:
            error.position = bad.position
            raise


class StepQueue:
    """Steps that a GPU has not finished yet, as far as the host knows, oldest first.

    `flag_per_step`: with several ranks, each has to see the flag of the same step, so each step has its own flag.
    A CUDA graph always writes to the same one.
    """

    def __init__(self, device: torch.device, *, flag_per_step: bool) -> None:
        self._device, self._started = device, 0
        self._events = [torch.cuda.Event() for _ in range(_STEPS_IN_FLIGHT + 1)]
        self._flags = [torch.zeros(()).pin_memory() for _ in (self._events if flag_per_step else self._events[:1])]
        self._steps: deque[tuple[torch.cuda.Event, Tensor, int]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def is_full(self) -> bool:
        """Whether one step has to finish before another may start."""
        return len(self._steps) >= _STEPS_IN_FLIGHT

    def send_flag(self, nonfinite: Tensor) -> None:
        """Copies the flag of the step that is being started to the host."""
        self._flags[(self._started + 1) % len(self._flags)].copy_(nonfinite, non_blocking=True)

    def add(self, number: int) -> None:
        """Notes that all steps up to this number have been started."""
        self._started += 1
        event = self._events[self._started % len(self._events)]
        event.record(torch.cuda.current_stream(self._device))
        self._steps.append((event, self._flags[self._started % len(self._flags)], number))

    def wait_for_oldest(self) -> int | None:
        """The number up to which all steps were finite; None if one was not."""
        event, flag, number = self._steps.popleft()
        event.synchronize()
        if flag.item() == 0:  # on the host: the device is not asked
            return number
        for event, _, _ in self._steps:
            event.synchronize()
        self._steps.clear()
        for each in self._flags:
            each.zero_()
        return None


class DeferredEager:
    """Runs each operation as it comes, and checks values later: the next step starts while this one runs.

    For several processes on GPUs, whose gradients are reduced between backward and update.
    """

    def __init__(self, step: TrainStep, plan: Plan, device: torch.device) -> None:
        self._step, self.plan = step, plan
        self._log, self._queue = StepLog(step), StepQueue(device, flag_per_step=True)

    def run(self, batch: Batch, lr: Any) -> StepResult:
        """Runs one batch; the first one is checked at once, because it creates the optimizer's state."""
        step = self._step
        if not step.has_begun:
            return step.run(batch, lr)
        while self._queue.is_full:
            self._check_oldest()
        if not step.constant_rates:
            step.rates.set(lr)
        self._log.add(batch)
        result = step.run(batch, lr, sync=False)
        step.flags.end_step()
        self._queue.send_flag(step.flags.nonfinite)
        self._queue.add(self._log.number)
        return result

    def _check_oldest(self) -> None:
        number = self._queue.wait_for_oldest()
        if number is None:
            self._log.raise_first_bad()
        self._log.forget_until(number)

    def synchronize(self) -> None:
        """Waits for all steps in flight."""
        while self._queue:
            self._check_oldest()

    def drain(self) -> tuple[int, int] | None:
        """Waits for all steps in flight without a message to other ranks, which may be elsewhere."""
        while self._queue:
            if self._queue.wait_for_oldest() is None:
                return self._log.take_first_bad().position
        return None

    def invalidate(self) -> None:
        """Nothing but the list of modules is cached."""
        self._step.refresh()

    def share_graph_pool(self) -> AbstractContextManager[PoolContext]:
        """All memory is shared anyway."""
        return nullcontext(nullcontext)

    def close(self) -> None:
        """Nothing to free."""
