"""Chooses the plan of a fit, and where its data is kept on a GPU."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from stoker._text import format_size
from stoker.data import Loader
from stoker.engine._fingerprint import find_user_hooks
from stoker.engine._fit import Fit
from stoker.engine._step import HOOKS_AFTER_GRADIENTS, HOOKS_BEFORE_GRADIENTS
from stoker.engine.executors import Plan, choose_plan
from stoker.gradients import needs_backward

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SHARE_FOR_DATA = 0.4  # of the device's free memory


def plan_fit(fit: Fit) -> Plan:
    """The fastest plan that is right for a fit on this rank."""
    compile = fit.settings.compile
    if fit.device.type == "cpu" and not compile:
        return choose_plan("cpu", compile=False)
    plan = choose_plan(
        fit.device.type,
        compile=compile,
        against_replay=_reasons_against_replay(fit),
        against_update=_reasons_against_update(fit),
    )
    plan.defers_check = plan.mode == "eager" and _can_defer_check(fit)
    return plan


def agree_on_plan(fit: Fit, plan: Plan) -> Plan:
    """A plan that all ranks can have: their messages depend on it, so all compile or none does."""
    world = fit.ranks.world
    if world.size == 1:
        return plan
    found = world.all_gather((plan.mode, plan.reason))
    plan.defers_check = world.all(plan.defers_check)
    rank, (mode, reason) = next((each for each in enumerate(found) if each[1][0] == "eager"), (0, found[0]))
    if mode != plan.mode:
        plan.mode, plan.reason = mode, f"rank {rank} can't: {reason}"
    if fit.step.reducer is not None and mode != "eager":
        fit.step.reducer.reduce_after_backward()
    return plan


def _listeners(fit: Fit, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for callback in fit.hooks.listeners(name):
            yield f"{type(callback).__name__}.{name} comes between forward and step"


def _reasons_against_update(fit: Fit) -> Iterator[str]:
    """Why only the part before the update can be compiled."""
    size, optimizer = fit.ranks.world.size, fit.state.optimizer
    if size > 1:
        yield f"{size} processes add up their gradients between backward and step"
    yield from _listeners(fit, HOOKS_AFTER_GRADIENTS)
    if not optimizer.is_functional:
        yield f"{optimizer!r} wraps an optimizer with its own step"


def _reasons_against_replay(fit: Fit) -> Iterator[str]:
    """Why the step can only run eagerly."""
    model = fit.state.model
    yield from _listeners(fit, HOOKS_BEFORE_GRADIENTS)
    if fit.state.loss_scale is not None:
        yield "precision='fp16' reads every update to find its scale; bf16 needs none"
    if fit.settings.on_nan == "skip":
        yield "on_nan='skip' reads every batch before it continues"
    is_sharded = fit.ranks.model_is_distributed or fit.parallel.mode == "fsdp"
    if is_sharded or needs_backward(model, model.parameters()):
        yield "the model is distributed over processes"
    if any(getattr(module, "sparse", False) is True for module in model.modules()):
        yield "the gradients of an embedding are sparse: their size differs from batch to batch"
    yield from find_user_hooks(model)
    if _is_on_other_devices(fit):
        yield "the model is on several devices"
    if any(hasattr(module, "_orig_mod") for module in model.modules()) and fit.settings.compile:
        yield "the model is compiled already"


def _is_on_other_devices(fit: Fit) -> bool:
    model = fit.state.model
    return any(tensor.device != fit.device for tensor in (*model.parameters(), *model.buffers()))


def _can_defer_check(fit: Fit) -> bool:
    """Whether reducing gradients over processes is all that keeps a step from being a CUDA graph.

    Then the host need not wait for the finite check either: the next step starts while this one runs.
    """
    waits = fit.state.loss_scale is not None or fit.settings.on_nan == "skip"
    if fit.step.reducer is None or fit.step.sums_on_each_rank or waits:
        return False
    if fit.device.type != "cuda" or not fit.state.optimizer.skips_on_device or _is_on_other_devices(fit):
        return False
    return next(_listeners(fit, (*HOOKS_BEFORE_GRADIENTS, *HOOKS_AFTER_GRADIENTS)), None) is None


def warn_about_plan(fit: Fit) -> None:
    """Warns if a plan was requested that the fit can't have, and if a resumed run may not give the same bits."""
    if fit.settings.compile and fit.plan.reason:
        fit.ctx.warn(fit.plan.warning)
    benchmarks = fit.device.type == "cuda" and torch.backends.cudnn.benchmark and fit.checkpointer is not None
    if benchmarks and any(isinstance(module, _CONVOLUTIONS) for module in fit.state.model.modules()):
        fit.ctx.warn(
            "torch.backends.cudnn.benchmark is on: cuDNN chooses kernels by their time, and another process may choose "
            "others, so that a resumed run may not give the same bits; set it to False to prevent that"
        )


def place_data(fit: Fit) -> tuple[Loader, dict[str, Loader], str]:
    """The loaders of a fit on a GPU: data that fits stays on the device. Also describes where training data is."""
    free = int(torch.cuda.mem_get_info(fit.device)[0] * _SHARE_FOR_DATA)
    train, description = _place(fit.train, fit.device, free)
    free -= 0 if train is fit.train else train.nbytes or 0
    valid: dict[str, Loader] = {}
    for name, loader in fit.valid.items():
        valid[name], _ = _place(loader, fit.device, free)
        free -= 0 if valid[name] is loader else loader.nbytes or 0
    return train, valid, description


def _place(loader: Loader, device: torch.device, free: int) -> tuple[Loader, str]:
    if loader.nbytes is None:
        return loader, "batches are copied to the device while the step before runs"
    size = format_size(loader.nbytes)
    if loader.nbytes > free:
        return loader, f"{size} do not fit into {format_size(free)} of the device: batches are copied ahead"
    try:
        return loader.resident(device), f"{size} stay on the device, where batches are gathered"
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return loader, f"{size} did not fit on the device: batches are copied ahead"
