"""Other tensors in the place of a fit's: stand-ins while its step is traced, and a new home for the optimizer's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker.loop._fit import Fit
from stoker.optim import Optimizer
from stoker.program import Verdict

Slot = tuple[dict[str, Any], str]  # a module's table of parameters or buffers, and a name in it


def slots_in(modules: Sequence[nn.Module]) -> list[Slot]:
    """Where modules keep their tensors."""
    tables = [table for module in modules for table in (module._parameters, module._buffers)]
    return [(table, name) for table in tables for name, tensor in table.items() if tensor is not None]


@contextmanager
def lent(
    fit: Fit,
    modules: Sequence[nn.Module],
    verdict: Verdict,
    stand_ins: Mapping[int, Tensor],
    *,
    update: bool = True,
) -> Iterator[None]:
    """While it is open, `stand_ins` (by the ids of the real tensors) are what everybody finds, the update as well."""
    with ExitStack() as stack:
        written = {name: stand_ins[id(parameter)] for name, parameter in named_parameters(fit.model).items()}
        leaves = _put(slots_in(modules), stand_ins, stack)
        for module in modules:
            if isinstance(module, nn.RNNBase):  # keeps a list of its weights beside the table
                weights = [leaves.get(id(each)) for each in module._flat_weights]
                _set(stack, module, "_flat_weights", weights)
                _set(stack, module, "_flat_weight_refs", [each if each is None else ref(each) for each in weights])
        _set(stack, fit, "differentiators", {})
        if update:
            _lend_update(fit, stand_ins, written, leaves, stack)
        for name in ("poison", "good", "empty"):
            _set(stack, verdict, name, stand_ins[id(getattr(verdict, name))])
        yield


def _lend_update(
    fit: Fit,
    stand_ins: Mapping[int, Tensor],
    written: Mapping[str, Tensor],
    leaves: Mapping[int, Tensor],
    stack: ExitStack,
) -> None:
    """Of the optimizer, which writes to parameters and to its state, and of the average of the weights."""
    state = [
        {name: {key: stand_ins.get(id(each), each) for key, each in own.items()} for name, own in rule.items()}
        for rule in fit.optimizer.state_tensors()
    ]
    # The optimizer writes to what the graph is given; the modules read leaves of autograd that share its memory.
    twin = fit.optimizer.with_tensors(named_parameters(fit.model), written, state)
    _set(stack, fit, "optimizer", twin)
    if fit.average is not None:
        pairs = [[leaves[id(each)].detach() for each in side] for side in fit.average._pairs]
        _set(stack, fit.average, "_pairs", tuple(pairs))


def _put(slots: Sequence[Slot], stand_ins: Mapping[int, Tensor], stack: ExitStack) -> dict[int, Tensor]:
    """Fills the modules' tables; gives what stands there now, by the ids of the real ones."""
    leaves: dict[int, Tensor] = {}
    for table, name in slots:
        real = table[name]
        if id(real) not in leaves:
            stand_in = stand_ins[id(real)]
            leaves[id(real)] = stand_in.detach().requires_grad_() if real.requires_grad else stand_in
        stack.callback(_take_back, table, name, leaves[id(real)], real)
        table[name] = leaves[id(real)]
    return leaves


def _take_back(table: dict[str, Any], name: str, stand_in: Tensor, real: Tensor) -> None:
    """The real tensor again; what the step has put there instead stays, for whoever asks what it has changed."""
    if table.get(name) is stand_in:
        table[name] = real


def _set(stack: ExitStack, thing: object, name: str, value: Any) -> None:
    stack.callback(setattr, thing, name, getattr(thing, name))
    setattr(thing, name, value)


def settled_in(optimizer: Optimizer) -> None:
    """The state of an optimizer away from its device and back, where it lies close together afterwards."""
    kept = [{name: dict(own) for name, own in rule.items()} for rule in optimizer.state_tensors()]
    places = [own for rule in kept for own in rule.values()]
    devices = [{key: each.device for key, each in own.items() if each is not None} for own in places]
    for own in places:
        own.update({key: each.cpu() for key, each in own.items() if each is not None})
    optimizer.replace_state(kept)
    torch.cuda.empty_cache()
    for own, there in zip(places, devices, strict=True):
        own.update({key: each.to(there[key]) for key, each in own.items() if each is not None})
    optimizer.replace_state(kept)
