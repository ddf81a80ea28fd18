"""`GradientWindows`: micro-batches add up to the gradients of an update."""

from typing import Any, Literal

from stoker.engine._batch import Batch
from stoker.engine._forward_loss import LossTerm, StepResult
from stoker.engine._guard import Decision, Guard, HostGuard
from stoker.engine._state import TrainState
from stoker.engine._update import Update
from stoker.gradients import Accumulator, GradientReducer, Gradients


class GradientWindows:
    """Adds up gradients in a window for each objective, and applies them when it closes.

    `reducer`: each rank has windows of its own, which are reduced over ranks when they close.
    """

    def __init__(self, state: TrainState, update: Update, reducer: GradientReducer | None) -> None:
        self._state, self._update, self._reducer = state, update, reducer

    def add(
        self,
        grads: Gradients,
        loss: LossTerm,
        batch: Batch,
        lr: Any,
        guard: Guard,
        result: StepResult,
        *,
        reduction: Literal["mean", "sum"],
    ) -> Decision:
        """Adds the gradients of a micro-batch, after a check, so that an error names it; closes the window if due."""
        window = self._state.accumulators.get(loss.name)
        if window is None or window.reduction != reduction:
            before, window = window, Accumulator(reduction)
            self._state.accumulators[loss.name] = window
            if before is not None and (count := len(before)):  # whose losses did not show what they are
                window.add(before.take(), weight=count)
        if self._reducer is None:
            decision = guard.check(grads, loss, None, batch)
        else:
            assert isinstance(guard, HostGuard)
            decision, grads = guard.check_share(grads, loss, batch)
        if decision == "apply":
            is_plain_sum = reduction == "sum" and not batch.is_padding
            window.add(grads, weight=1 if is_plain_sum else loss.weight)
        if batch.closes_window and len(window):
            self._close(window, batch, lr, guard, result)
        return decision

    def close(self, batch: Batch, lr: Any, guard: Guard, result: StepResult) -> None:
        """Applies all windows that have anything in them."""
        for window in self._state.accumulators.values():
            if len(window):
                self._close(window, batch, lr, guard, result)

    def _close(self, window: Accumulator, batch: Batch, lr: Any, guard: Guard, result: StepResult) -> None:
        if self._reducer is not None:
            grads, weight = self._reducer.reduce_window(window)
        else:
            weight, grads = window.weight, window.take()
        self._update.apply(grads, LossTerm(None, None, weight), batch, lr, guard, result)
