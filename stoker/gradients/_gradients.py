"""Gradients as a value: a mapping from parameter names to tensors that is consumed by whoever uses it.

Nothing here reads a value on the host, so nothing waits for the device. The arithmetic is torch's own, bit for bit.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from stoker._select import Models, Selector, describe, named_parameters, parameter_names, select_names
from stoker.distributed import map_shards, reduce_shards, stored_values
from stoker.errors import (
    GradientsConsumed,
    InvalidArgument,
    NoSuchParameter,
    UnsupportedGradient,
    WrongType,
    did_you_mean,
)


class Gradients(Mapping[str, Tensor]):
    """The gradients of a loss, by parameter name, in the model's order; `backward` makes them.

    >>> model = nn.Linear(2, 1)
    >>> grads = Gradients({"weight": torch.ones(1, 2), "bias": torch.ones(1)}, model)
    >>> grads["weight"].shape == grads[model.weight].shape
    True
    >>> bias = grads.take("bias")
    >>> list(grads), list(bias)
    (['weight'], ['bias'])

    An optimizer's step, `take`, `scale`, `map`, `clip_norm`, `clip_value`, `+` and an accumulator consume them and
    return what to use from then on. Consumed gradients are empty; using them again raises `GradientsConsumed`, which
    says what consumed them. `clone`, `detach` and `to` make copies that share no memory.
    """

    __slots__ = ("_consumers", "_model", "_parameters", "_tensors")

    def __init__(self, tensors: Mapping[str, Tensor], model: Models) -> None:
        parameters = named_parameters(model)
        for name, tensor in tensors.items():
            if name not in parameters:
                raise NoSuchParameter(f"this model has no parameter {name!r}{did_you_mean(name, parameters)}")
            if tensor.shape != parameters[name].shape:
                given, expected = list(tensor.shape), list(parameters[name].shape)
                raise InvalidArgument(f"the gradient of {name!r} has shape {given}, and the parameter has {expected}")
        self._model = model
        self._parameters = parameters
        self._tensors = {name: tensors[name] for name in parameters if name in tensors}
        self._consumers: list[str] = []  # what has taken gradients, for error messages

    @classmethod
    def _of(cls, tensors: dict[str, Tensor], parameters: dict[str, nn.Parameter], model: Models) -> "Gradients":
        """Without checks: the tensors are those that autograd has computed for these parameters, in their order."""
        grads = cls.__new__(cls)
        grads._model, grads._parameters, grads._tensors, grads._consumers = model, parameters, tensors, []
        return grads

    # --- as a mapping

    def __getitem__(self, key: str | Tensor) -> Tensor:
        name = self._name_of(key)
        if name in self._tensors:
            return self._tensors[name]
        if not self._tensors and self._consumers:
            raise self._consumed_error()
        if name in self._parameters:
            raise NoSuchParameter(f"{name!r} has no gradient here: {self._why_missing()}")
        raise NoSuchParameter(f"this model has no parameter {name!r}{did_you_mean(name, self._parameters)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, Tensor):
            return any(self._parameters[name] is key for name in self._tensors)
        return isinstance(key, str) and self._name_of(key) in self._tensors

    def __eq__(self, other: object) -> bool:
        return self is other  # Mapping's would compare tensors element by element

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return id(self)

    def parameter(self, name: str) -> nn.Parameter:
        """The parameter of a gradient."""
        return self._parameters[name]

    def parameters(self) -> list[nn.Parameter]:
        """The parameters, in the order of the gradients."""
        return [self._parameters[name] for name in self._tensors]

    def names(self) -> tuple[str, ...]:
        """The names of the gradients, in the model's order."""
        return tuple(self._tensors)

    def parameters_by_name(self) -> dict[str, nn.Parameter]:
        """All parameters of the model by name, also those without a gradient; the same dict for many gradients."""
        return self._parameters

    def tensors(self) -> list[Tensor]:
        """The gradients, in the model's order."""
        return list(self._tensors.values())

    # --- consuming

    def use(self, by: str) -> dict[str, Tensor]:
        """Moves all tensors out, as an optimizer's step does; `by` names the caller in later errors."""
        if not self._tensors:
            raise self._consumed_error()
        tensors, self._tensors = self._tensors, {}
        self._consumers = [by]
        return tensors

    def take(self, selector: Selector) -> "Gradients":
        """Moves the selected ones out: a module, a parameter, a name with everything below it, a glob, or a list."""
        if not self._tensors:
            raise self._consumed_error()
        here = {name: self._parameters[name] for name in self._tensors}
        try:
            chosen = select_names(selector, here, self._model)
        except NoSuchParameter:
            select_names(selector, self._parameters, self._model)  # raises if the selector is misspelt
            raise NoSuchParameter(f"{describe(selector)} selects no gradient here: {self._why_missing()}") from None
        taken = {name: self._tensors.pop(name) for name in here if name in chosen}
        self._consumers.append(f"take({describe(selector)})")
        return self._of(taken, self._parameters, self._model)

    def _change(self, by: str, change: Callable[[list[Tensor]], list[Tensor]]) -> "Gradients":
        tensors = self.use(f"{by}; use what it returned")
        changed = change(list(tensors.values()))
        return self._of(dict(zip(tensors, changed, strict=True)), self._parameters, self._model)

    # --- arithmetic: each consumes these gradients and returns new ones

    def scale(self, factor: float | Tensor) -> "Gradients":
        """All of them times a number or a 0-d tensor. Consumes these."""
        factor = as_scalar(factor, "a factor") if isinstance(factor, Tensor) else as_number(factor, "a factor")
        text = "a tensor" if isinstance(factor, Tensor) else f"{factor:g}"
        return self._change(f"scale({text})", lambda tensors: _scale(tensors, factor))

    def clip_norm(self, limit: float, *, kind: float = 2.0, norm: Tensor | None = None) -> "Gradients":
        """All of them scaled down so that their total norm is at most `limit`. Consumes these.

        The numbers are those of `torch.nn.utils.clip_grad_norm_`. `norm` is the total norm, if it is known already.
        """
        limit = _positive(limit, "clip_norm")
        # The small number and the clamp are torch's; a branch would wait for the device.
        factor = torch.clamp(limit / ((self.norm(kind) if norm is None else norm) + 1e-6), max=1.0)
        return self._change(f"clip_norm({limit})", lambda tensors: _scale(tensors, factor))

    def clip_value(self, limit: float) -> "Gradients":
        """Every element clamped to [-limit, limit]. Consumes these."""
        limit = _positive(limit, "clip_value")
        for name, tensor in self._tensors.items():
            if tensor.is_complex():
                raise UnsupportedGradient(
                    f"clip_value can't clamp the complex gradient of {name!r}: complex numbers have no order; "
                    "use clip_norm, or take the real gradients and clip those"
                )
        return self._change(f"clip_value({limit})", lambda tensors: _clamp(tensors, limit))

    def map(self, function: Callable[[str, Tensor], Tensor]) -> "Gradients":
        """`function(name, tensor)` in place of every gradient. Consumes these."""
        names = list(self._tensors)
        return self._change("map", lambda tensors: list(map(function, names, tensors)))

    def __add__(self, other: "Gradients") -> "Gradients":
        """The sum of both; what only one of them has is kept. Consumes both."""
        if not isinstance(other, Gradients):
            return NotImplemented
        if other is self:
            raise InvalidArgument("gradients can't be added to themselves: use scale(2)")
        parameters = merge_parameters(self._parameters, other._parameters, "on the two sides")
        if not other._tensors:
            raise other._consumed_error()
        mine, theirs = self.use("+; use the sum"), other.use("+; use the sum")
        both = {**mine, **theirs, **{name: mine[name] + theirs[name] for name in mine if name in theirs}}
        ordered = {name: both[name] for name in parameters if name in both}
        model = self._model if len(self._parameters) >= len(other._parameters) else other._model
        return self._of(ordered, parameters, model)

    def __radd__(self, other: Any) -> "Gradients":
        return self if isinstance(other, int) and other == 0 else NotImplemented  # where sum() starts

    # --- questions: nothing is consumed

    def norm(self, kind: float = 2.0) -> Tensor:
        """The norm over all elements, a 0-d tensor on their device. A collective if they are sharded."""
        if not self._tensors:
            raise self._consumed_error()
        order = as_number(kind, "the kind of a norm")

        def total(own: list[Tensor]) -> Tensor:
            if order == math.inf:  # an empty tensor has no largest element
                own = [each for each in own if each.numel()] or [own[0].new_zeros(1)]
            return torch.nn.utils.get_total_norm(own, order)

        totals = reduce_shards(self.tensors(), total)
        return totals[0] if len(totals) == 1 else torch.linalg.vector_norm(torch.stack(totals), order)

    def all_finite(self) -> Tensor:
        """Whether no element is infinite or NaN, a 0-d boolean tensor. A collective if they are sharded."""
        if not self._tensors:
            raise self._consumed_error()
        return torch.stack(reduce_shards(self.tensors(), _all_finite)).all()

    # --- copies

    def clone(self) -> "Gradients":
        """A copy, to keep or for a second step."""
        return self._copy(lambda tensor: tensor.clone())

    def detach(self) -> "Gradients":
        """A copy without a graph, of gradients made with `create_graph=True`."""
        return self._copy(lambda tensor: tensor.detach().clone())

    def to(self, *args: Any, **kwargs: Any) -> "Gradients":
        """A copy on another device or in another dtype, with the arguments of `torch.Tensor.to`."""
        return self._copy(lambda tensor: tensor.to(*args, **{**kwargs, "copy": True}))

    def _copy(self, copy: Callable[[Tensor], Tensor]) -> "Gradients":
        if not self._tensors:
            raise self._consumed_error()
        return self._of({name: copy(tensor) for name, tensor in self._tensors.items()}, self._parameters, self._model)

    # --- names and error messages

    def _name_of(self, key: object) -> str:
        """The name that a parameter has here, given the parameter or, if it is tied, another of its names."""
        if isinstance(key, str):
            if key in self._parameters:
                return key
            parameter = dict(parameter_names(self._model)).get(key)
        elif isinstance(key, Tensor):
            parameter = key
        else:
            raise WrongType(f"a gradient is looked up by name or by parameter, not by {type(key).__name__}")
        for name, own in self._parameters.items():
            if own is parameter:
                return name
        if isinstance(key, str):
            return key
        raise NoSuchParameter(f"{describe(key)} is not a parameter of this model")

    def _why_missing(self) -> str:
        if self._consumers:
            return f"the loss does not depend on it, it is frozen, or it was taken by {', '.join(self._consumers)}"
        return "the loss does not depend on it, or it is frozen"

    def _consumed_error(self) -> GradientsConsumed:
        by = ", ".join(self._consumers) or "nothing: there were none from the start"
        return GradientsConsumed(f"these gradients are used up (by {by}); make new ones with stoker.backward")

    def __repr__(self) -> str:
        if not self._tensors:
            return f"Gradients(used up by {', '.join(self._consumers)})" if self._consumers else "Gradients(none)"
        count = sum(tensor.numel() for tensor in self._tensors.values())
        width = max(map(len, self._tensors))
        lines = [f"Gradients of {len(self)} parameters, {count:,} elements, norm {float(self.norm().detach()):.4g}"]
        for name, tensor in list(self._tensors.items())[:32]:
            size = f"norm {float(torch.linalg.vector_norm(stored_values(tensor).detach())):.4g}"
            kind = f"{'sparse ' if tensor.is_sparse else ''}{str(tensor.dtype).removeprefix('torch.')}"
            lines.append(f"  {name:<{width}}  {size:<15}  {kind} {list(tensor.shape)}")
        return "\n".join(lines + ([f"  … and {len(self) - 32} more"] if len(self) > 32 else []))


def merge_parameters(
    mine: dict[str, nn.Parameter], theirs: dict[str, nn.Parameter], where: str
) -> dict[str, nn.Parameter]:
    """The parameters of both, in the order of the larger one; raises if they are not of one model."""
    more, less = (mine, theirs) if len(mine) >= len(theirs) else (theirs, mine)
    names = {id(parameter): name for name, parameter in more.items()}
    for name, parameter in less.items():
        if more.get(name, parameter) is not parameter:
            raise InvalidArgument(f"{name!r} is a different parameter {where}: these are gradients of two models")
        other = names.setdefault(id(parameter), name)
        if other != name:
            raise InvalidArgument(
                f"{other!r} and {name!r} are two names of one parameter: to add gradients, give backward the same "
                "models under the same names"
            )
    return {**more, **less}


def as_number(value: Any, what: str) -> float:
    """A number (or a tensor of one) as a float; raises if it is something else."""
    if isinstance(value, Tensor):
        return float(as_scalar(value, what))
    if isinstance(value, bool) or not isinstance(value, Real):
        raise WrongType(f"{what} is a number, got {value!r}")
    return float(value)


def as_scalar(value: Tensor, what: str) -> Tensor:
    """A tensor of one element as a 0-d tensor, so that it changes no shape; raises for more elements."""
    if value.numel() != 1:
        raise InvalidArgument(f"{what} is one number, got a tensor of shape {list(value.shape)}")
    return value.reshape(())


def apply_to_values(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies a function to the elements; for a sparse tensor only to those that it stores."""
    if not tensor.is_sparse:
        return function(tensor)
    changed = tensor.coalesce().clone()
    changed.values().copy_(function(changed.values()))
    return changed


def _scale(tensors: Sequence[Tensor], factor: float | Tensor) -> list[Tensor]:
    """New tensors, because autograd may return one tensor for two parameters, or one that the user still holds."""

    def scale(own: list[Tensor]) -> list[Tensor]:
        devices = {tensor.device for tensor in own}
        factors: dict[Any, Any] = {each: factor.to(each) if isinstance(factor, Tensor) else factor for each in devices}
        if len(devices) > 1 or torch.compiler.is_compiling() or any(tensor.is_sparse for tensor in own):
            changed = [tensor * factors[tensor.device] for tensor in own]
        else:
            changed = torch._foreach_mul(own, factors[own[0].device])  # pyright: ignore[reportPrivateImportUsage]
        return [new.to(tensor.dtype) for new, tensor in zip(changed, own, strict=True)]

    return map_shards(tensors, scale)


def _clamp(tensors: Sequence[Tensor], limit: float) -> list[Tensor]:
    return map_shards(
        tensors, lambda own: [apply_to_values(each, lambda values: values.clamp(-limit, limit)) for each in own]
    )


def _all_finite(tensors: Sequence[Tensor]) -> Tensor:
    flags = [torch.isfinite(tensor).all() for tensor in tensors]
    return torch.stack([flag.to(flags[0].device) for flag in flags]).all()


def _positive(limit: float, name: str) -> float:
    limit = as_number(limit, f"the limit of {name}")
    if not limit > 0:
        raise InvalidArgument(f"{name} needs a limit above 0, got {limit!r}")
    return limit
