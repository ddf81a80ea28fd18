"""What runs were asked for, by dotted names, and in which fields two configs differ."""

from collections.abc import Iterator, Mapping
from typing import Any


def differences(old: Any, new: Any) -> list[str]:
    """A line for each field that differs, by its dotted name.

    >>> differences({"lr": 0.1, "model": {"hidden": 64}}, {"lr": 0.1, "model": {"hidden": 128, "norm": True}})
    ['model.hidden: 64 → 128', 'model.norm: nothing → True']
    """
    before, after = dict(flat(old)), dict(flat(new))
    names = [name for name in before | after if before.get(name, _NOTHING) != after.get(name, _NOTHING)]
    return [f"{name}: {before.get(name, _NOTHING)!r} → {after.get(name, _NOTHING)!r}" for name in names]


class _Nothing:
    """What stands in the place of a field that one side doesn't have."""

    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a config by their dotted names.

    >>> list(flat({"model": {"hidden": 128, "norm": {}}, "lr": 0.1}))
    [('model.hidden', 128), ('model.norm', {}), ('lr', 0.1)]
    """
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from flat(each, f"{path}.{name}" if path else str(name))
    elif path:
        yield path, value


def asked(config: Any, facts: Mapping[str, Any], *, once: bool = False) -> dict[str, Any]:
    """What a run was asked for: the fields of its config, and the learner's settings.

    >>> facts = {"settings": {"lr": 0.1, "seed": 0}}
    >>> asked({"lr": 0.1}, facts), asked({"lr": 0.1}, facts, once=True)
    ({'lr': 0.1, 'settings.lr': 0.1, 'settings.seed': 0}, {'lr': 0.1, 'settings.seed': 0})

    `once` leaves out a setting that only repeats a field of the config. That is for a run by itself: beside another,
    where the two may not be the same, it would leave a hole.
    """
    own = dict(flat(config))
    said = {(name.rpartition(".")[2], str(value)) for name, value in own.items()} if once else set()
    told = flat({"settings": facts["settings"]} if facts.get("settings") else {})
    return own | {name: value for name, value in told if (name.rpartition(".")[2], str(value)) not in said}
