"""The one place where differentiation happens, and the only one in this package that touches `.grad`.

There are two ways. Usually autograd returns the gradients, as `torch.autograd.grad` does. Hooks that reduce gradients
over processes (DDP, FSDP) and hooks that users register on parameters need `.backward()`; then the gradients are moved
out of `.grad`. Either way `.grad` is afterwards what it was before.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from stoker._select import Models, Selector, modules_of, named_parameters, select_names
from stoker.distributed import is_dtensor, place_like
from stoker.errors import NoSuchParameter, NotDifferentiable, WrongType
from stoker.gradients._gradients import Gradients

# What `torch.autograd.grad` calls after 20 µs of checks. Private; tests compare the results with those of `.backward`.
_run_backward: Any = torch.autograd.graph._engine_run_backward

_REENTRANT = (
    "the model uses reentrant activation checkpointing, whose gradients autograd leaves in .grad only: call "
    "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
)

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
    return Differentiator(model, wrt)(loss, create_graph=create_graph, retain_graph=retain_graph)


class Differentiator:
    """Computes gradients like `backward`, for many losses of one model: what can be looked up is looked up once.

    >>> model = torch.nn.Linear(2, 1)
    >>> differentiate = Differentiator(model)
    >>> differentiate(model(torch.ones(4, 2)).mean())["weight"]
    tensor([[1., 1.]])

    The model must keep its parameters. Which of them require gradients may change. `has_reducing_hooks` says that the
    gradients are reduced by hooks that can't be detected; `parameters` are the model's own, for a sharded model that
    may hold others between forward and backward.
    """

    def __init__(
        self,
        model: Models,
        wrt: Selector | None = None,
        *,
        parameters: dict[str, nn.Parameter] | None = None,
        has_reducing_hooks: bool = False,
    ) -> None:
        self._model, self._wrt = model, wrt
        self._parameters = named_parameters(model) if parameters is None else parameters
        self._has_reducing_hooks = has_reducing_hooks or needs_backward(model, self._parameters.values())
        self._requires_grad: list[bool] | None = None
        self._names: list[str] = []
        self._inputs: tuple[nn.Parameter, ...] = ()
        self._strides: list[tuple[int, ...] | None] = []  # of the inputs; None for one that is sharded or sparse
        self._checked: set[str] | None = None  # the parameters that had a gradient when others had none

    def __call__(
        self,
        loss: Tensor,
        *,
        gradient: Tensor | None = None,
        create_graph: bool = False,
        retain_graph: bool | None = None,
    ) -> Gradients:
        """The gradients of a loss, times `gradient` if it is given. Frees the loss's graph unless it is kept."""
        requires_grad = [parameter.requires_grad for parameter in self._parameters.values()]
        if requires_grad != self._requires_grad:
            self._select(requires_grad)
        if not (isinstance(loss, Tensor) and loss.requires_grad and loss.dim() == 0 and loss.is_floating_point()):
            _check_loss(loss)
            loss = loss.squeeze()
        keep = create_graph if retain_graph is None else retain_graph
        try:
            if self._has_reducing_hooks or _have_hooks(self._inputs):
                found = self._move_out_of_grad(loss, gradient, keep, create_graph)
            elif type(loss) is not Tensor or gradient is not None or torch.compiler.is_compiling():
                found = torch.autograd.grad(loss, self._inputs, gradient, keep, create_graph, allow_unused=True)
            else:
                one = _ones.get((loss.dtype, loss.device))
                one = _create_one(loss) if one is None else one
                found = _run_backward((loss,), (one,), keep, create_graph, self._inputs, True, accumulate_grad=False)
        except RuntimeError as error:
            _explain(error)
            raise
        tensors: dict[str, Tensor] = {}
        for name, tensor, strides in zip(self._names, found, self._strides, strict=True):
            if tensor is not None:
                is_alike = type(tensor) is Tensor and tensor.layout == torch.strided and tensor.stride() == strides
                tensors[name] = tensor if is_alike else match_layout(tensor, self._parameters[name])
        if len(tensors) < len(self._names) and tensors.keys() != self._checked:
            self._check_missing(tensors, loss)
            self._checked = set(tensors)
        return Gradients._of(tensors, self._parameters, self._model)

    def _select(self, requires_grad: list[bool]) -> None:
        """Selects the parameters to differentiate with respect to; at least one."""
        chosen = None if self._wrt is None else select_names(self._wrt, self._parameters, self._model)
        trainable = {
            name: parameter
            for name, parameter in self._parameters.items()
            if parameter.requires_grad and (chosen is None or name in chosen)
        }
        if not trainable:
            which = "" if self._wrt is None else f" that {self._wrt!r} selects"
            raise NotDifferentiable(f"all parameters{which} are frozen, so there are no gradients; use stoker.unfreeze")
        self._names, self._inputs, self._requires_grad = list(trainable), tuple(trainable.values()), requires_grad
        self._strides = [each.stride() if _is_plain(each) else None for each in self._inputs]

    def _move_out_of_grad(
        self, loss: Tensor, gradient: Tensor | None, retain_graph: bool, create_graph: bool
    ) -> list[Tensor | None]:
        """Runs `.backward()` and takes the gradients from `.grad`; what was there before is put back."""
        parameters = list(self._parameters.values())
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            # Naming the leaves keeps the `.grad` of other models as it is. With FSDP the leaves are not the parameters.
            is_sharded = _is_sharded(self._model, parameters)
            leaves = None if is_sharded else [parameter for parameter in parameters if parameter.requires_grad]
            loss.backward(gradient, create_graph=create_graph, retain_graph=retain_graph, inputs=leaves)
            # The next backward overwrites views of a reduction bucket.
            are_views = any(getattr(module, "gradient_as_bucket_view", False) for module in _all_modules(self._model))
            grads = [parameter.grad for parameter in self._inputs]
            return [grad.clone() if are_views and grad is not None else grad for grad in grads]
        finally:
            for parameter, grad in zip(parameters, before, strict=True):
                parameter.grad = grad

    def _check_missing(self, tensors: dict[str, Tensor], loss: Tensor) -> None:
        """Raises if gradients are missing for another reason than that the loss does not depend on them all."""
        now = {} if self._has_reducing_hooks else named_parameters(self._model)
        for name, parameter in self._parameters.items():
            if now.get(name, parameter) is not parameter:
                raise NoSuchParameter(
                    f"the parameter {name!r} was replaced while the model was trained, and the optimizer trains the "
                    "old one; change it in place, under torch.no_grad()"
                )
        if _uses_reentrant_checkpoint(loss):
            raise NotDifferentiable(_REENTRANT)
        if not tensors:
            raise NotDifferentiable(
                f"the loss depends on none of the {len(self._names)} selected parameters: it was computed with another "
                "model, or detached from them (.detach(), .item(), numpy)"
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


def _is_plain(parameter: Tensor) -> bool:
    return parameter.layout == torch.strided and not is_dtensor(parameter)


def _have_hooks(parameters: Iterable[Any]) -> bool:
    """Whether a user has registered hooks on parameters: those for after accumulation, or for several gradients."""
    for parameter in parameters:  # noqa: SIM110 - runs at every backward pass, and is faster than any()
        if parameter._post_accumulate_grad_hooks or parameter._backward_hooks:
            return True
    return False


def needs_backward(model: Models, parameters: Iterable[nn.Parameter]) -> bool:
    """Whether gradients are averaged over processes by hooks that only `.backward()` runs (DDP, FSDP)."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    replicated = any(isinstance(module, nn.parallel.DistributedDataParallel) for module in _all_modules(model))
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
    for module in _all_modules(model):
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()  # pyright: ignore[reportCallIssue]  a method of FSDPModule


def _uses_reentrant_checkpoint(loss: Tensor) -> bool:
    """Whether autograd does not see the parameters of a checkpointed module."""
    nodes: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while nodes:
        node = nodes.pop()
        if node not in seen:
            if node.name() == "CheckpointFunctionBackward":
                return True
            seen.add(node)
            nodes += [function for function, _ in node.next_functions]
    return False


_EXPLANATIONS = {
    "Checkpointing is not compatible with .grad()": _REENTRANT,
    "backward through the graph a second time": "the graph of this loss was freed by an earlier backward: compute the "
    "loss again, or keep the graph with backward(..., retain_graph=True) the first time. State that is carried from "
    "batch to batch has to be detached: self.hidden.copy_(hidden.detach())",
    "modified by an inplace operation": "a tensor that this loss was computed from has changed since, most likely the "
    "weights, by a step: compute each loss after the step before it (in a train_step that yields: after that yield). A "
    "buffer that the model reads and then writes has to be read as a copy: self.hidden.clone()",
}


def _explain(error: RuntimeError) -> None:
    """Raises an error that explains torch's, for common mistakes."""
    for text, explanation in _EXPLANATIONS.items():
        if text in str(error):
            raise NotDifferentiable(explanation) from error


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
