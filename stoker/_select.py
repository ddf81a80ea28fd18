"""Choosing parameters: one vocabulary for learning rates, optimizers, freezing, taking gradients and weight files.

A selector is a module, a parameter, a dotted name (with everything below it), a glob, or several of these in a list.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from torch import Tensor, nn

from stoker.errors import NoSuchParameter, UnmatchedParameter, WrongType, did_you_mean

Selector = str | nn.Module | Tensor | Sequence["Selector"]
Models = nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module]
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")

# Wrappers that hold the user's module in one child; that child's name is no part of a parameter's name.
WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def named_parameters(model: Models) -> dict[str, nn.Parameter]:
    """Every parameter once, by the name it has in the user's own module, in the model's order.

    Wrappers (`torch.compile`, DDP, DataParallel, activation checkpointing) leave no trace in the names, a parameter
    that stands in two places has the name of the first, and of several models each name starts with the model's key
    or number.
    """
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for name, parameter in places(model):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            found[name] = parameter
    return found


def places(model: Models) -> list[tuple[str, nn.Parameter]]:
    """Every place that a parameter stands in, tied ones as often as they stand."""
    found: list[tuple[str, nn.Parameter]] = []
    if isinstance(model, nn.Module):
        _visit(model, "", found)
    else:
        for name, each in named_models(model):
            _visit(each, f"{name}.", found)
    return found


def _visit(module: nn.Module, prefix: str, found: list[tuple[str, nn.Parameter]]) -> None:
    # Runs at every backward: dicts are read as they lie, without named_parameters' generators (half the time).
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found.append((prefix + name, parameter))
    if module._modules:
        inner = WRAPPERS.get(type(module).__name__)
        for name, child in module._modules.items():
            if child is not None:
                _visit(child, prefix if name == inner else f"{prefix}{name}.", found)


def named_models(models: object) -> list[tuple[str, nn.Module]]:
    """One or several models by name: the mapping's keys, the list's numbers, nothing for a single one."""
    named: dict[str, object] = {"": models}
    if isinstance(models, Mapping):
        named = {str(name): each for name, each in models.items()}
    elif isinstance(models, Sequence) and not isinstance(models, str):
        named = {str(number): each for number, each in enumerate(models)}
    modules = [(name, each) for name, each in named.items() if isinstance(each, nn.Module)]
    if len(modules) < len(named):
        strange = next(each for each in named.values() if not isinstance(each, nn.Module))
        raise WrongType(f"expected a torch.nn.Module, or a mapping or list of them; got {type(strange).__name__}")
    return modules


def modules_of(model: Models) -> list[nn.Module]:
    """The modules that a user gave: one, or several in a mapping or list."""
    return [model] if isinstance(model, nn.Module) else [each for _, each in named_models(model)]


def select(model: Models, selector: Selector) -> dict[str, nn.Parameter]:
    """The parameters that a selector chooses, by name, in the model's order.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> list(select(model, "0")), list(select(model, "*.bias")), list(select(model, model[1].weight))
    (['0.weight', '0.bias'], ['0.bias', '1.bias'], ['1.weight'])
    """
    parameters = named_parameters(model)
    chosen = chosen_names(selector, parameters, model)
    return {name: parameter for name, parameter in parameters.items() if name in chosen}


def chosen_names(selector: Selector, parameters: Mapping[str, Tensor], model: Models | None = None) -> set[str]:
    """The names in `parameters` that a selector chooses; choosing none is an error.

    With `model`, a tied parameter is also found by its other names.
    """
    if isinstance(selector, nn.Module):
        wanted = {id(parameter) for _, parameter in places(selector)}
        chosen = {name for name, parameter in parameters.items() if id(parameter) in wanted}
    elif isinstance(selector, Tensor):
        chosen = {name for name, parameter in parameters.items() if parameter is selector}
    elif isinstance(selector, str):
        chosen = {name for name in parameters if matches(selector, name)}
        if model is not None:  # the other names of tied parameters
            owner = {id(parameter): name for name, parameter in parameters.items()}
            owners = [owner.get(id(parameter)) for name, parameter in places(model) if matches(selector, name)]
            chosen.update(name for name in owners if name is not None)
    elif isinstance(selector, Sequence):
        if not selector:
            raise NoSuchParameter("an empty list chooses no parameter; '*' chooses all")
        return set().union(*(chosen_names(each, parameters, model) for each in selector))
    else:
        raise WrongType(
            f"a selector is a name, a glob, a module or a parameter, or a list of these; got {type(selector).__name__}"
        )
    if not chosen:
        raise NoSuchParameter(f"{describe(selector)} chooses no parameter{_hint(selector, parameters)}")
    return chosen


def matches(pattern: str, name: str) -> bool:
    """Whether a dotted name (with everything below it) or a glob covers a parameter's name."""
    if any(mark in pattern for mark in "*?["):
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    return name == pattern or name.startswith(f"{pattern}.")


def assign(rules: Mapping[Any, T], parameters: Mapping[str, Tensor], model: Models | None = None) -> dict[str, T]:
    """Each parameter's value in a mapping of selectors, the first match winning.

    A selector that chooses nothing is an error, also where earlier ones took everything it names away; so is a
    trainable parameter that no selector chooses. Frozen ones may be left out.
    """
    assigned: dict[str, T] = {}
    for selector, value in rules.items():
        for name in chosen_names(selector, parameters, model):
            assigned.setdefault(name, value)
    missing = [name for name, parameter in parameters.items() if parameter.requires_grad and name not in assigned]
    if missing:
        rest = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise UnmatchedParameter(
            f"no pattern of {{{', '.join(describe(rule) for rule in rules)}}} matches {', '.join(missing[:5])}{rest}; "
            "add '*' for everything else, or freeze what should not train"
        )
    return {name: assigned[name] for name in parameters if name in assigned}


def freeze(model: M, *selectors: Selector) -> M:
    """Stops gradients for the chosen parameters (all, where none are named), in place, and returns the model.

    >>> model = freeze(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), "0")
    >>> [parameter.requires_grad for parameter in model.parameters()]
    [False, False, True, True]
    """
    return _require_grad(model, selectors, False)


def unfreeze(model: M, *selectors: Selector) -> M:
    """Lets gradients flow to the chosen parameters again (to all, where none are named); the undoing of `freeze`."""
    return _require_grad(model, selectors, True)


def _require_grad(model: M, selectors: Sequence[Selector], flag: bool) -> M:
    for parameter in select(model, selectors or "*").values():
        parameter.requires_grad_(flag)
    return model


def describe(selector: Selector) -> str:
    """A selector as the user would recognise it in an error's text."""
    if isinstance(selector, nn.Module):
        return f"the module {type(selector).__name__}"
    if isinstance(selector, Tensor):
        return f"the parameter of shape {list(selector.shape)}"
    return repr(selector)


def _hint(selector: Selector, parameters: Mapping[str, Tensor]) -> str:
    if not isinstance(selector, str):
        return ": it is no part of this model (or has no parameters)"
    words = [".".join(name.split(".")[:depth]) for name in parameters for depth in range(1, name.count(".") + 2)]
    return did_you_mean(selector, words) or f"; there are: {', '.join(parameters) or 'none'}"
