"""Which stored tensor goes to which places of a model, and an error that lists everything that doesn't fit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from stoker._select import Models, Selector, chosen_names
from stoker.errors import StateMismatch, did_you_mean
from stoker.weights._head import Entry
from stoker.weights._state import owners, state

_MOST_LISTED = 20  # names to a list of an error


@dataclass(frozen=True)
class Fit:
    """What loading will do."""

    targets: dict[str, dict[str, Tensor]]  # stored name -> the places it goes to, tied ones once
    twins: list[list[str]]  # stored names that are one tensor in the model, so have to be equal


def match(
    model: Models,
    places: dict[str, Tensor],
    offered: Mapping[str, str],
    entries: Mapping[str, Entry],
    *,
    strict: bool,
    only: Selector | None,
    file: str,
) -> Fit:
    """Finds every place its tensor; `offered` is the stored name by the model's name."""
    wanted = set(places) if only is None else chosen_places(only, places, model)
    groups: dict[str, list[str]] = {}
    for name, owner in owners(places).items():
        groups.setdefault(owner, []).append(name)
    fit = Fit({}, [])
    missing: list[str] = []
    shapes: list[str] = []
    for names in groups.values():
        if not wanted.intersection(names):
            continue
        sources = list(dict.fromkeys(offered[name] for name in names if name in offered))
        if not sources:
            missing.append(names[0])
            continue
        target = places[names[0]]
        shapes += [
            f"{names[0]!r} is {list(entries[source].shape)} there, {list(target.shape)} in the model"
            for source in sources
            if entries[source].shape != tuple(target.shape)
        ]
        fit.targets.setdefault(sources[0], {})[names[0]] = target
        for twin in sources[1:]:
            fit.targets.setdefault(twin, {})
        if len(sources) > 1:
            fit.twins.append(sources)
    strangers = [name for name in offered if name not in places]
    unexpected = strangers if only is None else []
    if shapes or (strict and (missing or unexpected)) or (wanted and not fit.targets):
        if not strict and fit.targets:  # then only the shapes are wrong
            missing, unexpected = [], []
        raise StateMismatch(_text(file, missing, unexpected, shapes, strangers, strict=strict))
    return fit


def chosen_places(selector: Selector, places: dict[str, Tensor], model: Models) -> set[str]:
    """The names that a selector chooses, buffers included."""
    if isinstance(selector, nn.Module):
        inside = {id(tensor) for tensor in state(selector).values()}
        chosen = {name for name, tensor in places.items() if id(tensor) in inside}
        return chosen or chosen_names(selector, places, model)  # for the error
    if isinstance(selector, Sequence) and not isinstance(selector, str):
        return set().union(*(chosen_places(each, places, model) for each in selector))
    return chosen_names(selector, places, model)


def _text(
    file: str, missing: list[str], unexpected: list[str], shapes: list[str], strangers: list[str], *, strict: bool
) -> str:
    lines = [f"{file} doesn't fit the model"]
    if missing:
        near = [(name, did_you_mean(name, strangers).removeprefix("; ")) for name in missing[:_MOST_LISTED]]
        listed = _listed([f"{name!r} ({hint})" if hint else repr(name) for name, hint in near], len(missing))
        lines.append(f"not in the file: {listed}")
    if unexpected:
        listed = _listed([repr(name) for name in unexpected[:_MOST_LISTED]], len(unexpected))
        lines.append(f"not in the model: {listed}")
    if shapes:
        lines.append(f"of another shape: {_listed(shapes[:_MOST_LISTED], len(shapes))}")
    if missing or unexpected:
        lines.append(_advice(missing, unexpected, strict=strict))
    if shapes and not strict:
        lines.append(
            "strict=False allows names that are missing or unexpected, but no other shapes; only= loads a part"
        )
    return "\n  ".join(lines)


def _listed(texts: Iterable[str], count: int) -> str:
    rest = f", and {count - _MOST_LISTED} more" if count > _MOST_LISTED else ""
    return ", ".join(texts) + rest


def _advice(missing: list[str], unexpected: list[str], *, strict: bool) -> str:
    """A prefix that explains it all (as `module.` does), or else what there is to try."""
    first = {name.partition(".")[0] for name in unexpected}
    if len(first) == 1 and {name.partition(".")[2] for name in unexpected} >= set(missing) and missing:
        return f"the names fit with rename={{{first.pop()!r}: ''}}"
    if not strict:
        return "so there is nothing to load; rename= maps the file's names to the model's"
    return (
        "rename= maps the file's names to the model's, only= loads a part, "
        "strict=False passes over names that are missing or unexpected"
    )
