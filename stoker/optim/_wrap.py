"""Any optimizer written for PyTorch, driven by gradients as values: it is lent `.grad` for the length of one call."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stoker._select import Models
from stoker.distributed import place_like
from stoker.errors import InvalidArgument, WrongType
from stoker.gradients import backward
from stoker.optim._algorithm import Piece, Rate, unshared
from stoker.optim._state import from_plain, to_plain

if TYPE_CHECKING:
    from stoker.optim._optimizer import Optimizer


_Native = torch.optim.Optimizer  # under a name that `WrappedRule.torch` does not hide


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
        self._recipe, self._model, self._parameters = recipe, model, parameters
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        self.torch = self._made()
        if any("lr" not in group for group in self.torch.param_groups):
            raise InvalidArgument(f"{recipe.cls.__name__} has no learning rate, so stoker can't drive it")

    def _made(self) -> _Native:
        cls = self._recipe.cls
        asked = inspect.signature(cls).parameters.get("lr")
        # A learning rate only to have one: every step sets its own before the optimizer reads it.
        start = {"lr": 1e-3} if asked is not None and asked.default is inspect.Parameter.empty else {}
        made = cls(list(self._parameters.values()), **start, **self._recipe.settings)
        if hasattr(made, "train"):  # schedule-free ones refuse to step before they are told
            made.train()  # pyright: ignore[reportAttributeAccessIssue]
        return made

    def check(self, pieces: list[Piece]) -> None:
        """Refuses to step an optimizer that needs a closure, before anything has changed."""
        if inspect.signature(self.torch.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
            raise InvalidArgument(
                f"{self._recipe.cls.__name__} evaluates the loss several times in a step: "
                "call optimizer.minimize(closure, lr=...) with a function that returns the loss"
            )

    def step(self, pieces: list[Piece], when: Tensor | None = None) -> None:
        """One step of the optimizer for all pieces together, so that what it keeps for a group advances once."""
        if when is not None:
            raise InvalidArgument(f"{self._recipe.name} can't be told on the device whether to step: leave out when=")
        self._set_rates(pieces)
        with self._lent() as lend:
            lend({name: grad for piece in pieces for name, grad in zip(piece.names, piece.grads, strict=True)})
            groups = list(self.torch.param_groups)
            # Groups that take no part are out of sight, so that what is counted for a group stays as it is.
            self.torch.param_groups[:] = [
                group for group in groups if any(parameter.grad is not None for parameter in group["params"])
            ]
            try:
                self.torch.step()
            finally:
                self.torch.param_groups[:] = groups

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
                own = {self._names[grads.parameter(name)]: tensor for name, tensor in grads.items()}
                lend(own)
                answers.append(loss.detach())
                return answers[-1]

            self.torch.step(evaluate)  # pyright: ignore[reportCallIssue, reportArgumentType]  tensors are taken too
        return answers[0]

    @contextmanager
    def evaluating(self) -> Iterator[bool]:
        """The weights that the optimizer wants judged, where they are not the ones it trains (schedule-free ones).

        Yields whether they differ. The way there and back rounds, so the trained ones are put back bit for bit.
        """
        switch: Any = self.torch
        if not (hasattr(switch, "eval") and hasattr(switch, "train")):
            yield False
            return
        trained = [parameter.detach().clone() for parameter in self._parameters.values()]
        switch.eval()
        try:
            yield True
        finally:
            switch.train()
            with torch.no_grad():
                for parameter, before in zip(self._parameters.values(), trained, strict=True):
                    parameter.copy_(before)

    @contextmanager
    def _lent(self) -> Iterator[Callable[[Mapping[str, Tensor]], None]]:
        """`.grad` of all parameters for one call: what others left there is put aside, and put back."""
        aside = {name: parameter.grad for name, parameter in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.grad = None

        def lend(grads: Mapping[str, Tensor]) -> None:
            for name, grad in zip(grads, unshared(list(grads.values())), strict=True):
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
                by_piece.setdefault(number.get(self._names[parameter], -1), []).append(parameter)
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
            {"names": [self._names[parameter] for parameter in group["params"]]}
            | {key: to_plain(value, key) for key, value in group.items() if key != "params"}
            for group in self.torch.param_groups
        ]
        state = {self._names[each]: to_plain(kept, self._names[each]) for each, kept in self.torch.state.items()}
        return {"groups": groups, "state": state}

    def prepared(self, state: Any) -> tuple[_Native | None, list[str]]:
        """A new optimizer of the same kind that has taken up the saved state, with the groups it had."""
        kind = self._recipe.name
        groups, kept = (state.get("groups"), state.get("state")) if isinstance(state, Mapping) else (None, None)
        if not isinstance(kept, Mapping) or not isinstance(groups, list | tuple):
            return None, [f"the state of {kind} has no 'groups' or no 'state'"]
        if not all(isinstance(group, Mapping) and isinstance(group.get("names"), list | tuple) for group in groups):
            return None, [f"the state of {kind} has a group without 'names'"]
        order = Counter(name for group in groups for name in group["names"])
        lines = [f"{name}: {kind} steps it in the state, not here" for name in order if name not in self._parameters]
        lines += [f"{name}: {kind} steps it here, not in the state" for name in self._parameters if name not in order]
        lines += [f"{name}: in two groups of {kind} in the state" for name, times in order.items() if times > 1]
        lines += [f"{name}: has a state and is in no group of {kind}" for name in kept if name not in order]
        if lines:
            return None, lines
        try:
            return self._loaded(groups, kept, list(order)), []
        except Exception as error:  # whatever the optimizer's own `load_state_dict` says
            return None, [f"{kind} does not take this state: {error}"]

    def _loaded(self, groups: Sequence[Mapping[str, Any]], kept: Mapping[str, Any], order: list[str]) -> _Native:
        made = self._made()
        position = {name: index for index, name in enumerate(order)}
        template = made.param_groups[0]
        made.param_groups[:] = [
            {**template, "params": [self._parameters[name] for name in group["names"]]} for group in groups
        ]
        settings = [
            {key: from_plain(value) for key, value in group.items() if key != "names"}
            | {"params": [position[name] for name in group["names"]]}
            for group in groups
        ]
        state = {position[name]: _beside(from_plain(value), self._parameters[name]) for name, value in kept.items()}
        made.load_state_dict({"state": state, "param_groups": settings})
        for name, place in position.items():  # torch casts what it loads to the parameter's dtype
            own = made.state.get(self._parameters[name], {})
            for key, value in state.get(place, {}).items():
                if isinstance(value, Tensor) and isinstance(own.get(key), Tensor) and own[key].dtype != value.dtype:
                    own[key] = value.to(own[key].device)
        return made

    def take_up(self, ready: _Native) -> None:
        """Goes on with a prepared optimizer."""
        self.torch = ready


def _beside(kept: Any, parameter: nn.Parameter) -> Any:
    """What is kept for a parameter, sharded where it is and whole where it is."""
    if not isinstance(kept, dict):
        return kept
    tensors = {key: value for key, value in kept.items() if isinstance(value, Tensor)}
    return kept | {
        key: place_like(value, parameter if value.shape == parameter.shape else None) for key, value in tensors.items()
    }


_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
