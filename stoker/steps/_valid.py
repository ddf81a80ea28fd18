"""`valid(model)`: a copy of the model in eval mode that shares its tensors.

Switching the model itself with `.eval()` would change it for a training in another thread, and `.train()` afterwards
forgets which parts were in eval mode before.
"""

import copy
import weakref
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, jit, nn
from torch.nn.parameter import is_lazy

from stoker._select import WRAPPERS
from stoker._tree import find_tensors
from stoker.distributed import to_local
from stoker.errors import InvalidArgument, WrongType

M = TypeVar("M", bound=nn.Module)


def valid(model: M) -> M:
    """A view of the model for validation: the same weights, in eval mode, without gradients.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    >>> view = valid(model)
    >>> view(torch.ones(1, 3)).requires_grad, view.training, model.training
    (False, False, True)
    >>> view[0].weight.data_ptr() == model[0].weight.data_ptr()
    True

    It is a `copy.deepcopy` of the model with the model's own tensors, on which `.eval()` was called. The model is never
    switched, so it may train in another thread meanwhile, and the view sees every update of its weights. What a forward
    pass sets on the view stays in the view; what it writes in place into a buffer, it writes into the model's, as after
    `model.eval()`. A view of a model that is compiled or wrapped for DDP is a view of the module inside: it runs
    eagerly and without collectives.

    The parameters of the view don't require gradients, so it records no graph. An input that does require gradients
    gets them through the view; call it under `torch.no_grad()` to prevent that.

    Calling the view raises `InvalidArgument` if a parameter or buffer of the model was replaced since
    (`load_state_dict(assign=True)`, another dtype or device): make a new view. Other changes of the model, such as new
    attributes and hooks, are not noticed; they need a new view too. Functions are not copied: closures and hooks that
    hold a module, compiled functions in attributes and weak references use the model's own module, in training mode.
    An `eval()` of yours that changes weights changes those of the model.

    Models that can't be deep-copied (sharded by FSDP, TorchScript, a lock or an open file in an attribute) are an
    error; for those call `model.eval()`, compute under `torch.no_grad()`, and call `model.train()`.
    """
    if not isinstance(model, nn.Module):
        given = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise WrongType(f"valid() takes an instance of torch.nn.Module; got {given}")
    if any(isinstance(hook, _CheckCurrent) and hook.model is not None for hook in model._forward_pre_hooks.values()):
        return model  # a view already
    origin = unwrap(model)
    tensors = find_tensors(origin)  # a list, because the memo of a deep copy does not keep them alive
    memo: dict[int, Any] = {id(tensor): _share(tensor) for tensor in tensors}
    try:
        for module in reversed(list(origin.modules())):  # inner ones first
            if isinstance(module, jit.ScriptModule):
                raise TypeError("the training flag of a TorchScript module is part of its code")
            if unwrap(module) is not module:
                memo[id(module)] = copy.deepcopy(unwrap(module), memo)
        view = copy.deepcopy(origin, memo)
    except Exception as error:
        raise _cannot_copy(origin, str(error)) from error
    check = _CheckCurrent(origin, [memo[id(tensor)] for tensor in _registered_tensors(origin)])
    if not check.has_same_tensors(view):
        raise _cannot_copy(origin, "a copy.deepcopy of it ignores the memo")
    for module in view.modules():
        vars(module).pop("_compiled_call_impl", None)  # set by `module.compile()`: it would run the model's own module
    view.eval()
    check.mode = view.training
    view.register_forward_pre_hook(check, prepend=True)
    return cast(M, view)


class _CheckCurrent:
    """The forward pre-hook of a view. In copies of the view, which have tensors of their own, it does nothing."""

    def __init__(self, model: nn.Module | None = None, tensors: Sequence[Tensor] = ()) -> None:
        self.model = None if model is None else weakref.ref(model)
        self._tensors = tensors
        self.mode = False  # `training` of the view; True if the model overrides `eval` in this way

    def __call__(self, view: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or self.model is None:
            return
        if view.training and not self.mode:
            raise InvalidArgument(
                f"a view is always in eval mode, and this {type(view).__name__} was switched to training; "
                "train the model itself, not what valid() returned for it"
            )
        model = self.model()
        if model is not None and not self.has_same_tensors(model):
            raise InvalidArgument(
                "a parameter or buffer of the model was added, removed or replaced since this view was made (by an "
                "assignment, by load_state_dict(assign=True), or by another dtype or device); make a new view with "
                "stoker.valid(model)"
            )

    def has_same_tensors(self, module: nn.Module) -> bool:
        tensors = _registered_tensors(module)
        return len(tensors) == len(self._tensors) and all(map(_have_same_memory, tensors, self._tensors))

    def __reduce__(self) -> Any:
        return _CheckCurrent, ()


def unwrap(module: nn.Module) -> nn.Module:
    """The user's module inside `torch.compile`, DDP and activation checkpointing."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            module = module.module
        elif (name := WRAPPERS.get(type(module).__name__)) is not None:
            module = getattr(module, name)
        else:
            return module


def _share(tensor: Tensor) -> Tensor:
    """The same memory as a tensor that does not require gradients; other tensors and buffers are returned unchanged."""
    if is_lazy(tensor):
        raise InvalidArgument("a parameter has no shape yet (a lazy module): run one batch through the model first")
    if not (isinstance(tensor, nn.Parameter) or tensor.requires_grad):
        return tensor
    shared = tensor.detach()
    if isinstance(tensor, nn.Parameter):
        if tensor.layout is not torch.strided:
            raise InvalidArgument(
                f"valid() can't share a parameter of the layout {tensor.layout}, whose updates replace its memory; "
                + _INSTEAD
            )
        shared = nn.Parameter(shared, requires_grad=False)
        if type(shared) is not type(tensor):
            shared.__class__ = type(tensor)  # a subclass of Parameter
    vars(shared).update({**vars(tensor), **vars(shared)})
    return shared


def _registered_tensors(model: nn.Module) -> list[Tensor]:
    members = [chain(module._parameters.values(), module._buffers.values()) for module in model.modules()]
    return [tensor for tensor in chain.from_iterable(members) if tensor is not None]


def _have_same_memory(a: Tensor, b: Tensor) -> bool:
    return a is b or to_local(a).data_ptr() == to_local(b).data_ptr()


_INSTEAD = "call model.eval(), compute under torch.no_grad(), and call model.train() afterwards"


def _cannot_copy(model: nn.Module, reason: str) -> InvalidArgument:
    return InvalidArgument(f"valid() can't copy this {type(model).__name__} ({reason}); {_INSTEAD}")


def clone_model(model: M) -> M:
    return copy.deepcopy(model)
