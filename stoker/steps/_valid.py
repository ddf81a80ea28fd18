"""`valid(model)`: the model as validation wants it, without ever switching the model itself."""

from typing import TypeVar, cast

from torch import nn

from stoker.errors import WrongType
from stoker.steps._graphless import last_viewed
from stoker.steps._shadow import Shadow, View, origin_of, unwrapped

M = TypeVar("M", bound=nn.Module)


def valid(model: M) -> M:
    """A view of the model: the same parameters and buffers, in eval mode, without autograd.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    >>> judge = valid(model)
    >>> judge(torch.ones(1, 3)).requires_grad, judge.training, model.training
    (False, False, True)
    >>> judge[0].weight is model[0].weight
    True

    The model's own flags never change, so it may train in another thread meanwhile. A view follows its model: it sees
    every update, and submodules and attributes that come later. All that is reached through it is a view as well
    (`judge[0]`, the model's own methods), and a forward that turns autograd on for itself, with `torch.enable_grad()`,
    has it. Of a compiled or a DDP model it is a view of the module inside: it runs eagerly and without collectives.

    That goes for modules in plain attributes too: in containers and namespaces (which are seen as copies), functions,
    weak references and ordinary objects, up to three in one another. A submodule that code reaches in another way,
    through an object with `__slots__` or one of C code, a global or an attribute of a class, is the model's own, in
    training mode.
    """
    if not isinstance(model, nn.Module):
        raise WrongType(f"valid() makes a view of a torch.nn.Module; got {_described(model)}")
    if isinstance(model, Shadow):
        return model
    view = View(unwrapped(model)[0]).of(model)
    for _ in view.modules():  # all of them now: one that can't be viewed is refused here, not in a forward
        pass
    return cast(M, view)


def was_viewed(model: nn.Module) -> bool:
    """Whether the view that ran last in this thread was of this model, or of a part of it.

    >>> import torch
    >>> model, other = nn.ReLU(), nn.ReLU()
    >>> loss = valid(model)(torch.ones(2)).sum()
    >>> was_viewed(model), was_viewed(other)
    (True, False)

    For the text of an error about a loss without a graph; it keeps nothing alive.
    """
    last = last_viewed()
    return last is not None and any(origin_of(module) is last for module in model.modules())


def _described(given: object) -> str:
    return f"the class {given.__name__}, not an instance of it" if isinstance(given, type) else type(given).__name__
