"""The contract of executors, and those that run a step operation by operation."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from stoker.engine._batch import Batch
from stoker.engine._step import StepResult, TrainStep
from stoker.engine._undo import free_cached_memory

_LAUNCHES_IN_FLIGHT = 2  # of one step or of several: the device never waits for the host, and a NaN is noticed soon

PoolContext = Callable[[], AbstractContextManager[None]]


class SpanResult(NamedTuple):
    """How far an executor has come with a span."""

    batches: int
    updates: int


class Executor:
    """Runs training steps. A subclass defines `run`, and the other methods if it has anything in flight or cached."""

    # Updates that `run_span` takes at most. 1: spans are not supported, or not yet, because a program is missing.
    longest_span = 1

    def __init__(self, step: TrainStep) -> None:
        self._step = step

    def run(self, batch: Batch, lr: Any) -> StepResult:
        """Runs one batch. The device may still be computing when it returns."""
        raise NotImplementedError

    def run_span(self, first: Batch, rows: Tensor, rates: Sequence[Any]) -> SpanResult:
        """Runs batches like `first` of these rows, [batches, samples], with a learning rate for each update.

        It may end early, where the host has to look at a batch: after one of weight 0, which is not an update. A value
        that is not finite raises `NotFinite`, at once or later, and no step from that batch on changes the weights.
        """
        raise NotImplementedError

    def synchronize(self) -> None:
        """Waits for the finite checks of all steps in flight; raises `NotFinite` if one has failed."""

    def drain(self) -> tuple[int, int] | None:
        """After an exception: like `synchronize`, but returns the position of the first bad batch. Sends no message."""
        return None

    def invalidate(self) -> None:
        """A callback may have changed the model: before the next step, programs are compared with it again."""
        self._step.refresh()

    def share_graph_pool(self) -> AbstractContextManager[PoolContext]:
        """Lets validation allocate in the memory pool of CUDA graphs: each batch runs in `with use_pool():`."""
        return nullcontext(nullcontext)

    def free_memory(self) -> bool:
        """After memory ran out: frees what the next step can do without; True if the same batch may fit now."""
        return free_cached_memory(self._step.device)

    def close(self) -> None:
        """Frees what the executor has allocated."""


class Eager(Executor):
    """Runs each operation as it comes, and checks values before it returns."""

    def __init__(self, step: TrainStep) -> None:
        super().__init__(step)
        self.run = step.run_eagerly  # without a call between


class StepsInFlight:
    """Steps that run without reading values on the host, oldest first, until the host has read their finite checks.

    Steps are numbered from 1 since the last bad one. `flag_per_step`: with several ranks each one has to see the flag
    of the same step, so each step has its own. A CUDA graph always writes to the same one.
    """

    def __init__(self, step: TrainStep, device: torch.device, *, flag_per_step: bool) -> None:
        self._step, self._device = step, device
        self.number = 0  # of the newest step
        self._batches: deque[tuple[int, Batch]] = deque()  # of steps that are not known to be finite, with numbers
        self._launches = 0
        self._events = [torch.cuda.Event() for _ in range(_LAUNCHES_IN_FLIGHT + 1)]
        self._flags = [torch.zeros(()).pin_memory() for _ in (self._events if flag_per_step else self._events[:1])]
        self._pending: deque[tuple[torch.cuda.Event, Tensor, int]] = deque()  # launches, with the newest step of each

    def add(self, batch: Batch) -> None:
        """Numbers a step that is about to be launched."""
        self.number += 1
        self._batches.append((self.number, batch))

    def wait_for_room(self) -> None:
        """Waits until another launch may be in flight; raises `NotFinite` if a step was not finite."""
        while len(self._pending) >= _LAUNCHES_IN_FLIGHT:
            self._check_oldest()

    def send_flag(self) -> None:
        """Copies the flag of the step that is being launched to the host."""
        flag = self._flags[(self._launches + 1) % len(self._flags)]
        flag.copy_(self._step.device_guard.nonfinite, non_blocking=True)

    def note_launch(self) -> None:
        """Notes that all steps that were added have been launched."""
        self._launches += 1
        event = self._events[self._launches % len(self._events)]
        event.record(torch.cuda.current_stream(self._device))
        self._pending.append((event, self._flags[self._launches % len(self._flags)], self.number))

    def check_all(self) -> None:
        """Waits for all launches; raises `NotFinite` if a step was not finite."""
        while self._pending:
            self._check_oldest()

    def drain(self) -> tuple[int, int] | None:
        """Waits for all launches; returns the position of the first bad step. Runs nothing again, sends no message."""
        while self._pending:
            if not self._wait_for_oldest():
                return self._take_first_bad().position
        return None

    def _check_oldest(self) -> None:
        if not self._wait_for_oldest():
            self._raise_first_bad()

    def _wait_for_oldest(self) -> bool:
        """Whether all steps of the oldest launch were finite."""
        event, flag, number = self._pending.popleft()
        event.synchronize()
        if flag.item() == 0:  # on the host: the device is not asked
            while self._batches and self._batches[0][0] <= number:
                self._batches.popleft()
            return True
        for event, _, _ in self._pending:
            event.synchronize()
        self._pending.clear()
        for flag in self._flags:
            flag.zero_()
        return False

    def _raise_first_bad(self) -> NoReturn:
        self._step.diagnose(self._take_first_bad())

    def _take_first_bad(self) -> Batch:
        """The batch of the first step that was not finite; starts again after it."""
        first_bad = self._step.device_guard.first_bad_step
        self._step.device_guard.clear()
        batch = next(batch for number, batch in self._batches if number == first_bad)
        self.number = 0
        self._batches.clear()
        return batch


class DeferredEager(Executor):
    """Runs each operation as it comes, and checks values later: the next step starts while this one runs.

    For several processes on GPUs, whose gradients are reduced between backward and update.
    """

    def __init__(self, step: TrainStep, device: torch.device) -> None:
        super().__init__(step)
        self._in_flight = StepsInFlight(step, device, flag_per_step=True)
        self.synchronize = self._in_flight.check_all
        self.drain = self._in_flight.drain

    def run(self, batch: Batch, lr: Any) -> StepResult:
        """Runs one batch; the first one is checked at once, because it creates the optimizer's state."""
        step, in_flight = self._step, self._in_flight
        if not step.is_initialized(batch):
            in_flight.check_all()  # a batch after a bad one must not change the weights
            return step.run(batch, lr, step.host_guard)
        in_flight.wait_for_room()
        step.rates.set(lr)  # its optimizers take tensors (`plan.defers_check`)
        in_flight.add(batch)
        result = step.run(batch, lr, step.device_guard)
        step.device_guard.end_step()
        in_flight.send_flag()
        in_flight.note_launch()
        return result
