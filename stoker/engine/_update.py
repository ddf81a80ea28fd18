"""`Update` applies gradients to the weights. Nothing else in a step writes weights."""

from contextlib import nullcontext

import torch
from torch import Tensor

from stoker.callbacks import Context, Hooks
from stoker.engine._batch import Batch
from stoker.engine._forward_loss import LossTerm, StepResult
from stoker.engine._guard import Decision, Guard
from stoker.engine._replayable import pretend_compiling
from stoker.engine._settings import Settings
from stoker.engine._state import TrainState
from stoker.engine._totals import copy_all
from stoker.gradients import Gradients

_NO_CONTEXT = nullcontext()


class Update:
    """Clips gradients and applies them, if the guard accepts them.

    `is_compiled`: the update is part of a compiled program, and eager updates of the fit use the same operations.
    """

    def __init__(self, settings: Settings, state: TrainState, hooks: Hooks, ctx: Context, *, is_compiled: bool) -> None:
        self._settings, self._state, self._hooks, self._ctx = settings, state, hooks, ctx
        self._is_compiled = is_compiled
        self._has_hooks = hooks.has("on_train_batch_after_step")

    def apply(
        self, grads: Gradients, loss: LossTerm, batch: Batch, lr: object, guard: Guard, result: StepResult
    ) -> Decision:
        """Applies gradients, and notes that in the result."""
        settings, norms = self._settings, self._state.gradient_norms
        needs_norm = settings.clip_norm is not None or norms or guard.needs_norm
        norm = grads.norm() if needs_norm else None
        decision = guard.check(grads, loss, norm, batch)
        if decision != "apply":
            # On a GPU a batch of weight 0 counts as an update: a CUDA graph can't tell the host in time.
            if isinstance(loss.weight, Tensor) and loss.weight.device.type != "cpu" and bool(loss.weight == 0):
                result.updated = True
            return decision
        if settings.clip_value is not None:
            grads = grads.clip_value(settings.clip_value)
        if settings.clip_norm is not None:
            grads = grads.clip_norm(settings.clip_norm, norm=norm if settings.clip_value is None else None)
        if norm is not None and norms:
            self._add_norm(norm, guard.allowed)
        with pretend_compiling() if self._is_compiled else _NO_CONTEXT:
            self._state.optimizer.step(grads, lr=guard.rates(lr), when=guard.allowed)
        if self._has_hooks:
            self._hooks.fire("on_train_batch_after_step", self._ctx)
        result.updated = result.moved = True
        return decision

    def end_batch(self, guard: Guard, result: StepResult) -> None:
        """Updates the EMA if the optimizer has run in this batch."""
        if self._state.ema is not None and result.moved:
            self._state.ema.update(guard.allowed)

    def _add_norm(self, norm: Tensor, allowed: Tensor | None) -> None:
        """Adds the gradient norm of an update; if the device allows no update, nothing changes."""
        targets, values = list[Tensor](), list[Tensor]()
        for meter, state in self._state.gradient_norms.items():
            for name, new in meter.update(state, norm).items():
                targets.append(state[name])
                values.append(new if allowed is None else torch.where(allowed, new, state[name]))
        copy_all(targets, values)
