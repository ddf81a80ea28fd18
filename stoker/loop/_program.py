"""How a fit's batches go through the stations: chosen before it starts, with the reasons, and made when it does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

import torch
from torch import nn

from stoker.data import Loader
from stoker.errors import NotFinite
from stoker.gradients import needs_backward
from stoker.loop._fit import Fit
from stoker.loop._half import AFTER, Half
from stoker.loop._pins import heard
from stoker.loop._stations import Stations
from stoker.program import Captured, Compiled, Eager, Late, Plan, clear_workspaces, size

_INSIDE = ("on_train_batch_after_pred", "on_train_batch_after_loss")  # hooks that come before the gradients
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SHARE = 0.4  # of the device's free memory that data may take


def planned(fit: Fit) -> Plan:
    """The widest plan that is right for a fit, as far as that can be told before the first batch."""
    kind, compile = fit.device.type, fit.settings.compile
    wanted = "compiled" if compile else "captured"
    plan = Plan(wanted, wanted=wanted)
    if kind == "cpu" and not compile:
        return Plan("eager", wanted="compiled")
    if kind not in ("cpu", "cuda"):
        plan.narrow("eager", f"torch has no graphs for {kind}")
    for why in _reasons(fit):
        plan.narrow("eager", why)
    for why in _reasons_for_the_update(fit):
        plan.narrow("gradient" if plan.mode in ("compiled", "gradient") else "eager", why)
    return plan


def agreed(fit: Fit, plan: Plan) -> Plan:
    """A plan that all ranks can have: all compile, or none does, because what they say to each other is another.

    So it is with the verdict about a step: all wait for it, or nobody does.
    """
    fit.late = plan.mode == "eager" and _hears_late(fit)
    if fit.world.size == 1:
        return plan
    said = fit.world.all_gather((plan.mode, plan.why))
    fit.late = fit.world.all(fit.late)
    rank, (mode, why) = next((each for each in enumerate(said) if each[1][0] == "eager"), (0, said[0]))
    if mode != plan.mode:
        plan.mode, plan.why = mode, f"rank {rank} can't: {why}"
    if fit.shared is not None and mode != "eager":
        fit.shared.reduce_after_backward()
    return plan


def _listeners(fit: Fit, milestones: Sequence[str]) -> Iterator[str]:
    for milestone in milestones:
        for callback in fit.hooks.listeners(milestone):
            yield f"{type(callback).__name__}.{milestone} comes between forward and step"


def _reasons_for_the_update(fit: Fit) -> Iterator[str]:
    """Why only what comes before the update can be a program."""
    if fit.world.size > 1:
        yield f"{fit.world.size} processes add their gradients up between backward and step"
    yield from _listeners(fit, AFTER)
    if not fit.optimizer.is_functional:
        yield f"{fit.optimizer!r} is an optimizer of its own, which steps as it likes"


def _reasons(fit: Fit) -> Iterator[str]:
    yield from _listeners(fit, _INSIDE)
    if fit.scaler is not None:
        yield "precision='fp16' looks at every update to find its scale; bf16 needs none"
    if fit.settings.on_nan == "skip":
        yield "on_nan='skip' looks at every batch before it goes on"
    if fit.sharded or fit.parallel.mode == "fsdp" or needs_backward(fit.model, fit.model.parameters()):
        yield "the model is distributed over processes"
    if any(getattr(module, "sparse", False) is True for module in fit.model.modules()):
        yield "the gradients of an embedding are sparse, and as many as there are different rows in a batch"
    yield from heard(fit.model)
    if any(tensor.device != fit.device for tensor in (*fit.model.parameters(), *fit.model.buffers())):
        yield "the model is on several devices"
    if any(hasattr(module, "_orig_mod") for module in fit.model.modules()) and fit.settings.compile:
        yield "the model is compiled already"


def _hears_late(fit: Fit) -> bool:
    """Whether gradients are added up over processes and nothing else keeps a step from being one program.

    Then the host need not wait for a verdict either: the next step is started while this one runs.
    """
    alone = fit.shared is None or fit.own_windows or fit.scaler is not None or fit.settings.on_nan == "skip"
    if alone or fit.device.type != "cuda" or not fit.optimizer.skips_on_device:
        return False
    away = any(tensor.device != fit.device for tensor in (*fit.model.parameters(), *fit.model.buffers()))
    return not away and next(_listeners(fit, (*_INSIDE, *AFTER)), None) is None


@contextmanager
def programmed(fit: Fit) -> Iterator[None]:
    """While it is open, the fit has its program, and the data is where that wants it."""
    train, valid, told = fit.train, dict(fit.valid), fit.plan_lines
    stations, device = Stations(fit), torch.cuda.device(fit.device) if fit.device.type == "cuda" else nullcontext()
    if fit.step.mode == "eager":
        fit.program = Late(stations, fit.step, fit.device) if fit.late else Eager(stations, fit.step)
    elif fit.step.mode == "gradient":
        fit.program = Compiled(Half(fit), fit.step)
    elif fit.device.type == "cuda":
        fit.program = Captured(stations, fit.step, fit.device)
    else:
        fit.program = Compiled(stations, fit.step, narrower=lambda: Half(fit))
    if fit.device.type == "cuda":
        _settle_data(fit)
    near = fit.device.type == "cpu" or fit.train is not train  # the columns are where the program runs
    fit.picks = (
        near and fit.step.mode != "eager" and fit.train.has_row_selections and not fit.hooks.has("on_train_batch_begin")
    )
    told = _tell(fit, told)
    try:
        with device, fit.program.fitting():  # streams and events are the current device's
            yield
            fit.program.settle()
    except BaseException as error:
        if not isinstance(error, NotFinite):
            with suppress(Exception):  # what is on its way is told; a late verdict only says what can be saved
                fit.program.abandon() if isinstance(fit.program, Late) else fit.program.settle()
        raise
    finally:
        fit.program, fit.picks = None, False
        fit.train.close()  # what was prepared for an epoch that does not come
        fit.train, fit.valid = train, valid
        _tell(fit, told)
        if fit.device.type == "cuda":
            torch.cuda.synchronize(fit.device)
            clear_workspaces()  # with the graphs' memory, which nobody else could use


def tell_plan(fit: Fit) -> None:
    """Where something else was asked for than can be done, that is said once the fit has begun."""
    if fit.settings.compile and fit.step.why:
        fit.ctx.warn(fit.step.complaint)
    tried = fit.device.type == "cuda" and torch.backends.cudnn.benchmark
    if tried and fit.saver is not None and any(isinstance(module, _CONVOLUTIONS) for module in fit.model.modules()):
        fit.ctx.warn(
            "torch.backends.cudnn.benchmark is on: cuDNN chooses kernels by their time, and another process may find "
            "others the fastest, so that this run, once resumed, may go on to other bits; set it to False if it mustn't"
        )


def _tell(fit: Fit, told: list[str]) -> list[str]:
    """What the run's facts say of the plan, where that has changed."""
    if fit.tell_facts is not None and fit.plan_lines != told:
        fit.tell_facts({"plan": fit.plan_lines})
    return fit.plan_lines


def _settle_data(fit: Fit) -> None:
    """Data that fits stays on the device for the length of the fit."""
    room = int(torch.cuda.mem_get_info(fit.device)[0] * _SHARE)
    far = fit.train
    fit.train, fit.step.data = _near(far, fit, room)
    room -= 0 if fit.train is far else fit.train.nbytes or 0
    for name, loader in fit.valid.items():
        near, _ = _near(loader, fit, room)
        room -= 0 if near is loader else near.nbytes or 0
        fit.valid = {**fit.valid, name: near}


def _near(loader: Loader, fit: Fit, room: int) -> tuple[Loader, str]:
    if loader.nbytes is None:
        return loader, "batches are copied to the device while the step before runs"
    if loader.nbytes > room:
        return loader, f"{size(loader.nbytes)} do not fit into {size(room)} of the device: batches are copied ahead"
    try:
        return loader.resident(fit.device), f"{size(loader.nbytes)} stay on the device, where batches are gathered"
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return loader, f"{size(loader.nbytes)} did not fit on the device: batches are copied ahead"
