"""Gradients and a learning rate in, parameters changed: one optimizer for all of a model, of one or more algorithms."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from numbers import Real
from typing import Any, NamedTuple

from torch import Tensor

from stoker._select import Models, assign, describe, named_parameters
from stoker.errors import InvalidArgument, NoSuchParameter, StateMismatch, WrongType
from stoker.gradients import Gradients
from stoker.optim._algorithm import Algorithm, Piece, Rate, Rule, State
from stoker.optim._functional import FunctionalRule
from stoker.optim._state import differences_of
from stoker.optim._wrap import Wrapped, WrappedRule

Recipe = Algorithm | Wrapped
Rates = Rate | Mapping[Any, Rate]  # one learning rate, or one for each selector


class _Part(NamedTuple):
    """Which gradients of a step share a rule and a learning rate."""

    names: tuple[str, ...]
    positions: list[int] | None  # among the step's gradients; None for all of them
    rate: Any  # the learning rate's key in a mapping; None where there is only one


_Plan = list[tuple[Rule, list[_Part]]]


def init(recipe: Recipe | Mapping[Any, Recipe], model: Models) -> "Optimizer":
    """An optimizer for a model, from one config or from a mapping of selectors to configs (the first match wins).

    >>> from torch import nn
    >>> from stoker.optim import AdamW, SGD
    >>> optimizer = init({"1": SGD(momentum=0.9), "*": AdamW()}, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    """
    return Optimizer(recipe if isinstance(recipe, Mapping) else {"*": recipe}, model)


class Optimizer:
    """The state of one or more algorithms for a model's parameters; a config's `init` makes it.

    >>> import torch
    >>> from torch import nn
    >>> from stoker import backward, optim
    >>> model = nn.Linear(2, 1)
    >>> optimizer = optim.SGD(momentum=0.9).init(model)
    >>> grads = backward(model(torch.ones(3, 2)).mean(), model)
    >>> optimizer.step(grads, lr=0.1)
    >>> len(grads)
    0
    """

    __slots__ = ("_model", "_names", "_parameters", "_plans", "_recipes", "_rules", "_title")

    def __init__(self, recipes: Mapping[Any, Recipe], model: Models) -> None:
        for selector, recipe in recipes.items():
            if not isinstance(recipe, Algorithm | Wrapped):
                raise WrongType(
                    f"the optimizer for {selector!r} is {type(recipe).__name__}; expected a config such as "
                    "optim.Adam() or optim.wrap(SomeOptimizer), not an optimizer of torch"
                )
        self._recipes = dict(recipes)
        self._model = model
        self._parameters = named_parameters(model)
        # By the parameters themselves, not their ids: a deep copy of model and optimizer fits together.
        self._names = {parameter: name for name, parameter in self._parameters.items()}
        assigned = self._chosen_by(recipes)
        self._rules: dict[Any, Rule] = {}
        for selector, recipe in recipes.items():
            own = {name: self._parameters[name] for name, chosen in assigned.items() if chosen is selector}
            rule = WrappedRule(recipe, own, model) if isinstance(recipe, Wrapped) else FunctionalRule(recipe, own)
            self._rules[selector] = rule
        self._title = f"the step of {self!r}"
        self._plans: dict[tuple[Any, ...], _Plan] = {}  # by the names and the learning rates' keys of a step

    def step(self, grads: Gradients, *, lr: Rates, when: Tensor | None = None) -> None:
        """Applies the gradients and uses them up; what has no gradient keeps its value and its state.

        The learning rate is a number, a 0-d tensor, or a mapping of selectors to these, where the first match wins.
        With `when`, a 0-d boolean tensor, the device decides: where it is False nothing changes, and nobody waits.
        """
        if not isinstance(grads, Gradients):
            raise WrongType(f"step takes Gradients, got {type(grads).__name__}; stoker.backward makes them")
        names = tuple([self._names.get(parameter, "") for parameter in grads.parameters()])
        keys = tuple(lr) if isinstance(lr, Mapping) else None
        plan = self._plans.get((names, keys))
        if plan is None:
            plan = self._plan(grads, names, keys)
        for rate in lr.values() if isinstance(lr, Mapping) else (lr,):
            _check_rate(rate)
        tensors = grads.tensors()
        work = [(rule, [_piece(part, tensors, lr) for part in parts]) for rule, parts in plan]
        for rule, pieces in work:
            rule.check(pieces)
        grads.use(self._title)
        for rule, pieces in work:
            rule.step(pieces, when)

    def minimize(self, closure: Callable[[], Tensor], *, lr: Rates) -> Tensor:
        """One step of an optimizer that evaluates the loss several times (LBFGS): `closure()` returns the loss."""
        rules = list(self._rules.values())
        if len(rules) != 1 or not isinstance(rules[0], WrappedRule) or isinstance(lr, Mapping):
            raise InvalidArgument("minimize is for one wrapped optimizer and one learning rate, on the whole model")
        _check_rate(lr)
        return rules[0].minimize(closure, lr if isinstance(lr, Tensor) else float(lr))

    @contextmanager
    def evaluating(self) -> Iterator[bool]:
        """The model with the weights that its optimizer wants judged; yields whether they are others than trained.

        Schedule-free optimizers train one point and mean another. All others change nothing here.
        """
        with ExitStack() as stack:
            rules = [rule for rule in self._rules.values() if isinstance(rule, WrappedRule)]
            differ = [stack.enter_context(rule.evaluating()) for rule in rules]
            yield any(differ)

    # --- who steps what

    def _chosen_by(self, selectors: Iterable[Any]) -> dict[str, Any]:
        """For each parameter the first selector that chooses it."""
        return assign({selector: selector for selector in selectors}, self._parameters, self._model)

    def _plan(self, grads: Gradients, names: tuple[str, ...], keys: tuple[Any, ...] | None) -> _Plan:
        """Sorts a step's gradients by rule and learning rate, once for every set of names."""
        if "" in names:
            strangers = [name for name, own in zip(grads, names, strict=True) if not own]
            raise NoSuchParameter(
                f"these gradients belong to parameters that this optimizer was not made for: {', '.join(strangers)}; "
                "make one with .init(model) of the model that holds them (again, after a model has changed)"
            )
        if not names:
            grads.use("nothing")  # raises: they are used up
        rates: dict[str, Any] = (
            {} if keys is None else assign({key: key for key in keys}, self._parameters, self._model)
        )
        owners = assign({selector: selector for selector in self._recipes}, self._parameters, self._model)
        positions: dict[tuple[Any, Any], list[int]] = {}
        for position, name in enumerate(names):
            positions.setdefault((owners[name], rates.get(name)), []).append(position)
        plan: dict[Any, list[_Part]] = {}
        for (owner, rate), own in positions.items():
            part = _Part(tuple(names[each] for each in own), own if len(own) < len(names) else None, rate)
            plan.setdefault(owner, []).append(part)
        self._plans[names, keys] = [(self._rules[owner], parts) for owner, parts in plan.items()]
        return self._plans[names, keys]

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Everything the optimizer knows, by parameter name: tensors (not copies) and plain values only."""
        return {
            "parameters": {name: list(parameter.shape) for name, parameter in self._parameters.items()},
            "rules": [
                {"algorithm": kind, "state": rule.state_dict()}
                for kind, rule in zip(self._kinds(), self._rules.values(), strict=True)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a state from `state_dict`; one that does not fit changes nothing; the error says what differs."""
        lines = differences_of(state, self._parameters, self._kinds())
        found: list[tuple[Rule, Any]] = []
        if not lines:
            for rule, saved in zip(self._rules.values(), state["rules"], strict=True):
                ready, differences = rule.prepared(saved["state"])
                found.append((rule, ready))
                lines += differences
        if lines:
            raise StateMismatch("this state does not fit the optimizer:\n  " + "\n  ".join(lines))
        for rule, ready in found:
            rule.take_up(ready)

    def tensors(self) -> list[dict[str, State]]:
        """For every config the state itself, by parameter name: what a step changes in place beside the weights.

        Empty for a wrapped optimizer, which keeps its own.
        """
        return [rule.tensors() if isinstance(rule, FunctionalRule) else {} for rule in self._rules.values()]

    def hold(self, state: list[dict[str, State]]) -> None:
        """Puts back what `tensors` gave, and nothing else: state that was made since is gone."""
        for rule, own in zip(self._rules.values(), state, strict=True):
            if isinstance(rule, FunctionalRule):
                rule.take_up(dict(own))

    @property
    def functional(self) -> bool:
        """Whether all of it is torch's functional forms, so that a step is a function of tensors and nothing else."""
        return all(isinstance(rule, FunctionalRule) for rule in self._rules.values())

    @property
    def skips(self) -> bool:
        """Whether a step that the device decides against (`when`) costs no more than one that it makes."""
        return all(isinstance(rule, FunctionalRule) and rule.skips for rule in self._rules.values())

    def twin(
        self, parameters: Mapping[str, Tensor], written: Mapping[str, Tensor], state: list[dict[str, State]]
    ) -> "Optimizer":
        """The same optimizer at work on other tensors, by the same names: for a step that is being traced.

        It knows gradients by `parameters`, and changes `written`, which share their memory.
        """
        other = copy.copy(self)
        other._parameters = parameters  # pyright: ignore[reportAttributeAccessIssue]  stand-ins, no nn.Parameter
        other._names = {tensor: name for name, tensor in parameters.items()}  # pyright: ignore[reportAttributeAccessIssue]
        rules = zip(self._rules.items(), state, strict=True)
        other._rules = {
            selector: rule.twin(written, own) for (selector, rule), own in rules if isinstance(rule, FunctionalRule)
        }
        twins = {id(rule): other._rules[selector] for selector, rule in self._rules.items()}
        other._plans = {key: [(twins[id(rule)], parts) for rule, parts in plan] for key, plan in self._plans.items()}
        return other

    def _kinds(self) -> list[str]:
        recipes = self._recipes.values()
        return [recipe.name if isinstance(recipe, Wrapped) else type(recipe).__name__ for recipe in recipes]

    def __repr__(self) -> str:
        spelled = {selector: recipe.spelled() for selector, recipe in self._recipes.items()}
        if list(spelled) == ["*"]:
            return spelled["*"]
        return f"{{{', '.join(f'{describe(selector)}: {recipe}' for selector, recipe in spelled.items())}}}"


def _piece(part: _Part, tensors: list[Tensor], lr: Rates) -> Piece:
    chosen = tensors if part.positions is None else [tensors[position] for position in part.positions]
    rate = lr[part.rate] if isinstance(lr, Mapping) else lr
    # NumPy's numbers as Python's: torch's kernels don't take the former.
    return Piece(part.names, chosen, rate if type(rate) is float or isinstance(rate, Tensor) else float(rate))


def _check_rate(lr: object) -> None:
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise InvalidArgument(f"a learning rate is one number, got a tensor of shape {list(lr.shape)}")
    elif isinstance(lr, bool) or not isinstance(lr, int | float | Real):
        raise WrongType(
            f"a learning rate is a number or a 0-d tensor, got {type(lr).__name__}"
            + ("; a schedule is asked first: lr=schedule(update)" if callable(lr) else "")
        )
    elif not 0 <= float(lr) < math.inf:
        raise InvalidArgument(f"a learning rate is at least 0 and finite, got {lr!r}")
