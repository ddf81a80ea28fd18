"""Selecting parameters: the same selectors for learning rates, optimizers, freezing, gradients and weight files.

A selector is a module, a parameter, a dotted name (which includes everything below it), a glob, or a list of these.
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

# Wrapper classes, and the name of the child that is the wrapped module; that name is left out of parameter names.
WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "ModelWithLoss": "model",
}


_STAYS_IN_EVAL_MODE = "_stoker_stays_in_eval_mode"  # an attribute of frozen modules


def named_parameters(model: Models) -> dict[str, nn.Parameter]:
    """Returns every parameter once, by name, in the order of the model.

    The names are those of the user's module, without wrappers (`torch.compile`, DDP, DataParallel, activation
    checkpointing). A tied parameter has its first name. With several models, names start with the key or index of the
    model.
    """
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for name, parameter in parameter_names(model):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            found[name] = parameter
    return found


def parameter_names(model: Models) -> list[tuple[str, nn.Parameter]]:
    """Returns every name of every parameter; a tied parameter has several."""
    found: list[tuple[str, nn.Parameter]] = []
    if isinstance(model, nn.Module):
        _visit(model, "", found)
    else:
        for name, each in named_models(model):
            _visit(each, f"{name}.", found)
    return found


def _visit(module: nn.Module, prefix: str, found: list[tuple[str, nn.Parameter]]) -> None:
    # Runs at every backward pass; reading the dicts takes half the time of named_parameters' generators.
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found.append((prefix + name, parameter))
    if module._modules:
        inner = WRAPPERS.get(type(module).__name__)
        for name, child in module._modules.items():
            if child is not None:
                _visit(child, prefix if name == inner else f"{prefix}{name}.", found)


def named_models(models: object) -> list[tuple[str, nn.Module]]:
    """Returns models with their names: the keys of a mapping, the indices of a list, "" for a single model."""
    named: dict[str, object] = {"": models}
    if isinstance(models, Mapping):
        named = {str(name): each for name, each in models.items()}
    elif isinstance(models, Sequence) and not isinstance(models, str):
        named = {str(number): each for number, each in enumerate(models)}
    modules = [(name, each) for name, each in named.items() if isinstance(each, nn.Module)]
    if len(modules) < len(named):
        other = next(each for each in named.values() if not isinstance(each, nn.Module))
        raise WrongType(f"expected a torch.nn.Module, or a mapping or list of them; got {type(other).__name__}")
    return modules


def modules_of(model: Models) -> list[nn.Module]:
    """Returns the models without their names."""
    return [model] if isinstance(model, nn.Module) else [each for _, each in named_models(model)]


def has_compiled_modules(model: nn.Module) -> bool:
    """Whether the model or a module inside of it is compiled by itself (`torch.compile`, `module.compile`)."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def select(model: Models, selector: Selector) -> dict[str, nn.Parameter]:
    """Returns the parameters that a selector matches, by name, in the order of the model.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> list(select(model, "0")), list(select(model, "*.bias")), list(select(model, model[1].weight))
    (['0.weight', '0.bias'], ['0.bias', '1.bias'], ['1.weight'])
    """
    parameters = named_parameters(model)
    selected = select_names(selector, parameters, model)
    return {name: parameter for name, parameter in parameters.items() if name in selected}


def select_names(selector: Selector, parameters: Mapping[str, Tensor], model: Models | None = None) -> set[str]:
    """Returns the names in `parameters` that a selector matches; raises `NoSuchParameter` if there are none.

    With `model`, a selector may also use the other names of tied parameters.
    """
    if isinstance(selector, nn.Module):
        wanted = {id(parameter) for _, parameter in parameter_names(selector)}
        matched = {name for name, parameter in parameters.items() if id(parameter) in wanted}
    elif isinstance(selector, Tensor):
        matched = {name for name, parameter in parameters.items() if parameter is selector}
    elif isinstance(selector, str):
        matched = {name for name in parameters if matches(selector, name)}
        if model is not None:  # the other names of tied parameters
            owner = {id(parameter): name for name, parameter in parameters.items()}
            owners = [owner.get(id(parameter)) for name, parameter in parameter_names(model) if matches(selector, name)]
            matched.update(name for name in owners if name is not None)
    elif isinstance(selector, Sequence):
        if not selector:
            raise NoSuchParameter("an empty list selects no parameter; use '*' for all")
        return set().union(*(select_names(each, parameters, model) for each in selector))
    else:
        raise WrongType(
            f"a selector is a name, a glob, a module, a parameter, or a list of these; got {type(selector).__name__}"
        )
    if not matched:
        raise NoSuchParameter(f"{describe(selector)} matches no parameter{_hint(selector, parameters)}")
    return matched


def matches(pattern: str, name: str) -> bool:
    """Returns whether a dotted name (with everything below it) or a glob matches a parameter's name."""
    if any(mark in pattern for mark in "*?["):
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    return name == pattern or name.startswith(f"{pattern}.")


def assign(rules: Mapping[Any, T], parameters: Mapping[str, Tensor], model: Models | None = None) -> dict[str, T]:
    """Returns the value of each parameter in a mapping of selectors to values; the first match wins.

    Raises `NoSuchParameter` for a selector that matches nothing, and `UnmatchedParameter` for a trainable parameter
    that no selector matches.
    """
    assigned: dict[str, T] = {}
    for selector, value in rules.items():
        for name in select_names(selector, parameters, model):
            assigned.setdefault(name, value)
    missing = [name for name, parameter in parameters.items() if parameter.requires_grad and name not in assigned]
    if missing:
        rest = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise UnmatchedParameter(
            f"no selector of {{{', '.join(describe(rule) for rule in rules)}}} matches {', '.join(missing[:5])}{rest}; "
            "add '*' for the remaining parameters, or freeze those that should not train"
        )
    return {name: assigned[name] for name in parameters if name in assigned}


def freeze(model: M, *selectors: Selector, eval: bool = False) -> M:
    """Sets `requires_grad` to False for the selected parameters (without selectors: for all), and returns the model.

    >>> model = freeze(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), "0")
    >>> [parameter.requires_grad for parameter in model.parameters()]
    [False, False, True, True]

    Dropout and batch norm of frozen modules still train, as `fit` calls `model.train()`. With `eval=True`, modules all
    of whose parameters are selected are in eval mode, and stay so in a fit, until `unfreeze`.
    """
    selected = _require_grad(model, selectors, False)
    for module in _modules_within(model, selected) if eval else ():
        module.__dict__[_STAYS_IN_EVAL_MODE] = True
        module.eval()
    return model


def unfreeze(model: M, *selectors: Selector) -> M:
    """Sets `requires_grad` to True for the selected parameters (without selectors: for all), and returns the model."""
    selected = _require_grad(model, selectors, True)
    for module in model.modules():
        if any(id(parameter) in selected for parameter in module.parameters()):
            module.__dict__.pop(_STAYS_IN_EVAL_MODE, None)
    return model


def set_train_mode(model: nn.Module) -> None:
    """Calls `model.train()`; what was frozen with `eval=True` stays in eval mode."""
    model.train()
    for module in model.modules():
        if _STAYS_IN_EVAL_MODE in module.__dict__:
            module.eval()


def _require_grad(model: nn.Module, selectors: Sequence[Selector], flag: bool) -> set[int]:
    parameters = select(model, selectors or "*").values()
    for parameter in parameters:
        parameter.requires_grad_(flag)
    return set(map(id, parameters))


def _modules_within(model: nn.Module, selected: set[int]) -> list[nn.Module]:
    """The modules all of whose parameters are selected; they have some."""
    owned = [(module, [id(parameter) for parameter in module.parameters()]) for module in model.modules()]
    return [module for module, parameters in owned if parameters and selected.issuperset(parameters)]


def describe(selector: Selector) -> str:
    """Returns a selector as text for an error message."""
    if isinstance(selector, nn.Module):
        return f"the module {type(selector).__name__}"
    if isinstance(selector, Tensor):
        return f"the parameter of shape {list(selector.shape)}"
    return repr(selector)


def _hint(selector: Selector, parameters: Mapping[str, Tensor]) -> str:
    if not isinstance(selector, str):
        return ": it is not part of this model, or has no parameters"
    words = [".".join(name.split(".")[:depth]) for name in parameters for depth in range(1, name.count(".") + 2)]
    return did_you_mean(selector, words) or f"; the parameters are: {', '.join(parameters) or 'none'}"
