"""`Plan`: how the training step of a fit runs, and why not in a faster way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from stoker._select import has_compiled_modules
from stoker.distributed import find_blocks, is_sharded
from stoker.engine._replayable import find_user_hooks
from stoker.engine._step import HOOKS_AFTER_GRADIENTS, HOOKS_BEFORE_GRADIENTS
from stoker.gradients import needs_backward

if TYPE_CHECKING:
    from stoker.engine._fit import Fit

StepMode = Literal["eager", "compiled_backward", "captured", "compiled"]

_DESCRIPTIONS = {
    "eager": "eager, one operation after the other",
    "compiled_backward": "compiled up to the gradients: forward and backward are one program, and the update comes "
    "after it",
    "captured": "captured: forward, backward, update and metrics are one CUDA graph of the eager operations",
    "compiled": "compiled: forward, backward, update and metrics are one program",
}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass
class Plan:
    r"""The mode of a training step, why it is not a faster one, and notes for the user.

    >>> plan = Plan("eager", reason="Log.on_train_batch_after_loss comes between forward and step")
    >>> print(*plan.lines(), sep="\n")
    step       eager, one operation after the other
               not captured: Log.on_train_batch_after_loss comes between forward and step
    """

    mode: StepMode
    reason: str = ""  # why it is not a faster one
    wanted: StepMode = "captured"  # the faster one that `reason` is about
    defers_check: bool = False  # an eager step does not wait for the finite check, on any rank
    data: str = ""  # where the data is
    notes: list[str] = field(default_factory=list)  # shapes, memory, seconds of compilation

    @property
    def is_eager(self) -> bool:
        """Whether the step runs operation by operation, without a program."""
        return self.mode == "eager"

    @property
    def is_compiled(self) -> bool:
        """Whether torch's compiler makes the programs; otherwise they repeat the eager operations."""
        return self.mode in ("compiled", "compiled_backward")

    @property
    def ends_with_gradients(self) -> bool:
        """Whether a program computes the gradients, and the update follows eagerly."""
        return self.mode == "compiled_backward"

    @property
    def warning(self) -> str:
        """What to tell a user who requested a faster mode."""
        how = "is compiled up to the gradients only" if self.ends_with_gradients else f"runs {self.mode}"
        return f"the training step {how}, not {self.wanted} as requested: {self.reason}"

    def lines(self) -> list[str]:
        """The plan as text."""
        lines = [f"step       {_DESCRIPTIONS[self.mode]}"]
        if self.reason:
            lines.append(f"           not {self.wanted}: {self.reason}")
        if self.data:
            lines.append(f"data       {self.data}")
        return [*lines, *(f"           {note}" for note in self.notes)]

    def fall_back(self, mode: StepMode, reason: str) -> None:
        """Takes a slower mode. Of several reasons for the same mode the first one is kept."""
        if mode != self.mode or not self.reason:
            self.reason = reason
        self.mode = mode


def plan_fit(fit: "Fit") -> Plan:
    """The fastest plan that is right for a fit on this rank, as far as it is known before the first batch."""
    compile, device = fit.settings.compile, fit.device.type
    if device == "cpu" and not compile:
        return Plan("eager", wanted="compiled")
    wanted: StepMode = "compiled" if compile else "captured"
    plan = Plan(wanted, wanted=wanted)
    if compile and _has_compiled_blocks(fit):
        plan.mode = "eager"
        plan.notes.append("the blocks of the sharded model are compiled, each by itself: messages come between them")
    elif reason := next(_reasons_against_replay(fit), ""):
        plan.fall_back("eager", reason)
    elif reason := next(_reasons_against_update(fit), ""):
        plan.fall_back("compiled_backward" if compile else "eager", reason)
    elif compile and not fit.step.compiles_update:
        plan.mode = "compiled_backward" if device == "cpu" else "compiled"
        plan.notes.append("the update is one fused kernel, which is not compiled")
    plan.defers_check = plan.is_eager and _can_defer_check(fit)
    return plan


def agree_on_plan(fit: "Fit", plan: Plan) -> Plan:
    """A plan that all ranks can have: their messages depend on it, so all compile or none does."""
    world = fit.ranks.world
    if world.size == 1:
        return plan
    plans = world.all_gather((plan.mode, plan.reason))
    plan.defers_check = world.all(plan.defers_check)
    rank = next((rank for rank, (mode, _) in enumerate(plans) if mode == "eager"), 0)
    mode, reason = plans[rank]
    if mode != plan.mode:
        plan.mode, plan.reason = mode, f"rank {rank} can't: {reason}"
    if fit.step.reducer is not None and not plan.is_eager:
        fit.step.reducer.reduce_after_backward()
    return plan


def warn_about_plan(fit: "Fit") -> None:
    """Warns if a plan was requested that the fit can't have, and if a resumed run may not give the same bits."""
    if fit.settings.compile and fit.plan.reason:
        fit.ctx.warn(fit.plan.warning)
    benchmarks = fit.device.type == "cuda" and torch.backends.cudnn.benchmark and fit.checkpointer.is_active
    if benchmarks and any(isinstance(module, _CONVOLUTIONS) for module in fit.state.model.modules()):
        fit.ctx.warn(
            "torch.backends.cudnn.benchmark is on: cuDNN chooses kernels by their time, and another process may choose "
            "others, so that a resumed run may not give the same bits; set it to False to prevent that"
        )


def _listeners(fit: "Fit", names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for callback in fit.hooks.listeners(name):
            yield f"{type(callback).__name__}.{name} comes between forward and step"


def _reasons_against_replay(fit: "Fit") -> Iterator[str]:
    """Yields why the step can only run eagerly."""
    model = fit.state.model
    if fit.device.type not in ("cpu", "cuda"):
        yield f"torch has no graphs for {fit.device.type}"
    yield from _listeners(fit, HOOKS_BEFORE_GRADIENTS)
    if fit.state.loss_scale is not None:
        yield "precision='fp16' reads every update to find its scale; bf16 needs none"
    if fit.settings.on_nan == "skip":
        yield "on_nan='skip' reads every batch before it continues"
    is_distributed = fit.ranks.model_is_distributed or fit.parallel.mode == "fsdp"
    if is_distributed or needs_backward(model, model.parameters()):
        yield (
            "the model is distributed over processes, and sends messages inside of its forward and backward pass; call "
            "compile() of its blocks before the fit to compile those"
        )
    if any(getattr(module, "sparse", False) is True for module in model.modules()):
        yield "the gradients of an embedding are sparse: their size differs from batch to batch"
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout != torch.strided:
            yield f"{name!r} is a tensor with the layout {tensor.layout}, which has no address in memory"
    yield from find_user_hooks(model)
    if _is_on_other_devices(fit):
        yield "the model is on several devices"
    if any(hasattr(module, "_orig_mod") for module in model.modules()) and fit.settings.compile:
        yield "the model is compiled already"


def _has_compiled_blocks(fit: "Fit") -> bool:
    """Whether stoker shards the model and compiles its blocks; in a dry run, whether it would."""
    model, parallel = fit.state.model, fit.parallel
    if parallel.mode != "fsdp":
        return False
    return has_compiled_modules(model) if is_sharded(model) else bool(find_blocks(model, parallel.wrap))


def _reasons_against_update(fit: "Fit") -> Iterator[str]:
    """Yields why only the part before the update can be compiled."""
    size, optimizer = fit.ranks.world.size, fit.state.optimizer
    if size > 1:
        yield f"{size} processes add up their gradients between backward and step"
    yield from _listeners(fit, HOOKS_AFTER_GRADIENTS)
    if not optimizer.is_functional:
        yield f"{optimizer!r} wraps an optimizer with its own step"
    elif fit.step.rates.are_constants and fit.step.rates_vary:
        yield f"{optimizer!r} reads the learning rate on the host, and it may differ from update to update"
    elif fit.step.rates.are_constants and fit.settings.compile:
        yield f"{optimizer!r} reads the learning rate on the host"


def _can_defer_check(fit: "Fit") -> bool:
    """Whether reducing gradients over processes is all that keeps a step from being a CUDA graph.

    Then the host need not wait for the finite check either: the next step starts while this one runs.
    """
    reads_values = fit.state.loss_scale is not None or fit.settings.on_nan == "skip"
    if fit.step.reducer is None or fit.step.reduces_windows or reads_values:
        return False
    if fit.device.type != "cuda" or not fit.state.optimizer.skips_on_device or _is_on_other_devices(fit):
        return False
    return next(_listeners(fit, (*HOOKS_BEFORE_GRADIENTS, *HOOKS_AFTER_GRADIENTS)), None) is None


def _is_on_other_devices(fit: "Fit") -> bool:
    model = fit.state.model
    return any(tensor.device != fit.device for tensor in (*model.parameters(), *model.buffers()))
