"""Any optimizer written for PyTorch, driven by gradients as values: it is lent `.grad` for the length of one call."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stoker._select import Models
from stoker.errors import InvalidArgument, WrongType
from stoker.gradients import backward
from stoker.optim._algorithm import Piece, Rate
from stoker.optim._state import from_plain, to_plain

if TYPE_CHECKING:
    from stoker.optim._optimizer import Optimizer


@dataclass(frozen=True)
class Wrapped:
    """A class of `torch.optim.Optimizer`s and its settings; `wrap` makes it. Not serialisable: it holds a class."""

    cls: type[torch.optim.Optimizer]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the state of such an optimizer is called in a file."""
        return f"wrap({self.cls.__name__})"

    def init(self, model: Models) -> "Optimizer":
        """An optimizer for every parameter of the model, made by the class with its settings."""
        from stoker.optim._optimizer import Optimizer  # as for every config: it makes what is made of it

        return Optimizer({"*": self}, model)

    def spelled(self) -> str:
        """The config as one would write it."""
        return f"wrap({', '.join([self.cls.__name__, *(f'{key}={value!r}' for key, value in self.settings.items())])})"

    __repr__ = spelled


def wrap(cls: type[torch.optim.Optimizer], **settings: Any) -> Wrapped:
    """A config out of any `torch.optim.Optimizer` class, third-party ones included, and its settings but the lr.

    >>> wrap(torch.optim.RMSprop, alpha=0.9)
    wrap(RMSprop, alpha=0.9)

    One that needs a closure, such as LBFGS, is stepped with `minimize` instead of `step`:

    >>> model, x = nn.Linear(1, 1), torch.ones(4, 1)
    >>> optimizer = wrap(torch.optim.LBFGS, max_iter=5).init(model)
    >>> loss = optimizer.minimize(lambda: (model(x) - 2).square().mean(), lr=1.0)
    """
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        raise WrongType(f"wrap takes a subclass of torch.optim.Optimizer, got {cls!r}")
    if "lr" in settings:
        raise InvalidArgument("the learning rate is no setting: it is an argument of step(grads, lr=...)")
    return Wrapped(cls, settings)


class WrappedRule:
    """A torch optimizer at work on named parameters."""

    __slots__ = ("_model", "_names", "_parameters", "_recipe", "torch")

    def __init__(self, recipe: Wrapped, parameters: Mapping[str, nn.Parameter], model: Models) -> None:
        asked = inspect.signature(recipe.cls).parameters.get("lr")
        # A learning rate only to have one: every step sets its own before the optimizer reads it.
        start = {"lr": 1e-3} if asked is not None and asked.default is inspect.Parameter.empty else {}
        self._recipe, self._model, self._parameters = recipe, model, parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self.torch = recipe.cls(list(parameters.values()), **start, **recipe.settings)
        if any("lr" not in group for group in self.torch.param_groups):
            raise InvalidArgument(f"{recipe.cls.__name__} has no learning rate, so stoker can't drive it")
        if hasattr(self.torch, "train"):  # schedule-free ones refuse to step before they are told
            self.torch.train()  # pyright: ignore[reportAttributeAccessIssue]

    def check(self, pieces: list[Piece]) -> None:
        """Refuses to step an optimizer that needs a closure, before anything has changed."""
        if inspect.signature(self.torch.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
            raise InvalidArgument(
                f"{self._recipe.cls.__name__} evaluates the loss several times in a step: "
                "call optimizer.minimize(closure, lr=...) with a function that returns the loss"
            )

    def step(self, pieces: list[Piece]) -> None:
        """One step of the optimizer for all pieces together, so that what it keeps for a group advances once."""
        self._set_rates(pieces)
        with self._lent() as lend:
            for piece in pieces:
                lend(dict(zip(piece.names, piece.grads, strict=True)))
            self.torch.step()

    def minimize(self, closure: Callable[[], Tensor], lr: Rate) -> Tensor:
        """One step of an optimizer that asks for the loss as often as it likes; returns the first answer."""
        for group in self.torch.param_groups:
            group["lr"] = lr
        answers: list[Tensor] = []
        with self._lent() as lend:

            def evaluate() -> Tensor:
                with torch.enable_grad():
                    loss = closure()
                grads = backward(loss, self._model, wrt=list(self._parameters.values()))
                own = {self._names[id(grads.parameter(name))]: tensor for name, tensor in grads.items()}
                lend(own)
                answers.append(loss.detach())
                return answers[-1]

            self.torch.step(evaluate)  # pyright: ignore[reportCallIssue, reportArgumentType]  tensors are taken too
        return answers[0]

    @contextmanager
    def _lent(self) -> Iterator[Callable[[Mapping[str, Tensor]], None]]:
        """`.grad` of all parameters for one call: what others left there is put aside, and put back."""
        aside = {name: parameter.grad for name, parameter in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.grad = None

        def lend(grads: Mapping[str, Tensor]) -> None:
            for name, grad in grads.items():
                self._parameters[name].grad = grad

        try:
            yield lend
        finally:
            for name, grad in aside.items():
                self._parameters[name].grad = grad

    def _set_rates(self, pieces: list[Piece]) -> None:
        """The learning rate of each group; a group whose parameters got several is split first."""
        number = {name: index for index, piece in enumerate(pieces) for name in piece.names}
        split: list[dict[str, Any]] = []
        for group in self.torch.param_groups:
            by_piece: dict[int, list[Tensor]] = {}
            for parameter in group["params"]:
                by_piece.setdefault(number.get(self._names[id(parameter)], -1), []).append(parameter)
            rest = by_piece.pop(-1, [])  # not stepped now: they stay with the first that are
            if not by_piece:
                split.append(group)
                continue
            for place, (index, parameters) in enumerate(by_piece.items()):
                whole = len(by_piece) == 1
                part = group if whole else {**group, "params": parameters + (rest if place == 0 else [])}
                part["lr"] = pieces[index].lr
                split.append(part)
        self.torch.param_groups[:] = split

    def state_dict(self) -> dict[str, object]:
        """What the optimizer keeps, by parameter name, and the settings of its groups, in plain values."""
        groups = [
            {"names": [self._names[id(parameter)] for parameter in group["params"]]}
            | {key: to_plain(value, key) for key, value in group.items() if key != "params"}
            for group in self.torch.param_groups
        ]
        state = {
            self._names[id(each)]: to_plain(kept, self._names[id(each)]) for each, kept in self.torch.state.items()
        }
        return {"groups": groups, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hands a saved state to the optimizer's own `load_state_dict`, with the groups it had."""
        order = [name for group in state["groups"] for name in group["names"]]
        position = {name: index for index, name in enumerate(order)}
        template = self.torch.param_groups[0]
        self.torch.param_groups[:] = [
            {**template, "params": [self._parameters[name] for name in group["names"]]} for group in state["groups"]
        ]
        groups = [
            {key: from_plain(value) for key, value in group.items() if key != "names"}
            | {"params": [position[name] for name in group["names"]]}
            for group in state["groups"]
        ]
        kept = {position[name]: from_plain(value) for name, value in state["state"].items()}
        self.torch.load_state_dict({"state": kept, "param_groups": groups})


_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
