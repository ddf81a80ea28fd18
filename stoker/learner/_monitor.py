"""The metric that decides which weights are best, and the names of metrics that callbacks and checkpoints follow."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stoker.callbacks import EarlyStopping, Hooks, ReduceLROnPlateau
from stoker.engine import Fit
from stoker.errors import InvalidArgument, NoSuchMetric
from stoker.metrics import Meter, Metric
from stoker.record import Direction


class KnownMetrics(NamedTuple):
    """What is known about the metrics of a fit before anything is trained."""

    directions: Mapping[str, Direction | None]  # by full name, as in "valid/accuracy"; whether less or more is better
    valid: Sequence[str]  # the names of the validation sets
    others: Sequence[str]  # numbers of the whole training
    has_unknown: bool  # a step or a callback may add numbers of any name

    @classmethod
    def of(
        cls, metrics: Sequence[Metric | Meter], valid: Sequence[str], hooks: Hooks, *, has_step: bool
    ) -> "KnownMetrics":
        """Those of a fit with these metrics, validation sets and callbacks."""
        meters = [metric for metric in metrics if isinstance(metric, Meter)]
        directions: dict[str, Direction | None] = {f"{name}/loss": "min" for name in ("train", *valid)}
        for name in ("train", *valid):
            phases = ("both", "train" if name == "train" else "valid")
            measured = [metric for metric in metrics if not isinstance(metric, Meter) and metric.on in phases]
            directions |= {f"{name}/{metric.name}": metric.direction for metric in measured}
        has_own_meters = any(not type(meter).__module__.startswith("stoker.") for meter in meters)
        return cls(directions, valid, [meter.name for meter in meters], has_step or hooks.may_log or has_own_meters)

    def find(self, name: str) -> str | None:
        """The metric that a number belongs to: "valid/recall" for "valid/recall/3"; None if it is unknown."""
        return next((known for known in self.directions if name == known or name.startswith(f"{known}/")), None)

    def advise(self, name: str) -> str:
        """What to say about a name that is unknown."""
        similar = self._similar(name)[:3]
        if name.startswith("valid/") and not self.valid:
            advice = "; nothing is validated: give fit valid=..."
        elif similar:
            advice = f"; did you mean {' or '.join(map(repr, similar))}?"
        else:
            advice = "."
        return f"{advice} The metrics are: {', '.join(self.directions)}"

    def may_be_misspelt(self, name: str) -> bool:
        """Whether a name that is unknown is similar to a known one."""
        return bool(self._similar(name))

    def _similar(self, name: str) -> list[str]:
        """The known names of the same metric, else those of similar ones, of the same set if there are any."""
        group, _, metric = name.rpartition("/")
        metrics = list(dict.fromkeys(known.partition("/")[2] for known in self.directions))
        contained = [each for each in metrics if len(metric) > 2 and metric in each]
        found = {metric} & {*metrics} or {*difflib.get_close_matches(metric, metrics), *contained}
        similar = [known for known in self.directions if known.partition("/")[2] in found]
        return [known for known in similar if known.partition("/")[0] == group] or similar


def choose_monitor(
    name: str | None, mode: Direction | None, known: KnownMetrics
) -> tuple[str, Direction] | tuple[None, None]:
    """The metric that decides which weights are best, and whether less or more of it is better.

    The default is the loss of the first validation set. A name without a set means the validation set that measures
    it, or the training if nothing is validated.
    """
    if name is None and not known.valid:
        if mode is not None:
            raise InvalidArgument(
                f"mode={mode!r} says which values of the monitored metric are better, but nothing is monitored: give "
                'fit valid=..., or monitor="train/loss"'
            )
        return None, None
    if name is None:
        name = f"{known.valid[0]}/loss"
    elif name.partition("/")[0] not in ("train", *known.valid):
        found = [each for each in (f"{group}/{name}" for group in known.valid or ["train"]) if known.find(each)]
        if len(found) > 1:
            raise InvalidArgument(f"fit(monitor={name!r}): which of them? Write {' or '.join(map(repr, found))}")
        name = found[0] if found else name
    metric = known.find(name)
    if name in known.others:
        raise InvalidArgument(
            f"fit(monitor={name!r}): it is a number about the whole training, and does not say which weights are best"
            f"{known.advise(name)}"
        )
    if metric is None and not known.has_unknown:
        raise NoSuchMetric(f"fit(monitor={name!r}): there is no such metric{known.advise(name)}")
    direction = mode or (None if metric is None else known.directions[metric])
    if direction is None:
        what = "it is not known whether a larger value is better"
        if metric is None:
            what = f"this fit does not measure it{known.advise(name)}. If a step or a callback of yours adds it"
        raise InvalidArgument(f'fit(monitor={name!r}): {what}, give mode="max" or mode="min"')
    return name, direction


def check_metric_names(
    fit: Fit, known: KnownMetrics, keep_best: str | bool | None, recorded: Sequence[str] = ()
) -> list[str]:
    """Checks, before anything is trained, the names of the metrics that callbacks monitor and `keep_best` names.

    Raises `NoSuchMetric` for a metric that this fit does not measure, unless it may come from elsewhere: a callback may
    log any name, and a `train_step` may return any. Then a name that is similar to a known one gets a warning, which
    this function returns. `recorded` are the names that a resumed run has already.
    """
    known = known._replace(others=[*known.others, *recorded])
    monitored: dict[str, Any] = {}
    for callback in fit.hooks:
        if not isinstance(callback, EarlyStopping | ReduceLROnPlateau):
            continue
        kind, name = type(callback).__name__, callback.monitor or fit.settings.monitor
        if name is None:
            raise NoSuchMetric(
                f"{kind} follows the metric that the fit monitors, but there is no such metric; nothing is validated: "
                f'give fit valid=..., or name a metric: {kind}("train/loss")'
            )
        metric = known.find(name)
        if callback.direction is None and name != fit.settings.monitor and metric and not known.directions[metric]:
            raise InvalidArgument(
                f'{kind} does not know whether a larger {name!r} is better; give it direction="min" or direction="max"'
            )
        monitored[f"{kind} monitors {name!r}"] = name
    if keep_best is True and fit.settings.monitor is None:
        raise NoSuchMetric(
            "keep_best=True follows the metric that the fit monitors, but there is no such metric; nothing is "
            'validated: give fit valid=..., or name a metric: keep_best="train/loss"'
        )
    if isinstance(keep_best, str):
        monitored[f"keep_best={keep_best!r}"] = keep_best
    warnings: list[str] = []
    for text, name in monitored.items():
        if name == fit.settings.monitor or known.find(name) or _is_part(name, known.others):
            continue
        if not known.has_unknown:
            raise NoSuchMetric(f"{text}, but there is no such metric{known.advise(name)}")
        if known.may_be_misspelt(name):
            warnings.append(f"{text}, which this fit does not measure unless it is logged{known.advise(name)}")
    return warnings


def _is_part(name: str, names: Sequence[str]) -> bool:
    return any(name == each or name.startswith(f"{each}/") for each in names)
