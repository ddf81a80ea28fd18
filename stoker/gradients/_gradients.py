"""Gradients as a value: a mapping from parameter names to tensors that is moved, never shared."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker._select import Models, Selector, describe, named_parameters, parameter_names, select_names
from stoker.distributed import stored_values
from stoker.errors import (
    GradientsConsumed,
    InvalidArgument,
    NoSuchParameter,
    UnsupportedGradient,
    WrongType,
    did_you_mean,
)
from stoker.gradients._clip import clamped, finite, norm_factor, positive, scaled, single, total_norm


class Gradients(Mapping[str, Tensor]):
    """The gradients of a loss, by parameter name, in the model's order; `backward` makes them.

    >>> model = nn.Linear(2, 1)
    >>> grads = Gradients({"weight": torch.ones(1, 2), "bias": torch.ones(1)}, model)
    >>> grads["weight"].shape == grads[model.weight].shape
    True
    >>> bias = grads.take("bias")
    >>> list(grads), list(bias)
    (['weight'], ['bias'])

    They are moved, not shared: an optimizer's step, `take`, `scale`, `map`, `clip_norm`, `clip_value`, `+` and an
    accumulator use them up and give what is to be used from then on. Used-up ones are empty, and using them again
    raises `GradientsConsumed`, which says who had them. `clone`, `detach` and `to` make copies that share nothing.
    """

    __slots__ = ("_gone", "_model", "_parameters", "_tensors")

    def __init__(self, tensors: Mapping[str, Tensor], model: Models) -> None:
        parameters = named_parameters(model)
        for name, tensor in tensors.items():
            if name not in parameters:
                raise NoSuchParameter(f"{name!r} is no parameter of this model{did_you_mean(name, parameters)}")
            if tensor.shape != parameters[name].shape:
                given, expected = list(tensor.shape), list(parameters[name].shape)
                raise InvalidArgument(f"the gradient of {name!r} has shape {given}, the parameter {expected}")
        self._model = model
        self._parameters = parameters
        self._tensors = {name: tensors[name] for name in parameters if name in tensors}
        self._gone: list[str] = []  # who took gradients out, for the error that may follow

    @classmethod
    def _of(cls, tensors: dict[str, Tensor], parameters: dict[str, nn.Parameter], model: Models) -> "Gradients":
        """Without checks, for tensors that come from this room."""
        grads = cls.__new__(cls)
        grads._model, grads._parameters, grads._tensors, grads._gone = model, parameters, tensors, []
        return grads

    # --- as a mapping

    def __getitem__(self, key: str | Tensor) -> Tensor:
        if isinstance(key, str) and key in self._tensors:
            return self._tensors[key]
        name = self._own_name(key) if isinstance(key, str) else self._name_of(key)
        if name in self._tensors:
            return self._tensors[name]
        if not self._tensors and self._gone:
            raise self._consumed()
        if name in self._parameters:
            raise NoSuchParameter(f"{name!r} has no gradient here: {self._whereabouts()}")
        raise NoSuchParameter(f"{name!r} is no parameter of this model{did_you_mean(name, self._parameters)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, Tensor):
            return any(self._parameters[name] is key for name in self._tensors)
        return key in self._tensors or (isinstance(key, str) and self._own_name(key) in self._tensors)

    def __eq__(self, other: object) -> bool:
        return self is other  # a mapping would compare tensors element by element

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return id(self)

    def parameter(self, name: str) -> nn.Parameter:
        """The parameter that a gradient belongs to."""
        return self._parameters[name]

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the gradients belong to, in their order."""
        return [self._parameters[name] for name in self._tensors]

    def tensors(self) -> list[Tensor]:
        """The gradients themselves, in their order."""
        return list(self._tensors.values())

    # --- moving

    def use(self, by: str) -> dict[str, Tensor]:
        """Moves everything out, as an optimizer's step does; `by` names the user in later errors."""
        if not self._tensors:
            raise self._consumed()
        tensors, self._tensors = self._tensors, {}
        self._gone = [by]
        return tensors

    def take(self, selector: Selector) -> "Gradients":
        """Moves the chosen ones out: a module, a parameter, a name with everything below it, a glob, or a list."""
        if not self._tensors:
            raise self._consumed()
        here = {name: self._parameters[name] for name in self._tensors}
        try:
            chosen = select_names(selector, here, self._model)
        except NoSuchParameter:
            select_names(selector, self._parameters, self._model)  # misspelt: this one says so
            raise NoSuchParameter(f"{describe(selector)} chooses no gradient here: {self._whereabouts()}") from None
        taken = {name: self._tensors.pop(name) for name in here if name in chosen}
        self._gone.append(f"take({describe(selector)})")
        return self._of(taken, self._parameters, self._model)

    def _moved(self, by: str, change: Callable[[list[Tensor]], list[Tensor]]) -> "Gradients":
        tensors = self.use(f"{by}; what it returned is what to use now")
        changed = change(list(tensors.values()))
        return self._of(dict(zip(tensors, changed, strict=True)), self._parameters, self._model)

    # --- arithmetic: each uses these gradients up and returns the new ones

    def scale(self, factor: float | Tensor) -> "Gradients":
        """All of them times a number or a 0-d tensor. Uses these up."""
        factor = single(factor, "a factor") if isinstance(factor, Tensor) else factor
        return self._moved(f"scale({_short(factor)})", lambda tensors: scaled(tensors, factor))

    def clip_norm(self, limit: float, *, kind: float = 2.0, norm: Tensor | None = None) -> "Gradients":
        """All of them scaled down so that their norm together is at most `limit`. Uses these up.

        The numbers are those of `torch.nn.utils.clip_grad_norm_`. `norm` is their norm, where it is known already.
        """
        limit = positive(limit, "clip_norm")
        factor = norm_factor(self.norm(kind) if norm is None else norm, limit)
        return self._moved(f"clip_norm({limit})", lambda tensors: scaled(tensors, factor))

    def clip_value(self, limit: float) -> "Gradients":
        """Every element brought between -limit and limit. Uses these up."""
        limit = positive(limit, "clip_value")
        for name, tensor in self._tensors.items():
            if tensor.is_complex():
                raise UnsupportedGradient(
                    f"clip_value can't limit the complex gradient of {name!r}: complex numbers have no order; "
                    "use clip_norm, or take the real ones out and clip those"
                )
        return self._moved(f"clip_value({limit})", lambda tensors: clamped(tensors, limit))

    def map(self, function: Callable[[str, Tensor], Tensor]) -> "Gradients":
        """`function(name, tensor)` in place of every gradient. Uses these up."""
        names = list(self._tensors)
        return self._moved("map", lambda tensors: [function(*pair) for pair in zip(names, tensors, strict=True)])

    def __add__(self, other: "Gradients") -> "Gradients":
        """The sum of both, with whatever only one of them has. Uses both up."""
        if not isinstance(other, Gradients):
            return NotImplemented
        if other is self:
            raise InvalidArgument("gradients can't be added to themselves: use scale(2)")
        parameters = merged(self._parameters, other._parameters, "on each side")
        if not other._tensors:
            raise other._consumed()
        mine, theirs = self.use("+; the sum is what to use now"), other.use("+; the sum is what to use now")
        both = {name: mine[name] + theirs[name] if name in theirs else mine[name] for name in mine} | {
            name: theirs[name] for name in theirs if name not in mine
        }
        ordered = {name: both[name] for name in parameters if name in both}
        model = self._model if len(self._parameters) >= len(other._parameters) else other._model
        return self._of(ordered, parameters, model)

    def __radd__(self, other: Any) -> "Gradients":
        return self if isinstance(other, int) and other == 0 else NotImplemented  # where sum() starts

    # --- questions: nothing is used up, and nothing waits for the device

    def norm(self, kind: float = 2.0) -> Tensor:
        """The norm of all of them together, a 0-d tensor on their device."""
        if not self._tensors:
            raise self._consumed()
        return total_norm(self.tensors(), kind)

    def all_finite(self) -> Tensor:
        """Whether no element is infinite or NaN, a 0-d boolean tensor on their device."""
        if not self._tensors:
            raise self._consumed()
        return finite(self.tensors())

    # --- copies

    def clone(self) -> "Gradients":
        """A copy, to keep or to step twice with."""
        return self._copied(lambda tensor: tensor.clone())

    def detach(self) -> "Gradients":
        """A copy without a graph, of gradients made with `create_graph=True`."""
        return self._copied(lambda tensor: tensor.detach().clone())

    def to(self, *args: Any, **kwargs: Any) -> "Gradients":
        """A copy on another device or in another type, with `torch.Tensor.to`'s arguments."""
        return self._copied(lambda tensor: tensor.to(*args, **{**kwargs, "copy": True}))

    def _copied(self, copy: Callable[[Tensor], Tensor]) -> "Gradients":
        if not self._tensors:
            raise self._consumed()
        return self._of({name: copy(tensor) for name, tensor in self._tensors.items()}, self._parameters, self._model)

    # --- names and texts

    def _own_name(self, name: str) -> str:
        """The name here of a tied parameter that is looked up by another of its names."""
        if name in self._parameters:
            return name
        twins = [parameter for place, parameter in parameter_names(self._model) if place == name]
        return next((own for own, each in self._parameters.items() if twins and each is twins[0]), name)

    def _name_of(self, parameter: object) -> str:
        if not isinstance(parameter, Tensor):
            raise WrongType(f"gradients are looked up by name or by parameter, not by {type(parameter).__name__}")
        for name, each in self._parameters.items():
            if each is parameter:
                return name
        raise NoSuchParameter(f"{describe(parameter)} is no parameter of this model")

    def _whereabouts(self) -> str:
        if self._gone:
            return f"it was not reached by the loss, is frozen, or was moved out by {', '.join(self._gone)}"
        return "the loss does not depend on it, or it is frozen"

    def _consumed(self) -> GradientsConsumed:
        by = ", ".join(self._gone) or "nothing: there never were any"
        return GradientsConsumed(f"these gradients are used up (by {by}); make new ones with stoker.backward")

    def __repr__(self) -> str:
        if not self._tensors:
            return f"Gradients(used up by {', '.join(self._gone)})" if self._gone else "Gradients(none)"
        count = sum(tensor.numel() for tensor in self._tensors.values())
        width = max(map(len, self._tensors))
        lines = [f"Gradients of {len(self)} parameters, {count:,} elements, norm {float(self.norm().detach()):.4g}"]
        for name, tensor in self._tensors.items():
            size = f"norm {float(torch.linalg.vector_norm(stored_values(tensor).detach())):.4g}"
            kind = "sparse " if tensor.is_sparse else ""
            lines.append(
                f"  {name:<{width}}  {size:<15}  {kind}{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            )
        return "\n".join(lines[:33] + ([f"  … and {len(lines) - 33} more"] if len(lines) > 33 else []))


def merged(mine: dict[str, nn.Parameter], theirs: dict[str, nn.Parameter], where: str) -> dict[str, nn.Parameter]:
    """The parameters of both, in the order of whichever knows more; each has to be one parameter with one name."""
    more, less = (mine, theirs) if len(mine) >= len(theirs) else (theirs, mine)
    names = {id(parameter): name for name, parameter in more.items()}
    for name, parameter in less.items():
        if more.get(name, parameter) is not parameter:
            raise InvalidArgument(f"{name!r} is another parameter {where}: these are gradients of two models")
        other = names.setdefault(id(parameter), name)
        if other != name:
            raise InvalidArgument(
                f"{other!r} and {name!r} are two names of one parameter: give backward the same models, "
                "by the same names, for gradients that are added"
            )
    return {**more, **less}


def _short(factor: float | Tensor) -> str:
    return "a tensor" if isinstance(factor, Tensor) else f"{factor:g}"
