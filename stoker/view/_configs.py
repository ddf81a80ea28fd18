"""Where the configs of several runs differ; the report and the web page compare runs with it."""

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


def compare_configs(configs: Mapping[K, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[K, Any]]]:
    """The fields that are the same in all flat configs, and the others with their value by run.

    >>> compare_configs({"a": {"lr": 0.1, "seed": 0}, "b": {"lr": 0.2, "seed": 0, "norm": True}})
    ({'seed': 0}, {'lr': {'a': 0.1, 'b': 0.2}, 'norm': {'b': True}})
    """
    same: dict[str, Any] = {}
    different: dict[str, dict[K, Any]] = {}
    for name in dict.fromkeys(name for config in configs.values() for name in config):
        values = {run: config[name] for run, config in configs.items() if name in config}
        first, *others = values.values()
        if len(values) == len(configs) and all(_is_same(first, each) for each in others):
            same[name] = first
        else:
            different[name] = values
    return same, different


def _is_same(a: Any, b: Any) -> bool:
    both_nan = a != a and b != b
    return (a == b or both_nan) and isinstance(a, bool) == isinstance(b, bool)  # True == 1 in Python
