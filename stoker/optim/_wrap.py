"""Drives any `torch.optim.Optimizer` with gradients as values: it gets them in `.grad` during one call only."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker._select import Models
from stoker._tree import map_state, unsavable_type
from stoker.distributed import place_like
from stoker.errors import InvalidArgument, StateMismatch, WrongType
from stoker.gradients import backward
from stoker.optim._algorithms import Rate, without_shared_memory

if TYPE_CHECKING:
    from stoker.optim._optimizer import Optimizer


class GradientGroup(NamedTuple):
    """The gradients of a step that share a learning rate, with the names of their parameters."""

    names: tuple[str, ...]
    grads: list[Tensor]
    lr: Rate


@dataclass(frozen=True)
class Wrapped:
    """A `torch.optim.Optimizer` class and its settings, made by `wrap`. It cannot be saved: it has a class in it."""

    cls: type[torch.optim.Optimizer]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The algorithm's name in a saved state."""
        return f"wrap({self.cls.__name__})"

    def init(self, model: Models) -> "Optimizer":
        """Makes an optimizer for every parameter of the model."""
        from stoker.optim._optimizer import Optimizer  # it imports this module

        return Optimizer({"*": self}, model)

    def to_code(self) -> str:
        """The config as code."""
        return f"wrap({', '.join([self.cls.__name__, *(f'{key}={value!r}' for key, value in self.settings.items())])})"

    __repr__ = to_code


def wrap(cls: type[torch.optim.Optimizer], **settings: Any) -> Wrapped:
    """Makes a config of any `torch.optim.Optimizer` class, also a third-party one, and its settings except the lr.

    >>> wrap(torch.optim.RMSprop, alpha=0.9)
    wrap(RMSprop, alpha=0.9)

    An optimizer that needs a closure, such as LBFGS, is stepped with `minimize` instead of `step`:

    >>> model, x = nn.Linear(1, 1), torch.ones(4, 1)
    >>> optimizer = wrap(torch.optim.LBFGS, max_iter=5).init(model)
    >>> loss = optimizer.minimize(lambda: (model(x) - 2).square().mean(), lr=1.0)
    """
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        raise WrongType(f"wrap takes a subclass of torch.optim.Optimizer, got {cls!r}")
    if "lr" in settings:
        raise InvalidArgument("the learning rate is not a setting: pass it to step(grads, lr=...)")
    return Wrapped(cls, settings)


class WrappedRule:
    """Applies a torch optimizer to named parameters, with the methods of `FunctionalRule`."""

    def __init__(self, config: Wrapped, parameters: Mapping[str, nn.Parameter], model: Models) -> None:
        self._config, self._model, self._parameters = config, model, parameters
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        self._native = self._create()
        if any("lr" not in group for group in self._native.param_groups):
            raise InvalidArgument(f"{config.cls.__name__} has no learning rate, so stoker cannot drive it")

    def _create(self) -> torch.optim.Optimizer:
        cls = self._config.cls
        lr = inspect.signature(cls).parameters.get("lr")
        # Every step sets the learning rate, so any value will do for a class that requires one.
        placeholder = {"lr": 1e-3} if lr is not None and lr.default is inspect.Parameter.empty else {}
        native: Any = cls(list(self._parameters.values()), **placeholder, **self._config.settings)
        if hasattr(native, "train"):  # schedule-free optimizers refuse to step before this call
            native.train()
        return native

    @property
    def needs_closure(self) -> bool:
        """Whether a step evaluates the loss several times."""
        closure = inspect.signature(self._native.step).parameters.get("closure")
        return closure is not None and closure.default is inspect.Parameter.empty

    def check(self, groups: list[GradientGroup]) -> None:
        """Raises if the optimizer needs a closure."""
        if self.needs_closure:
            raise InvalidArgument(
                f"{self._config.cls.__name__} evaluates the loss several times in a step: "
                "call optimizer.minimize(closure, lr=...) with a function that returns the loss"
            )

    def step(self, groups: list[GradientGroup], when: Tensor | None = None) -> None:
        """Calls the optimizer's `step` once for all groups, so that its counters advance once."""
        if when is not None:
            raise InvalidArgument(f"{self._config.name} cannot skip a step on the device: omit when=")
        self._set_rates(groups)
        param_groups, all_groups = self._native.param_groups, list(self._native.param_groups)
        with self._own_grads() as set_grads:
            set_grads({name: grad for group in groups for name, grad in zip(group.names, group.grads, strict=True)})
            # Groups without gradients are hidden, so that counters kept in a group do not advance.
            param_groups[:] = [group for group in all_groups if any(each.grad is not None for each in group["params"])]
            try:
                self._native.step()
            finally:
                param_groups[:] = all_groups

    def minimize(self, closure: Callable[[], Tensor], lr: Rate) -> Tensor:
        """One step of an optimizer that evaluates the loss several times; returns the first loss."""
        for group in self._native.param_groups:
            group["lr"] = lr
        losses: list[Tensor] = []
        with self._own_grads() as set_grads:

            def evaluate() -> Tensor:
                with torch.enable_grad():
                    loss = closure()
                grads = backward(loss, self._model, wrt=list(self._parameters.values()))
                set_grads({self._names[grads.parameter(name)]: tensor for name, tensor in grads.items()})
                losses.append(loss.detach())
                return losses[-1]

            self._native.step(evaluate)  # pyright: ignore[reportCallIssue, reportArgumentType]  tensors are fine too
        return losses[0]

    def evaluation_weights(self) -> dict[str, Tensor]:
        """See `Optimizer.evaluation_weights`. Restores the trained weights bit for bit: switching back would round."""
        native: Any = self._native
        if not (hasattr(native, "eval") and hasattr(native, "train")):
            return {}
        trained = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        native.eval()
        try:
            return {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        finally:
            native.train()
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(trained[name])

    @contextmanager
    def _own_grads(self) -> Iterator[Callable[[Mapping[str, Tensor]], None]]:
        """Empties `.grad` of all parameters for one call and restores it; yields a function that sets it."""
        before = {name: parameter.grad for name, parameter in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.grad = None

        def set_grads(grads: Mapping[str, Tensor]) -> None:
            for name, grad in zip(grads, without_shared_memory(list(grads.values())), strict=True):
                self._parameters[name].grad = grad

        try:
            yield set_grads
        finally:
            for name, grad in before.items():
                self._parameters[name].grad = grad

    def _set_rates(self, groups: list[GradientGroup]) -> None:
        """Sets the learning rate of each param group; splits one whose parameters have several rates."""
        rates = {name: (index, group.lr) for index, group in enumerate(groups) for name in group.names}
        result: list[dict[str, Any]] = []
        for param_group in self._native.param_groups:
            by_rate: dict[Any, list[Tensor]] = {}
            for parameter in param_group["params"]:
                by_rate.setdefault(rates.get(self._names[parameter]), []).append(parameter)
            idle = by_rate.pop(None, [])  # without a gradient now: they stay with the first part
            if len(by_rate) < 2:
                result.append(param_group)
                for _, lr in by_rate:
                    param_group["lr"] = lr
                continue
            for (_, lr), parameters in by_rate.items():
                result.append({**param_group, "params": parameters + idle, "lr": lr})
                idle = []
        self._native.param_groups[:] = result

    # --- state

    def state_dict(self) -> dict[str, object]:
        """The state by parameter name and the settings of the param groups, as tensors and plain values."""
        groups = [
            {"names": [self._names[parameter] for parameter in group["params"]]}
            | {key: _copy_state(value, key) for key, value in group.items() if key != "params"}
            for group in self._native.param_groups
        ]
        names = self._names
        state = {names[each]: _copy_state(value, names[each]) for each, value in self._native.state.items()}
        return {"groups": groups, "state": state}

    def parse_state(self, state: Any) -> tuple[torch.optim.Optimizer | None, list[str]]:
        """A new optimizer of the same class that has loaded the saved state, with its param groups."""
        kind, own = self._config.name, self._parameters
        try:
            names = [name for group in state["groups"] for name in group["names"]]
            problems = [f"{name}: listed twice in the saved state" for name in own if names.count(name) > 1]
            problems += [f"{name}: {kind} updates it in the saved state, not here" for name in names if name not in own]
            problems += [f"{name}: {kind} updates it here, not in the saved state" for name in own if name not in names]
            return (None, problems) if problems else (self._create_loaded(state["groups"], state["state"]), [])
        except Exception as error:  # the optimizer's own `load_state_dict` may raise anything
            return None, [f"{kind} cannot load this state: {type(error).__name__}: {error}"]

    def _create_loaded(self, groups: Sequence[Mapping[str, Any]], saved: Mapping[str, Any]) -> torch.optim.Optimizer:
        native = self._create()
        position = {name: index for index, name in enumerate(name for group in groups for name in group["names"])}
        template = native.param_groups[0]
        native.param_groups[:] = [
            {**template, "params": [self._parameters[name] for name in group["names"]]} for group in groups
        ]
        param_groups = [
            {key: map_state(Tensor.clone, value) for key, value in group.items() if key != "names"}
            | {"params": [position[name] for name in group["names"]]}
            for group in groups
        ]
        state = {
            position[name]: _place_state(map_state(Tensor.clone, each), self._parameters[name])
            for name, each in saved.items()
        }
        native.load_state_dict({"state": state, "param_groups": param_groups})
        for name, index in position.items():  # torch casts what it loads to the parameter's dtype
            own = native.state.get(self._parameters[name], {})
            for key, value in state.get(index, {}).items():
                if isinstance(value, Tensor) and isinstance(own.get(key), Tensor) and own[key].dtype != value.dtype:
                    own[key] = value.to(own[key].device)
        return native

    def set_state(self, state: torch.optim.Optimizer) -> None:
        """Continues with an optimizer from `parse_state`."""
        self._native = state


def _place_state(state: Mapping[str, Any], parameter: nn.Parameter) -> dict[str, Any]:
    """A parameter's state, with tensors of its shape sharded like it and the others whole."""
    placed = dict(state)
    for key, value in state.items():
        if isinstance(value, Tensor):
            placed[key] = place_like(value, parameter if value.shape == parameter.shape else None)
    return placed


def _copy_state(value: Any, where: str) -> Any:
    if (odd := unsavable_type(value)) is not None:
        raise StateMismatch(
            f"the optimizer has a {odd} in its state for {where!r}, which cannot be saved; tensors and plain values can"
        )
    return map_state(Tensor.detach, value)
