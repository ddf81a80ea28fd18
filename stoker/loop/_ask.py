"""Asking the model: a batch in, one loss or several out, with the hooks on the way."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stoker.callbacks import mixed_loss
from stoker.errors import WrongType
from stoker.loop._fit import Fit
from stoker.loop._forward import as_forward
from stoker.loop._level import level_loss
from stoker.loop._precision import forward_in
from stoker.loop._tally import samples_in, weight_in
from stoker.steps import Objective, Output, SupervisedOutput


class Asked(NamedTuple):
    """A loss to differentiate: with respect to which part (None: all), and how much it stands for."""

    part: str | None
    loss: Tensor
    weight: float | Tensor


@dataclass(slots=True)
class BareLoss:
    """The output of a step that gave nothing but a loss."""

    loss: Tensor


def asked(fit: Fit) -> Iterator[Asked]:
    """The losses of the current batch, one after the other; the caller steps before it asks for the next."""
    if not fit.model.training:  # it came so, or a callback forgot; parts that the user keeps in eval mode stay so
        fit.model.train()
    if fit.settings.on_nan == "skip":
        fit.buffers = [buffer.detach().clone() for buffer in fit.model.buffers()]
    answers = _ask_default(fit) if fit.supervised is not None else _ask_model(fit)
    return _unnoticed(fit, answers) if fit.ctx.is_padding else answers


def _unnoticed(fit: Fit, answers: Iterator[Asked]) -> Iterator[Asked]:
    """A ghost's losses: running statistics see nothing of its one sample, which batch norm could not normalise."""
    norms = [module for module in fit.model.modules() if isinstance(module, _BatchNorm) and module.training]
    for module in norms:
        module.training = False
    try:
        yield from answers
    finally:
        for module in norms:
            module.training = True


def _through(fit: Fit, call: Callable[[], Any]) -> Any:
    """A forward of this rank's share of the batch."""
    assert fit.shared is not None
    try:
        return fit.shared.through(call)
    except ValueError as error:
        if samples_in(fit.ctx.batch) == 1:
            error.add_note(
                f"rank {fit.world.rank}'s share of this batch is one sample, too few for batch norm: "
                "choose another batch_size, or Loader(..., drop_last=True)"
            )
        raise


def _ask_default(fit: Fit) -> Iterator[Asked]:
    ctx, step = fit.ctx, fit.supervised
    assert step is not None
    assert step.loss is not None
    parts = step.parts(ctx.batch)
    with forward_in(fit.settings.precision, fit.device):
        if fit.shared is None:
            ctx.pred = fit.model(*parts.args, **parts.kwargs)
        else:
            level_loss(fit)
            ctx.pred = _through(fit, lambda: fit.model(*parts.args, **parts.kwargs))
    fit.hooks.fire("on_train_batch_after_pred", ctx)
    with forward_in(fit.settings.precision, fit.device):
        if ctx.loss_mix is None:
            plain = parts.targets is not None and parts.weight is None
            ctx.output = step.judge(ctx.pred, parts, step.loss(ctx.pred, parts.targets) if plain else None)
        else:
            other, share = ctx.loss_mix
            loss = mixed_loss(step.loss, ctx.pred, parts.targets, other, share, sample_weight=parts.weight)
            ctx.output = SupervisedOutput(loss, ctx.pred, parts.targets, parts.weight)
    ctx.loss = ctx.output.loss
    yield from _told(fit, None, weight_in(ctx.output, ctx.batch, read=fit.verdict is None))


def _ask_model(fit: Fit) -> Iterator[Asked]:
    ctx = fit.ctx
    with forward_in(fit.settings.precision, fit.device):
        if fit.shared is None:
            answer = fit.model.train_step(ctx.batch)  # pyright: ignore[reportCallIssue]
        else:
            step: Any = fit.model.train_step
            answer = _through(fit, lambda: as_forward(fit.model, step, ctx.batch))
    if isinstance(answer, Generator):
        yield from _ask_for_objectives(fit, answer)
        return
    ctx.output = as_output(answer, fit.model)
    ctx.pred = getattr(ctx.output, "predictions", None)
    fit.hooks.fire("on_train_batch_after_pred", ctx)
    ctx.loss = ctx.output.loss
    yield from _told(fit, None, weight_in(ctx.output, ctx.batch, read=fit.verdict is None))


def _ask_for_objectives(fit: Fit, step: Generator[Any, Any, Any]) -> Iterator[Asked]:
    ctx, weight = fit.ctx, samples_in(fit.ctx.batch)
    ctx.output = None
    while True:
        try:
            with forward_in(fit.settings.precision, fit.device):
                objective = next(step) if fit.shared is None else as_forward(fit.model, next, step)
        except StopIteration as end:
            ctx.output = None if end.value is None else as_output(end.value, fit.model)
            return
        objective = as_objective(objective, fit.model)
        ctx.loss = objective.loss
        yield from _told(fit, objective.name, weight)


def _told(fit: Fit, part: str | None, weight: float | Tensor) -> Iterator[Asked]:
    """The loss as the hooks have left it; counted when it has been used, unless it was refused."""
    fit.hooks.fire("on_train_batch_after_loss", fit.ctx)
    loss = fit.ctx.loss
    if not isinstance(loss, Tensor):
        raise WrongType(
            f"a callback set ctx.loss to {type(loss).__name__} in on_train_batch_after_loss; it has to stay a tensor"
        )
    fit.refused = False
    yield Asked(part, loss, 0 if fit.ctx.is_padding else weight)
    fit.refused = fit.refused or fit.ctx.is_padding
    if not fit.refused:
        is_sum, read = part is None and fit.reduce == "sum", fit.verdict is None
        fit.tally.add_loss(part or "loss", loss, weight, is_sum=is_sum, read=read)


def as_output(answer: Any, model: nn.Module, step: str = "train_step") -> Output:
    """What a step returned, as an output: anything with a loss, or the loss itself."""
    if isinstance(answer, Tensor):
        return BareLoss(answer)
    if isinstance(getattr(answer, "loss", None), Tensor):
        return answer
    raise WrongType(
        f"{type(model).__name__}.{step} returned {type(answer).__name__}; expected a loss (a tensor), an output "
        "with a .loss (such as stoker.ClassificationOutput), or objectives that it yields"
    )


def as_objective(objective: Any, model: nn.Module) -> Objective:
    """What a step yielded, which has to be an objective."""
    if isinstance(objective, Objective):
        return objective
    raise WrongType(
        f"{type(model).__name__}.train_step yielded {type(objective).__name__}; expected stoker.Objective(name, loss)"
    )
