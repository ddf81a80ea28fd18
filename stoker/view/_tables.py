"""Tables that several viewers show: a run's metrics by data set, and where the configs of runs differ."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from stoker.record import Best, Follower, Record

K = TypeVar("K", bound=Hashable)


class MetricRow(NamedTuple):
    """A metric's latest values by data set and its best value; a value that belongs to no set has the key ""."""

    name: str
    values: Mapping[str, float]
    best: Best | None
    unit: str


class DataSets(NamedTuple):
    """The data sets of a run, "train" first, and the one whose best values count."""

    names: Sequence[str]
    monitored: str


def data_sets(numbers: Collection[str], monitor: str | None, validated: Any = None) -> DataSets:
    """The data sets that names of numbers begin with: those that have a loss, the training and the validation.

    >>> data_sets(["a/loss", "train/loss", "lr/head"], None)
    DataSets(names=['train', 'a'], monitored='a')
    """
    groups = dict.fromkeys(name.partition("/")[0] for name in numbers if "/" in name)
    chosen = str(monitor or "").partition("/")[0]
    known = ("train", "valid", chosen, *(validated if isinstance(validated, list) else ()))
    with_loss = [group for group in groups if group in known or f"{group}/loss" in numbers]
    names = sorted(with_loss or groups, key=lambda group: group != "train")
    return DataSets(names, chosen if chosen in names else names[min(1, len(names) - 1)] if names else "train")


def metric_rows(
    run: Record | Follower, latest: Mapping[str, float], sets: DataSets, current: Mapping[str, float] | None = None
) -> list[MetricRow]:
    """The latest values of a run: first the metrics of data sets, then values like learning rates and memory.

    >>> from stoker.record import Event
    >>> record = Record()
    >>> record.append(Event("epoch", epoch=1, values={"lr": 0.1, "train/loss": 0.5, "valid/loss": 0.6}))
    >>> latest = record.status().latest
    >>> [(row.name, row.values) for row in metric_rows(record, latest, data_sets(latest, None))]
    [('loss', {'train': 0.5, 'valid': 0.6}), ('lr', {'': 0.1})]

    Per-class metrics are left out. With `current` (see `Status`), values of data sets that it lacks are blank: a row
    then has numbers of one epoch only.
    """
    values: dict[str, dict[str, float]] = {}
    for name, value in latest.items():
        group, _, metric = name.partition("/")
        if group not in sets.names or not metric:
            values.setdefault(name, {})[""] = value
        elif not any(part.isdecimal() for part in metric.split("/")):
            values.setdefault(metric, {})[group] = value
    rows: list[MetricRow] = []
    known = set(run.names)  # also of epochs before
    for metric, by_set in sorted(values.items(), key=lambda item: "" in item[1]):
        groups = ("",) if "" in by_set else (sets.monitored, *sets.names[1:], *sets.names)
        group = next(group for group in groups if group in by_set or f"{group}/{metric}" in known)
        name = f"{group}/{metric}" if group else metric
        best = run.best(name) if run.direction(name) is not None else None
        if current is not None:
            by_set = {each: value for each, value in by_set.items() if not each or f"{each}/{metric}" in current}
        rows.append(MetricRow(metric, by_set, best, run.unit(name)))
    return rows


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
        if len(values) == len(configs) and all(_is_same(first, other) for other in others):
            same[name] = first
        else:
            different[name] = values
    return same, different


def _is_same(a: Any, b: Any) -> bool:
    both_nan = a != a and b != b
    return (a == b or both_nan) and isinstance(a, bool) == isinstance(b, bool)  # True == 1 in Python
