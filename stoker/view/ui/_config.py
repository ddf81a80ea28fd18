"""Where the configs of several runs differ."""

from collections.abc import Mapping
from typing import Any


def compared(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What flat configs have in common, and by run what not; a field that a run hasn't got is left out there.

    >>> compared({"a": {"lr": 0.1, "seed": 0}, "b": {"lr": 0.2, "seed": 0}})
    {'same': {'seed': 0}, 'different': {'lr': {'a': 0.1, 'b': 0.2}}}
    """
    same: dict[str, Any] = {}
    different: dict[str, Any] = {}
    for name in dict.fromkeys(name for config in configs.values() for name in config):
        values = {run: config[name] for run, config in configs.items() if name in config}
        first, *others = values.values()
        if len(values) == len(configs) and all(_equal(first, each) for each in others):
            same[name] = first
        else:
            different[name] = values
    return {"same": same, "different": different}


def _equal(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)  # for Python, True is 1
