"""The one place where differentiation happens, and the only one that touches `.grad`.

Two ways. On one process `torch.autograd.grad` returns the gradients. Under DDP and FSDP only `.backward()` runs the
hooks that reduce over the processes, so there the gradients are moved out of `.grad` after it. Either way `.grad`
is afterwards what it was before.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from stoker._select import Models, Selector, modules_of, named_parameters, select_names
from stoker.distributed import place_like
from stoker.errors import NotDifferentiable, WrongType
from stoker.gradients._gradients import Gradients
from stoker.steps import was_viewed


def backward(
    loss: Tensor,
    model: Models,
    *,
    wrt: Selector | None = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> Gradients:
    """The gradients of a loss with respect to a model's trainable parameters, as a value.

    >>> model = nn.Linear(2, 1)
    >>> grads = backward(model(torch.ones(4, 2)).mean(), model)
    >>> grads["weight"], model.weight.grad
    (tensor([[1., 1.]]), None)

    A parameter that the loss does not reach is absent. `wrt` limits them to the parameters that it chooses. Several
    models go in as a mapping or a list: `backward(loss, {"encoder": encoder, "decoder": decoder})` names them
    `encoder.0.weight`. `retain_graph` keeps the graph for another call, `create_graph` makes the gradients
    differentiable themselves; both mean what they mean in torch.

    Under DDP give the wrapped model, `backward(loss, ddp)`, alone, compiled or as a part of a module: the gradients
    are averaged over the processes. `backward(loss, ddp.module)` gives those of this process only.
    """
    _check(loss, model)
    _reshard(model)
    parameters = named_parameters(model)
    trainable = _asked_for(parameters, model, wrt)
    try:
        if loss.requires_grad and needs_backward(model, trainable.values()):
            tensors = _moved_out(
                loss, model, parameters, trainable, create_graph=create_graph, retain_graph=retain_graph
            )
        else:
            tensors = torch.autograd.grad(
                loss if loss.dim() == 0 else loss.squeeze(),
                list(trainable.values()),
                retain_graph=retain_graph,
                create_graph=create_graph,
                allow_unused=True,
            )
    except RuntimeError as error:
        ours = in_our_words(error)
        if ours is None:
            raise
        raise ours from error
    return _found(tensors, trainable, parameters, model)


def harvested(
    loss: Tensor,
    model: Models,
    parameters: dict[str, nn.Parameter],
    *,
    wrt: Selector | None = None,
    gradient: Tensor | None = None,
) -> Gradients:
    """`backward` by way of `.grad`, also where nothing in the model tells that its gradients are reduced by hooks.

    They are those of the loss times `gradient`, where it is given. `parameters` are the model's own: between forward
    and backward a sharded model may hold others.
    """
    _check(loss, model)
    trainable = _asked_for(parameters, model, wrt)
    try:
        tensors = _moved_out(loss, model, parameters, trainable, gradient=gradient)
    except RuntimeError as error:
        ours = in_our_words(error)
        if ours is None:
            raise
        raise ours from error
    return _found(tensors, trainable, parameters, model)


def _asked_for(parameters: dict[str, nn.Parameter], model: Models, wrt: Selector | None) -> dict[str, nn.Parameter]:
    """The parameters to differentiate with respect to; at least one."""
    trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if wrt is not None:
        chosen = select_names(wrt, parameters, model)
        trainable = {name: parameter for name, parameter in trainable.items() if name in chosen}
    if not trainable:
        chosen_text = "" if wrt is None else f" that {wrt!r} chooses"
        raise NotDifferentiable(
            f"all parameters{chosen_text} are frozen: nothing to differentiate with respect to; use stoker.unfreeze"
        )
    return trainable


def _found(
    tensors: Sequence[Tensor | None],
    trainable: dict[str, nn.Parameter],
    parameters: dict[str, nn.Parameter],
    model: Models,
) -> Gradients:
    """What autograd gave, by name; at least one."""
    found = {
        name: owned(tensor, parameter)
        for (name, parameter), tensor in zip(trainable.items(), tensors, strict=True)
        if tensor is not None
    }
    if not found:
        raise NotDifferentiable(
            f"the loss depends on none of the {len(trainable)} parameters asked for: it was computed with another "
            "model, or their outputs were detached on the way (.detach(), .item(), numpy)"
        )
    return Gradients._of(found, parameters, model)


def in_our_words(error: RuntimeError) -> NotDifferentiable | None:
    """What torch's error means, for the mistakes that people make."""
    if "backward through the graph a second time" in str(error):
        return NotDifferentiable(
            "the graph of this loss has been used already: compute the loss again, "
            "or keep the graph with backward(..., retain_graph=True) the first time"
        )
    if "modified by an inplace operation" in str(error):
        return NotDifferentiable(
            "something that this loss was computed from has changed since, most likely the weights, by a step: "
            "compute each loss after the step before it (in a train_step that yields: after that yield)"
        )
    return None


def owned(tensor: Tensor, parameter: nn.Parameter) -> Tensor:
    """The gradient in its parameter's layout, as `.backward()` would have left it, so that sums add in one order."""
    tensor = place_like(tensor, parameter)
    if tensor.layout == torch.strided and tensor.stride() != parameter.stride():
        return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
    return tensor


def needs_backward(model: Models, parameters: Iterable[nn.Parameter]) -> bool:
    """Whether gradients are averaged over processes by hooks that only `.backward()` runs (DDP, FSDP)."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    replicated = any(isinstance(each, nn.parallel.DistributedDataParallel) for each in _everywhere(model))
    return replicated or _sharded(model, parameters)


def _everywhere(model: Models) -> Iterator[nn.Module]:
    """All modules, also those inside of others: DDP may be compiled, or a part of something larger."""
    for each in modules_of(model):
        yield from each.modules()


def _sharded(model: Models, parameters: Iterable[nn.Parameter]) -> bool:
    # Not imported for the question: a model can only be sharded by code that has imported it already.
    tensor, fsdp = sys.modules.get("torch.distributed.tensor"), sys.modules.get("torch.distributed.fsdp")
    if tensor is not None and any(isinstance(parameter, tensor.DTensor) for parameter in parameters):
        return True
    return fsdp is not None and any(isinstance(each, fsdp.FullyShardedDataParallel) for each in _everywhere(model))


def _reshard(model: Models) -> None:
    """Gives a model of FSDP2 its own parameters back: its outermost ones stay unsharded from forward to backward."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not torch.distributed.is_initialized():
        return
    for each in _everywhere(model):
        if isinstance(each, fsdp.FSDPModule):
            each.reshard()  # pyright: ignore[reportCallIssue]  a method of FSDPModule


def _moved_out(
    loss: Tensor,
    model: Models,
    parameters: dict[str, nn.Parameter],
    trainable: dict[str, nn.Parameter],
    *,
    gradient: Tensor | None = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> list[Tensor | None]:
    """Gradients by way of `.grad`: what others left there is put aside, and put back."""
    everything = list(parameters.values())
    aside = [parameter.grad for parameter in everything]
    for parameter in everything:
        parameter.grad = None
    try:
        # Naming the leaves keeps other models on the way clean. FSDP can't: its leaves are not its parameters.
        leaves = None if _sharded(model, everything) else [each for each in everything if each.requires_grad]
        loss.backward(gradient, create_graph=create_graph, retain_graph=retain_graph, inputs=leaves)
        # A view into a reduction bucket is overwritten by the next backward: gradients that are kept need their own.
        views = any(getattr(each, "gradient_as_bucket_view", False) for each in _everywhere(model))
        return [
            parameter.grad.clone() if views and parameter.grad is not None else parameter.grad
            for parameter in trainable.values()
        ]
    finally:
        for parameter, grad in zip(everything, aside, strict=True):
            parameter.grad = grad


def _check(loss: Tensor, model: Models) -> None:
    """Refuses what has no gradient, with the reason and the remedy."""
    if not isinstance(loss, Tensor):
        raise WrongType(
            f"a loss is a tensor, got {type(loss).__name__}; of an output give its loss: backward(out.loss, …)"
        )
    if loss.requires_grad and loss.numel() == 1 and loss.is_floating_point():
        return
    if loss.numel() != 1:
        raise NotDifferentiable(
            f"the loss has shape {list(loss.shape)}; gradients are of one number: reduce it with .mean() or .sum()"
        )
    if not loss.is_floating_point():
        kind = str(loss.dtype).removeprefix("torch.")
        remedy = "take its real part or .abs()" if loss.is_complex() else "count in floats (.float() before, not after)"
        raise NotDifferentiable(f"the loss is of type {kind}, which has no gradient: {remedy}")
    if not torch.is_grad_enabled() or loss.is_inference():
        raise NotDifferentiable(
            "the loss was computed under torch.no_grad() or inference_mode(), so there is no graph: "
            "compute it outside of that block"
        )
    if any(was_viewed(each) for each in modules_of(model)):
        raise NotDifferentiable(
            "the loss was probably computed through stoker.valid(model), which has no autograd (call the model itself "
            "to train), or detached on the way (.detach(), .item(), numpy)"
        )
    raise NotDifferentiable(
        "the loss is attached to no graph: it was computed under torch.no_grad(), detached on the way "
        "(.detach(), .item(), numpy, torch.tensor(...)), or all parameters of the model were frozen"
    )
