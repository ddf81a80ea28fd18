"""The optimizer of a model: one or several algorithms, each with its share of the parameters."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from numbers import Real
from typing import Any, NamedTuple

from torch import Tensor

from stoker._select import Models, assign, describe, named_parameters
from stoker.errors import InvalidArgument, NoSuchParameter, StateMismatch, WrongType, did_you_mean
from stoker.gradients import Gradients
from stoker.optim._algorithm import Algorithm, GradientGroup, Rate, State
from stoker.optim._functional import FunctionalRule
from stoker.optim._wrap import Wrapped, WrappedRule

OptimizerConfig = Algorithm | Wrapped
Rule = FunctionalRule | WrappedRule  # applies one config to its share of the parameters
Rates = Rate | Mapping[Any, Rate]  # one learning rate, or one for each selector


class _Part(NamedTuple):
    """The gradients of a step that share a rule and a learning rate."""

    names: tuple[str, ...]
    positions: list[int] | None  # among the step's gradients; None for all of them
    rate: Any  # the key in a mapping of learning rates; None if there is only one


_Plan = list[tuple[Rule, list[_Part]]]


def init(config: OptimizerConfig | Mapping[Any, OptimizerConfig], model: Models) -> "Optimizer":
    """Makes an optimizer for a model from a config, or from a mapping of selectors to configs (first match wins).

    >>> from torch import nn
    >>> from stoker.optim import AdamW, SGD
    >>> optimizer = init({"1": SGD(momentum=0.9), "*": AdamW()}, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    """
    return Optimizer(config if isinstance(config, Mapping) else {"*": config}, model)


class Optimizer:
    """Updates a model's parameters and has the state for it; a config's `init(model)` makes it.

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

    __slots__ = ("_configs", "_label", "_model", "_names", "_parameters", "_plans", "_rules")

    def __init__(self, configs: Mapping[Any, OptimizerConfig], model: Models) -> None:
        for selector, config in configs.items():
            if not isinstance(config, Algorithm | Wrapped):
                raise WrongType(
                    f"the optimizer for {selector!r} is {type(config).__name__}; expected a config such as "
                    "optim.Adam() or optim.wrap(SomeOptimizer), not an optimizer of torch"
                )
        self._configs = dict(configs)
        self._model = model
        self._parameters = named_parameters(model)
        # Keyed by the parameters, not by their ids: a deep copy of model and optimizer stays consistent.
        self._names = {parameter: name for name, parameter in self._parameters.items()}
        owners = self._match(configs)
        self._rules: dict[Any, Rule] = {}
        for selector, config in configs.items():
            own = {name: self._parameters[name] for name, owner in owners.items() if owner is selector}
            rule = WrappedRule(config, own, model) if isinstance(config, Wrapped) else FunctionalRule(config, own)
            self._rules[selector] = rule
        self._label = f"the step of {self!r}"
        self._plans: dict[tuple[Any, ...], _Plan] = {}  # by the names and the learning rates' keys of a step

    def step(self, grads: Gradients, *, lr: Rates, when: Tensor | None = None) -> None:
        """Applies the gradients and consumes them; parameters without a gradient keep their value and state.

        The learning rate is a number, a 0-d tensor, or a mapping of selectors to these, in which the first match wins.
        `when` is a 0-d boolean tensor: if it is False on the device, nothing changes. The host does not wait for it.
        """
        if not isinstance(grads, Gradients):
            raise WrongType(f"step takes Gradients, got {type(grads).__name__}; stoker.backward makes them")
        names = tuple([self._names.get(parameter, "") for parameter in grads.parameters()])
        keys = tuple(lr) if isinstance(lr, Mapping) else None
        plan = self._plans.get((names, keys))
        if plan is None:
            plan = self._make_plan(grads, names, keys)
        for rate in lr.values() if isinstance(lr, Mapping) else (lr,):
            _check_rate(rate)
        tensors = grads.tensors()
        work = [(rule, [_make_group(part, tensors, lr) for part in parts]) for rule, parts in plan]
        for rule, groups in work:
            rule.check(groups)
        grads.use(self._label)
        for rule, groups in work:
            rule.step(groups, when)

    def minimize(self, closure: Callable[[], Tensor], *, lr: Rates) -> Tensor:
        """One step of an optimizer that evaluates the loss several times (LBFGS): `closure()` returns the loss."""
        rules = list(self._rules.values())
        if len(rules) != 1 or not isinstance(rules[0], WrappedRule) or isinstance(lr, Mapping):
            raise InvalidArgument("minimize needs one wrapped optimizer for the whole model, and one learning rate")
        _check_rate(lr)
        return rules[0].minimize(closure, lr if isinstance(lr, Tensor) else float(lr))

    @contextmanager
    def evaluation_weights(self) -> Iterator[bool]:
        """Gives the model the weights to evaluate; yields whether they differ from those being trained.

        They differ for schedule-free optimizers only, which train one set of weights and evaluate another.
        """
        with ExitStack() as stack:
            rules = [rule for rule in self._rules.values() if isinstance(rule, WrappedRule)]
            differ = [stack.enter_context(rule.evaluation_weights()) for rule in rules]
            yield any(differ)

    def _match(self, selectors: Any) -> dict[str, Any]:
        """The first matching selector of each parameter, by the parameter's name."""
        return assign({selector: selector for selector in selectors}, self._parameters, self._model)

    def _make_plan(self, grads: Gradients, names: tuple[str, ...], keys: tuple[Any, ...] | None) -> _Plan:
        """Groups a step's gradients by rule and learning rate; computed once for each set of names."""
        if "" in names:
            unknown = [name for name, own in zip(grads, names, strict=True) if not own]
            raise NoSuchParameter(
                f"this optimizer was not made for the parameters of these gradients: {', '.join(unknown)}; make a new "
                "one with .init(model), where model has them (also after a model has changed)"
            )
        if not names:
            grads.use("nothing")  # raises if they were already consumed
        owners = self._match(self._configs)
        rates = {} if keys is None else self._match(keys)
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
        """The whole state by parameter name: tensors (not copies) and plain values."""
        return {
            "parameters": {name: list(parameter.shape) for name, parameter in self._parameters.items()},
            "rules": [
                {"algorithm": kind, "state": rule.state_dict()}
                for kind, rule in zip(self._kinds(), self._rules.values(), strict=True)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads copies of a state from `state_dict`; if it does not fit, the error lists why and nothing changes."""
        problems = _find_differences(state, self._parameters, self._kinds())
        parsed: list[tuple[Rule, Any]] = []
        if not problems:
            for rule, saved in zip(self._rules.values(), state["rules"], strict=True):
                own, misfits = rule.parse_state(saved["state"])
                parsed.append((rule, own))
                problems += misfits
        if problems:
            raise StateMismatch("this state does not fit the optimizer:\n  " + "\n  ".join(problems))
        for rule, own in parsed:
            rule.set_state(own)

    def state_tensors(self) -> list[dict[str, State]]:
        """For each config the state by parameter name: what a step changes in place besides the weights.

        Empty for a wrapped optimizer, which stores its own state.
        """
        return [rule.state_tensors() if isinstance(rule, FunctionalRule) else {} for rule in self._rules.values()]

    def set_state_tensors(self, state: list[dict[str, State]]) -> None:
        """Replaces the state by tensors from `state_tensors`; state created since then is dropped."""
        for rule, own in zip(self._rules.values(), state, strict=True):
            if isinstance(rule, FunctionalRule):
                rule.set_state(dict(own))

    @property
    def is_functional(self) -> bool:
        """Whether no optimizer is wrapped, so that a step is a function of tensors."""
        return all(isinstance(rule, FunctionalRule) for rule in self._rules.values())

    @property
    def skips_on_device(self) -> bool:
        """Whether a step with `when` costs no more than one without."""
        return all(isinstance(rule, FunctionalRule) and rule.skips_on_device for rule in self._rules.values())

    def _kinds(self) -> list[str]:
        configs = self._configs.values()
        return [config.name if isinstance(config, Wrapped) else type(config).__name__ for config in configs]

    def __repr__(self) -> str:
        code = {selector: config.to_code() for selector, config in self._configs.items()}
        if list(code) == ["*"]:
            return code["*"]
        return f"{{{', '.join(f'{describe(selector)}: {each}' for selector, each in code.items())}}}"


def _make_group(part: _Part, tensors: list[Tensor], lr: Rates) -> GradientGroup:
    own = tensors if part.positions is None else [tensors[position] for position in part.positions]
    rate = lr[part.rate] if isinstance(lr, Mapping) else lr
    # torch's kernels do not take NumPy's numbers.
    return GradientGroup(part.names, own, rate if type(rate) is float or isinstance(rate, Tensor) else float(rate))


def _check_rate(lr: object) -> None:
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise InvalidArgument(f"a learning rate is one number, got a tensor of shape {list(lr.shape)}")
    elif isinstance(lr, bool) or not isinstance(lr, int | float | Real):
        raise WrongType(
            f"a learning rate is a number or a 0-d tensor, got {type(lr).__name__}"
            + ("; call a schedule first: lr=schedule(update)" if callable(lr) else "")
        )
    elif not 0 <= float(lr) < math.inf:
        raise InvalidArgument(f"a learning rate is at least 0 and finite, got {lr!r}")


def _find_differences(state: Any, parameters: Mapping[str, Tensor], kinds: list[str]) -> list[str]:
    """One line for each difference between a saved state and this model and its algorithms."""
    try:
        saved = {name: list(shape) for name, shape in state["parameters"].items()}
        saved_kinds = [str(rule["algorithm"]) for rule in state["rules"] if rule["state"] is not None]
    except (AttributeError, KeyError, TypeError):
        return ["it is not the state of an optimizer: it has no 'parameters' or no 'rules'"]
    own = {name: list(parameter.shape) for name, parameter in parameters.items()}
    lines: list[str] = []
    for name in {**saved, **own}:
        if name not in own:
            lines.append(f"{name}: in the saved state, not in the model{did_you_mean(name, own, most=1)}")
        elif name not in saved:
            lines.append(f"{name}: in the model, not in the saved state{did_you_mean(name, saved, most=1)}")
        elif saved[name] != own[name]:
            lines.append(f"{name}: shape {saved[name]} in the saved state, {own[name]} in the model")
    if saved_kinds != kinds:
        lines.append(f"the saved state is of {', '.join(saved_kinds)}, this optimizer is {', '.join(kinds)}")
    return lines
