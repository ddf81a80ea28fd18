"""The one place where differentiation happens, and the only one in this package that touches `.grad`.

There are two ways. In one process `torch.autograd.grad` returns the gradients. Under DDP and FSDP only `.backward()`
runs the hooks that reduce gradients over the processes, so there they are moved out of `.grad` afterwards. Either way
`.grad` is afterwards what it was before.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stoker._select import Models, Selector, modules_of, named_parameters, select_names
from stoker.distributed import place_like
from stoker.errors import NoSuchParameter, NotDifferentiable, WrongType
from stoker.gradients._gradients import Gradients

# What `torch.autograd.grad` calls after 20 µs of checks. Private; tests compare the results with those of `backward`.
_run_backward: Any = torch.autograd.graph._engine_run_backward

# The derivatives of losses with respect to themselves. Never freed: a CUDA graph that has read one reads it again.
_ones: dict[tuple[torch.dtype, torch.device], Tensor] = {}


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

    A parameter that the loss does not depend on is absent. `wrt` selects some of the parameters. Several models are
    given as a mapping or a list: `backward(loss, {"encoder": encoder, "decoder": decoder})` names a parameter
    `encoder.0.weight`. `retain_graph` keeps the graph for another call, `create_graph` makes the gradients
    differentiable themselves, both as in torch.

    Under DDP give the wrapped model, `backward(loss, ddp)`, alone, compiled or as a part of a module: the gradients
    are averaged over the processes. `backward(loss, ddp.module)` gives those of this process only.
    """
    _check_loss(loss)
    _reshard(model)
    parameters = named_parameters(model)
    trainable = _select_trainable(parameters, model, wrt)
    try:
        if loss.requires_grad and needs_backward(model, trainable.values()):
            tensors = _move_out_of_grad(
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
        _explain(error)
        raise
    return _name_gradients(tensors, trainable, parameters, model)


def backward_through_hooks(
    loss: Tensor,
    model: Models,
    parameters: dict[str, nn.Parameter],
    *,
    wrt: Selector | None = None,
    gradient: Tensor | None = None,
) -> Gradients:
    """`backward` by way of `.grad`, for models whose gradients are reduced by hooks that can't be detected.

    The gradients are those of the loss times `gradient`, if it is given. `parameters` are the model's own: between
    forward and backward a sharded model may hold others.
    """
    _check_loss(loss)
    trainable = _select_trainable(parameters, model, wrt)
    try:
        tensors = _move_out_of_grad(loss, model, parameters, trainable, gradient=gradient)
    except RuntimeError as error:
        _explain(error)
        raise
    return _name_gradients(tensors, trainable, parameters, model)


class Differentiator:
    """Computes gradients like `backward`, for many losses of one model: what can be looked up is looked up once.

    >>> model = torch.nn.Linear(2, 1)
    >>> differentiate = Differentiator(model)
    >>> differentiate(model(torch.ones(4, 2)).mean())["weight"]
    tensor([[1., 1.]])

    The model must keep its parameters. Which of them require gradients may change.
    """

    __slots__ = ("_inputs", "_is_local", "_model", "_names", "_parameters", "_requires_grad", "_values", "_wrt")

    def __init__(self, model: Models, wrt: Selector | None = None) -> None:
        self._model, self._wrt = model, wrt
        self._parameters = named_parameters(model)
        self._values = list(self._parameters.values())
        self._is_local = not needs_backward(model, self._values)
        self._select()

    def _select(self) -> None:
        """Selects the parameters that require gradients now."""
        self._requires_grad = [parameter.requires_grad for parameter in self._values]
        chosen = None if self._wrt is None else select_names(self._wrt, self._parameters, self._model)
        trainable = {
            name: parameter
            for name, parameter in self._parameters.items()
            if parameter.requires_grad and (chosen is None or name in chosen)
        }
        self._names, self._inputs = list(trainable), tuple(trainable.values())

    def __call__(self, loss: Tensor) -> Gradients:
        """The gradients of a loss. Frees its graph."""
        if self._requires_grad != [parameter.requires_grad for parameter in self._values]:
            self._select()
        if not self._is_ordinary(loss):
            return backward(loss, self._model, wrt=self._wrt)
        one = _ones.get((loss.dtype, loss.device))
        one = _create_one(loss) if one is None else one
        try:
            found = _run_backward((loss,), (one,), False, False, self._inputs, True, accumulate_grad=False)
        except RuntimeError as error:
            _explain(error)
            raise
        tensors = {
            name: match_layout(tensor, parameter)
            for name, tensor, parameter in zip(self._names, found, self._inputs, strict=True)
            if tensor is not None
        }
        if len(tensors) < len(self._names):
            self._check_parameters()
        return Gradients._of(tensors, self._parameters, self._model)

    def _is_ordinary(self, loss: Tensor) -> bool:
        """Whether the loss can be differentiated without further checks; `backward` handles all others."""
        return (
            self._is_local
            and isinstance(loss, Tensor)
            and loss.requires_grad
            and loss.dim() == 0
            and loss.is_floating_point()
            and bool(self._names)
            and not torch.compiler.is_compiling()
        )

    def _check_parameters(self) -> None:
        """Raises if a gradient is missing because its parameter was replaced."""
        now = named_parameters(self._model)
        for name, parameter in self._parameters.items():
            if now.get(name) is not parameter:
                raise NoSuchParameter(
                    f"the parameter {name!r} was replaced while the model was trained, and the optimizer trains the "
                    "old one; change it in place, under torch.no_grad()"
                )


def _create_one(loss: Tensor) -> Tensor:
    one = torch.ones((), dtype=loss.dtype, device=loss.device)
    if loss.device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return one  # belongs to the CUDA graph
        made = torch.cuda.Event()
        made.record(torch.cuda.current_stream(loss.device))
        made.synchronize()  # sync: once, then every stream may read it
    _ones[loss.dtype, loss.device] = one
    return one


def match_layout(tensor: Tensor, parameter: nn.Parameter) -> Tensor:
    """The gradient with its parameter's strides, as `.backward()` leaves it, so that sums add in one order."""
    tensor = place_like(tensor, parameter)
    if tensor.layout == torch.strided and tensor.stride() != parameter.stride():
        return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
    return tensor


def needs_backward(model: Models, parameters: Iterable[nn.Parameter]) -> bool:
    """Whether gradients are averaged over processes by hooks that only `.backward()` runs (DDP, FSDP)."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    replicated = any(isinstance(each, nn.parallel.DistributedDataParallel) for each in _all_modules(model))
    return replicated or _is_sharded(model, parameters)


def _all_modules(model: Models) -> Iterator[nn.Module]:
    """All modules, nested ones included: DDP may be compiled, or a part of something larger."""
    for each in modules_of(model):
        yield from each.modules()


def _is_sharded(model: Models, parameters: Iterable[nn.Parameter]) -> bool:
    # Looked up, not imported: a model can only be sharded by code that has imported these modules.
    tensor, fsdp = sys.modules.get("torch.distributed.tensor"), sys.modules.get("torch.distributed.fsdp")
    if tensor is not None and any(isinstance(parameter, tensor.DTensor) for parameter in parameters):
        return True
    return fsdp is not None and any(isinstance(each, fsdp.FullyShardedDataParallel) for each in _all_modules(model))


def _reshard(model: Models) -> None:
    """Makes FSDP2 modules hold their shards again: the outermost one holds whole parameters until the backward."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not torch.distributed.is_initialized():
        return
    for each in _all_modules(model):
        if isinstance(each, fsdp.FSDPModule):
            each.reshard()  # pyright: ignore[reportCallIssue]  a method of FSDPModule


def _select_trainable(
    parameters: dict[str, nn.Parameter], model: Models, wrt: Selector | None
) -> dict[str, nn.Parameter]:
    """The parameters to differentiate with respect to; at least one."""
    trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if wrt is not None:
        chosen = select_names(wrt, parameters, model)
        trainable = {name: parameter for name, parameter in trainable.items() if name in chosen}
    if not trainable:
        which = "" if wrt is None else f" that {wrt!r} selects"
        raise NotDifferentiable(f"all parameters{which} are frozen, so there are no gradients; use stoker.unfreeze")
    return trainable


def _move_out_of_grad(
    loss: Tensor,
    model: Models,
    parameters: dict[str, nn.Parameter],
    trainable: dict[str, nn.Parameter],
    *,
    gradient: Tensor | None = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> list[Tensor | None]:
    """Runs `.backward()` and takes the gradients from `.grad`; what was there before is put back."""
    everything = list(parameters.values())
    before = [parameter.grad for parameter in everything]
    for parameter in everything:
        parameter.grad = None
    try:
        # Naming the leaves keeps the `.grad` of other models as it is. With FSDP the leaves are not the parameters.
        leaves = None if _is_sharded(model, everything) else [each for each in everything if each.requires_grad]
        loss.backward(gradient, create_graph=create_graph, retain_graph=retain_graph, inputs=leaves)
        # The next backward overwrites views of a reduction bucket.
        are_views = any(getattr(each, "gradient_as_bucket_view", False) for each in _all_modules(model))
        return [
            parameter.grad.clone() if are_views and parameter.grad is not None else parameter.grad
            for parameter in trainable.values()
        ]
    finally:
        for parameter, grad in zip(everything, before, strict=True):
            parameter.grad = grad


def _name_gradients(
    tensors: Sequence[Tensor | None],
    trainable: dict[str, nn.Parameter],
    parameters: dict[str, nn.Parameter],
    model: Models,
) -> Gradients:
    """What autograd returned, by name; at least one."""
    found = {
        name: match_layout(tensor, parameter)
        for (name, parameter), tensor in zip(trainable.items(), tensors, strict=True)
        if tensor is not None
    }
    if not found:
        raise NotDifferentiable(
            f"the loss depends on none of the {len(trainable)} selected parameters: it was computed with another "
            "model, or detached from them (.detach(), .item(), numpy)"
        )
    return Gradients._of(found, parameters, model)


def _explain(error: RuntimeError) -> None:
    """Raises an error that explains torch's, for the two common mistakes."""
    if "backward through the graph a second time" in str(error):
        raise NotDifferentiable(
            "the graph of this loss was freed by an earlier backward: compute the loss again, "
            "or keep the graph with backward(..., retain_graph=True) the first time"
        ) from error
    if "modified by an inplace operation" in str(error):
        raise NotDifferentiable(
            "a tensor that this loss was computed from has changed since, most likely the weights, by a step: "
            "compute each loss after the step before it (in a train_step that yields: after that yield)"
        ) from error


def _check_loss(loss: Tensor) -> None:
    """Raises if the loss can't be differentiated."""
    if not isinstance(loss, Tensor):
        raise WrongType(f"the loss must be a tensor, got {type(loss).__name__}; for an output, pass its loss: out.loss")
    if loss.requires_grad and loss.numel() == 1 and loss.is_floating_point():
        return
    if loss.numel() != 1:
        raise NotDifferentiable(
            f"the loss must be one number, got shape {list(loss.shape)}; reduce it with .mean() or .sum()"
        )
    if not loss.is_floating_point():
        kind = str(loss.dtype).removeprefix("torch.")
        remedy = "take its real part or .abs()" if loss.is_complex() else "compute it in floats (.float() before)"
        raise NotDifferentiable(f"the loss has the dtype {kind}, which has no gradient: {remedy}")
    if not torch.is_grad_enabled() or loss.is_inference():
        raise NotDifferentiable(
            "the loss was computed under torch.no_grad() or inference_mode(), so it has no graph; "
            "compute it outside of that block"
        )
    raise NotDifferentiable(
        "the loss has no graph: it was computed through stoker.valid(model) or under torch.no_grad(), it was detached "
        "(.detach(), .item(), numpy, torch.tensor(...)), or all parameters of the model are frozen"
    )
