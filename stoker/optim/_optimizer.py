"""The optimizer of a model: one or several algorithms, each with its share of the parameters."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from stoker._dispatch import NoGrad
from stoker._select import Models, assign, describe, named_parameters
from stoker.distributed import from_local, full_tensor, is_dtensor, place_like, to_local
from stoker.errors import (
    InvalidArgument,
    NoSuchParameter,
    StateMismatch,
    UnsupportedGradient,
    WrongType,
    did_you_mean,
)
from stoker.gradients import Gradients
from stoker.optim._algorithms import Adam, Algorithm, ParameterGroup, Rate, State, any_sparse
from stoker.optim._wrap import GradientGroup, Wrapped, WrappedRule

OptimizerConfig = Algorithm | Wrapped
Rates = Rate | Mapping[Any, Rate]  # one learning rate, or one for each selector


class _Part(NamedTuple):
    """The gradients of a step that share a rule and a learning rate."""

    names: tuple[str, ...]
    positions: list[int] | None  # among the step's gradients; None for all of them
    rate: Any  # the key in the mapping of learning rates; None if there is only one


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

    def __init__(self, configs: Mapping[Any, OptimizerConfig], model: Models) -> None:
        for selector, config in configs.items():
            if not isinstance(config, Algorithm | Wrapped):
                where = "" if selector == "*" else f" for {describe(selector)}"
                raise WrongType(f"the optimizer{where} is {_describe_wrong_config(config)}")
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
        # By the names and the learning rates' keys of a step.
        self._plans: dict[tuple[Any, ...], list[tuple[Rule, list[_Part]]]] = {}
        # The parameters of the last step, by the names that the gradients had for them, and by the names here.
        self._last_names: tuple[Mapping[str, Tensor], tuple[str, ...], tuple[str, ...]] = {}, (), ()

    @property
    def model(self) -> Models:
        """What it trains, with a loss that has parameters."""
        return self._model

    def step(self, grads: Gradients, *, lr: Rates, when: Tensor | None = None) -> None:
        """Applies the gradients and consumes them; parameters without a gradient keep their value and state.

        The learning rate is a number, a 0-d tensor, or a mapping of selectors to these, in which the first match wins.
        `when` is a 0-d boolean tensor: if it is False on the device, nothing changes. The host does not wait for it.
        """
        if not isinstance(grads, Gradients):
            raise WrongType(f"step takes Gradients, got {type(grads).__name__}; stoker.backward makes them")
        keys, rates = _by_key(lr)
        names = self._own_names(grads)
        plan = self._plans.get((names, keys))
        if plan is None:
            plan = self._make_plan(grads, names, keys)
        for rate in rates.values():
            _check_rate(rate)
        tensors = grads.tensors()
        work = [(rule, [_make_group(part, tensors, rates) for part in parts]) for rule, parts in plan]
        for rule, groups in work:
            rule.check(groups)
        grads.use(self._label)
        for rule, groups in work:
            rule.step(groups, when)

    def create_state(self, parameters: Sequence[nn.Parameter], *, lr: Rates) -> bool:
        """Creates the state that a first step with gradients of these parameters would create.

        Returns False if only a step can do that: for a wrapped optimizer, or momentum that starts with a gradient.
        """
        names = tuple([self._names.get(parameter, "") for parameter in parameters])
        if not self.is_functional or not all(names):
            return False
        keys, rates = _by_key(lr)
        return all(
            isinstance(rule, FunctionalRule) and rule.create_state(part.names, _rate_of(part, rates))
            for rule, parts in self._group_names(names, keys)
            for part in parts
        )

    def minimize(self, closure: Callable[[], Tensor], *, lr: Rates) -> Tensor:
        """One step of an optimizer that evaluates the loss several times (LBFGS): `closure()` returns the loss."""
        rules = list(self._rules.values())
        if len(rules) != 1 or not isinstance(rules[0], WrappedRule) or isinstance(lr, Mapping):
            raise InvalidArgument("minimize needs one wrapped optimizer for the whole model, and one learning rate")
        _check_rate(lr)
        return rules[0].minimize(closure, lr if isinstance(lr, Tensor) else float(lr))

    def evaluation_weights(self) -> dict[str, Tensor] | None:
        """Copies of the weights to evaluate, by name; None if they are those being trained.

        They differ for schedule-free optimizers only, which train one set of weights and evaluate another.
        """
        rules = [rule for rule in self._rules.values() if isinstance(rule, WrappedRule)]
        return {name: tensor for rule in rules for name, tensor in rule.evaluation_weights().items()} or None

    def _match(self, selectors: Any) -> dict[str, Any]:
        """The first matching selector of each parameter, by the parameter's name."""
        return assign({selector: selector for selector in selectors}, self._parameters, self._model)

    def _own_names(self, grads: Gradients) -> tuple[str, ...]:
        """The names that the parameters of gradients have here; "" if one is not known."""
        parameters, given = grads.parameters_by_name(), grads.names()
        if self._last_names[0] is not parameters or self._last_names[1] != given:
            own = tuple([self._names.get(parameters[name], "") for name in given])
            self._last_names = parameters, given, own
        return self._last_names[2]

    def _make_plan(
        self, grads: Gradients, names: tuple[str, ...], keys: tuple[Any, ...] | None
    ) -> list[tuple["Rule", list[_Part]]]:
        """Groups a step's gradients by rule and learning rate; computed once for each set of names."""
        if "" in names:
            unknown = [name for name, own in zip(grads, names, strict=True) if not own]
            raise NoSuchParameter(
                f"this optimizer was not made for the parameters of these gradients: {', '.join(unknown)}; make a new "
                "one with .init(model), where model has them (also after a model has changed)"
            )
        if not names:
            grads.use("nothing")  # raises if they were already consumed
        return self._group_names(names, keys)

    def _group_names(self, names: tuple[str, ...], keys: tuple[Any, ...] | None) -> list[tuple["Rule", list[_Part]]]:
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
        for rule, own in self._parse_state(state):
            rule.set_state(own)

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises `StateMismatch` if `load_state_dict` would; changes nothing."""
        self._parse_state(state)

    def _parse_state(self, state: Mapping[str, Any]) -> list[tuple["Rule", Any]]:
        """The state of each rule; a `StateMismatch` lists everything that does not fit."""
        problems = _find_differences(state, self._parameters, self._kinds())
        parsed: list[tuple[Rule, Any]] = []
        if not problems:
            for rule, saved in zip(self._rules.values(), state["rules"], strict=True):
                own, misfits = rule.parse_state(saved["state"])
                parsed.append((rule, own))
                problems += misfits
        if problems:
            raise StateMismatch("this state does not fit the optimizer:\n  " + "\n  ".join(problems))
        return parsed

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
    def needs_closure(self) -> bool:
        """Whether a wrapped optimizer evaluates the loss several times: it has to be stepped with `minimize`."""
        return any(isinstance(rule, WrappedRule) and rule.needs_closure for rule in self._rules.values())

    @property
    def skips_on_device(self) -> bool:
        """Whether a step with `when` costs no more than one without."""
        return all(isinstance(rule, FunctionalRule) and rule.skips_on_device for rule in self._rules.values())

    def takes_rate_tensors(self, *, compiled: bool) -> bool:
        """Whether steps compute with learning rates that are tensors on a GPU, and never read them on the host.

        A wrapped optimizer gets numbers, as from torch's own loop, and so does one of parameters on the host: torch's
        fused kernels copy the rate there and do not wait for the copy.
        """
        rules = self._rules.values()
        if not all(parameter.is_cuda for parameter in self._parameters.values()):
            return False
        return all(isinstance(rule, FunctionalRule) and rule.takes_rate_tensor(compiled=compiled) for rule in rules)

    def _kinds(self) -> list[str]:
        configs = self._configs.values()
        return [config.name if isinstance(config, Wrapped) else type(config).__name__ for config in configs]

    def __repr__(self) -> str:
        code = {selector: config.to_code() for selector, config in self._configs.items()}
        if list(code) == ["*"]:
            return code["*"]
        return f"{{{', '.join(f'{describe(selector)}: {each}' for selector, each in code.items())}}}"


def _describe_wrong_config(config: Any) -> str:
    """What was given instead of a config, and what to write."""
    known = {cls.__name__: cls for cls in (*Algorithm.__subclasses__(), *Adam.__subclasses__())}
    if isinstance(config, str):
        names = {name.lower(): f"optim.{name}()" for name in known}
        advice = f": write {names[config.lower()]}" if config.lower() in names else did_you_mean(config, names)
        return f"the name {config!r}, not a config{advice}"
    if isinstance(config, type) and issubclass(config, Algorithm):
        return f"the class {config.__name__}: write optim.{config.__name__}()"
    cls = config if isinstance(config, type) else type(config)
    if not issubclass(cls, torch.optim.Optimizer):
        return f"{type(config).__name__}; expected a config such as optim.Adam() or optim.wrap(SomeOptimizer)"
    own = cls.__name__ in known and cls is getattr(torch.optim, cls.__name__, None)
    settings: list[str] = []
    lr = ""
    if config is not cls:
        group, defaults = config.param_groups[0], inspect.signature(cls).parameters
        changed = {name: group[name] for name in defaults if name in group and group[name] != defaults[name].default}
        lr = f" and lr={group['lr']!r} (of a Learner, or of step)" if "lr" in group else ""
        settings = [f"{name}={value!r}" for name, value in changed.items() if name not in ("lr", "params")]
    code = f"optim.{cls.__name__}({', '.join(settings)})"
    if not own:
        code = f"optim.wrap({', '.join([cls.__name__, *settings])})"
    given = f"the class {cls.__name__}" if config is cls else "an optimizer with its own parameters and learning rate"
    return f"{given}: write {code}{lr}"


def _make_group(part: _Part, tensors: list[Tensor], rates: Mapping[Any, Rate]) -> GradientGroup:
    own = tensors if part.positions is None else [tensors[position] for position in part.positions]
    return GradientGroup(part.names, own, _rate_of(part, rates))


def _by_key(lr: Rates) -> tuple[tuple[Any, ...] | None, Mapping[Any, Rate]]:
    """The keys of learning rates, or None if there is only one, which then has the key None; and the rates by key."""
    return (tuple(lr), lr) if type(lr) is not float and isinstance(lr, Mapping) else (None, {None: lr})


def _rate_of(part: _Part, rates: Mapping[Any, Rate]) -> Rate:
    rate = rates[part.rate]
    return rate if type(rate) is float or isinstance(rate, Tensor) else float(rate)  # torch takes none of NumPy's


def _check_rate(lr: object) -> None:
    if type(lr) is float and 0 <= lr < math.inf:
        return
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


class FunctionalRule:
    """Applies one of torch's functional optimizers to named parameters."""

    def __init__(self, algorithm: Algorithm, parameters: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            if parameter.requires_grad and (problem := algorithm.parameter_problem(parameter)):
                raise InvalidArgument(f"{name!r} has shape {list(parameter.shape)}: {problem}")
        self._algorithm = algorithm
        self._kind = type(algorithm).__name__
        self._fused = bool(getattr(algorithm, "fused", False))
        self._needs_number = isinstance(algorithm, Adam) and bool(algorithm.foreach) and not algorithm.capturable
        self._parameters = parameters
        self._state: dict[str, State] = {}
        self._groups: dict[tuple[str, ...], ParameterGroup] = {}  # by the names in a step, which rarely change

    def check(self, groups: list[GradientGroup]) -> None:
        """Raises if the gradients or learning rates are not supported; changes nothing."""
        algorithm = self._algorithm
        for names, grads, lr in groups:
            if self._needs_number and isinstance(lr, Tensor):
                raise InvalidArgument(
                    f"the learning rate of {algorithm.to_code()} is a tensor: with foreach=True torch needs a number: "
                    "use float(lr), or omit foreach (on a GPU: capturable=True)"
                )
            if (self._fused or not algorithm.accepts_sparse) and any_sparse(grads):
                name = next(name for name, grad in zip(names, grads, strict=True) if grad.is_sparse)
                raise UnsupportedGradient(
                    f"{self._kind} does not support the sparse gradient of {name!r}: use SGD or Adagrad (not fused), "
                    "optim.wrap(torch.optim.SparseAdam), or a dense gradient (nn.Embedding(..., sparse=False))"
                )

    def step(self, groups: list[GradientGroup], when: Tensor | None = None) -> None:
        """Updates all groups; nothing changes if `when` is False on the device."""
        with NoGrad():
            for names, grads, lr in groups:
                group = self._groups.get(names)
                is_new = group is None
                if group is None:
                    group = self._make_group(names, lr)
                if group.has_shards:
                    _update_shards(partial(self._update, when), self._algorithm.needs_whole_parameter, group, grads, lr)
                else:
                    self._update(when, group, grads, lr)
                if self._fused:  # torch's fused kernels do not, so autograd would miss that the weights changed
                    increment_version(group.parameters)
                if is_new:
                    self._store(names, group)

    def create_state(self, names: tuple[str, ...], lr: Rate) -> bool:
        """Creates the state of parameters that have none; False if the algorithm creates it from gradients."""
        with torch.no_grad():
            return not self._make_group(names, lr).creates_state

    def _update(self, when: Tensor | None, group: ParameterGroup, grads: list[Tensor], lr: Rate) -> None:
        """Updates, if `when` is True on the device. Only a step that creates state waits for the device."""
        algorithm = self._algorithm
        if when is None:
            if not (self._fused and algorithm.update_fused(group, grads, lr, None)):
                algorithm.update(group, grads, lr)
            return
        if group.creates_state and not _is_recording():
            if when.item():
                algorithm.update(group, grads, lr)
            return
        if self._fused and when.device.type == "cuda":
            skip = torch.logical_not(when, out=torch.empty((), dtype=torch.float32, device=when.device))  # one kernel
            if algorithm.update_fused(group, grads, lr, skip):
                return
        state = (tensor for column in group.state.values() for tensor in column if tensor is not None)
        tensors = [*group.parameters, *state]
        before = [tensor.clone() for tensor in tensors]
        algorithm.update(group, grads, lr)
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(when.to(tensor.device), tensor, old))

    @property
    def skips_on_device(self) -> bool:
        """Whether a step with `when` costs no more than one without."""
        return self._fused and type(self._algorithm).update_fused is not Algorithm.update_fused

    def takes_rate_tensor(self, *, compiled: bool) -> bool:
        """See `Algorithm.takes_rate_tensor`."""
        return self._algorithm.takes_rate_tensor(compiled=compiled)

    def _make_group(self, names: tuple[str, ...], lr: Rate) -> ParameterGroup:
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        for name, parameter in zip(names, parameters, strict=True):
            if name not in self._state:
                self._state[name] = self._algorithm.create_state(parameter.detach(), lr)
        keys = self._algorithm.state_names()
        has_complex = any(parameter.is_complex() for parameter in parameters)
        kinds = {(parameter.device, parameter.dtype, type(parameter)) for parameter in parameters}
        return ParameterGroup(
            parameters,
            state={key: [self._state[name].get(key) for name in names] for key in keys},
            has_complex=has_complex,
            has_one_kind=len(kinds) == 1 and not has_complex,
            has_shards=any(map(is_dtensor, parameters)),
            creates_state=bool(keys) and not all(self._state[name] for name in names),
        )

    def _store(self, names: tuple[str, ...], group: ParameterGroup) -> None:
        """Stores the state that a first update created, or the group if its lists do not change any more."""
        if group.creates_state:
            for position, name in enumerate(names):
                created = {key: column[position] for key, column in group.state.items()}
                if all(value is not None for value in created.values()):  # None if the device skipped the update
                    parameter = self._parameters[name]
                    self._state[name] = {key: _restore_complex(value, parameter) for key, value in created.items()}
        elif not group.has_complex:  # torch replaces complex entries of the lists by real views, at every step
            self._groups[names] = group

    # --- state

    def state_dict(self) -> dict[str, object]:
        """The state by parameter name: the tensors themselves, not copies."""
        return {name: dict(state) for name, state in self._state.items() if state}

    def parse_state(self, state: Any) -> tuple[dict[str, State], list[str]]:
        """Copies of the saved tensors, placed where this algorithm stores them, and one line per misfit."""
        if not isinstance(state, Mapping):
            return {}, [f"the state of {self._kind} is a {type(state).__name__}, expected a mapping"]
        unknown = [name for name in state if name not in self._parameters]
        problems = [f"{name}: {self._kind} updates it in the saved state, not here" for name in unknown]
        names = [name for name in state if name in self._parameters]
        return {name: self._parse_parameter_state(name, state[name], problems) for name in names}, problems

    def _parse_parameter_state(self, name: str, saved: Any, problems: list[str]) -> State:
        parameter = self._parameters[name].detach()
        names = self._algorithm.state_names()
        expected = self._algorithm.create_state(parameter, 0.0) or dict.fromkeys(names, parameter)
        if not isinstance(saved, Mapping) or set(saved) != set(expected):
            given = sorted(map(str, saved)) if isinstance(saved, Mapping) else f"a {type(saved).__name__}"
            problems.append(f"{name}: has {given}; {self._kind} with these settings has {sorted(expected)}")
            return {}
        parsed: State = {}
        for key, like in expected.items():
            value = saved[key]
            if isinstance(value, Tensor) and value.shape == like.shape and _number_kind(value) == _number_kind(like):
                parsed[key] = torch.empty_like(like).copy_(place_like(value.detach(), like))
            else:
                problems.append(f"{name}: {key} is {_describe(value)} in the saved state, {_describe(like)} here")
        return parsed

    def set_state(self, state: dict[str, State]) -> None:
        """Continues from a state of `parse_state` or `state_tensors`."""
        self._state = state
        self._groups.clear()

    def state_tensors(self) -> dict[str, State]:
        """The state by parameter name: what an update changes in place besides the parameters."""
        return self._state


Rule = FunctionalRule | WrappedRule  # applies one config to its share of the parameters


def _is_recording() -> bool:
    """Whether this call is traced or captured, so that no value can be read."""
    return torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _restore_complex(value: Tensor, parameter: Tensor) -> Tensor:
    """Makes created state complex for a complex parameter: torch may leave real views in its lists."""
    if parameter.is_complex() and not value.is_complex() and value.shape == (*parameter.shape, 2):
        return torch.view_as_complex(value)
    return value


def _number_kind(tensor: Tensor) -> tuple[bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex()


def _describe(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _update_shards(
    update: Callable[..., None], needs_whole_parameter: bool, group: ParameterGroup, grads: list[Tensor], lr: Rate
) -> None:
    """Each process updates its shards, or whole parameters if an element's update depends on the others."""
    if not needs_whole_parameter:
        local = {
            key: [None if each is None else to_local(each) for each in column] for key, column in group.state.items()
        }
        parameters = [to_local(parameter) for parameter in group.parameters]
        update(group._replace(parameters=parameters, state=local), [to_local(grad) for grad in grads], lr)
        for key, column in group.state.items():
            for position, parameter in enumerate(group.parameters):
                created = local[key][position]
                if column[position] is None and created is not None:
                    column[position] = from_local(created, parameter)
        return
    # Gathers one parameter at a time; every process computes the same update and stores its own part.
    for position, (parameter, grad) in enumerate(zip(group.parameters, grads, strict=True)):
        state = {key: column[position] for key, column in group.state.items()}
        whole = {key: [None if value is None else full_tensor(value)] for key, value in state.items()}
        updated = full_tensor(parameter)
        update(group._replace(parameters=[updated], state=whole), [full_tensor(grad)], lr)
        for tensor, new in ((parameter, updated), *((state[key], whole[key][0]) for key in state)):
            if is_dtensor(tensor):
                to_local(tensor).copy_(to_local(place_like(new, tensor)))
