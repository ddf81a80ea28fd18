"""What a user may give as a metric, at the edge."""

import inspect
from typing import Any, cast

from stoker.errors import WrongType, did_you_mean
from stoker.metrics._foreign import adapted
from stoker.metrics._meters import Meter
from stoker.metrics._metric import Metric

_CONTRACT = ("name", "direction", "unit", "on", "init", "update", "merge", "compute")


def as_metric(given: Any) -> Metric | Meter:
    """What a user gave as a metric, as one: a metric or meter as it is, a `torchmetrics.Metric` in an adapter.

    >>> from stoker import metrics
    >>> as_metric(metrics.Accuracy).name
    Traceback (most recent call last):
    stoker.errors.WrongType: metrics are objects, and Accuracy is a class: write Accuracy()
    """
    if isinstance(given, type):
        raise WrongType(f"metrics are objects, and {given.__name__} is a class: write {given.__name__}()")
    if isinstance(given, Metric | Meter):
        return given
    if any(each.__module__.startswith("torchmetrics") and each.__name__ == "Metric" for each in type(given).__mro__):
        return adapted(given)
    if type(given).__name__ == "MetricCollection":
        raise WrongType("metrics take a MetricCollection apart: write metrics=[*collection.values()]")
    if isinstance(given, str):
        from stoker import metrics  # the door, for the names in it

        known = {name.lower(): f"metrics.{name}()" for name in metrics.__all__ if name[0].isupper()}
        advice = f": write {known[given.lower()]}" if given.lower() in known else did_you_mean(given, known)
        raise WrongType(f"a metric is an object, not the name {given!r}{advice}")
    missing = [name for name in _CONTRACT if not hasattr(given, name)]
    if not missing:
        return cast(Metric, given)
    if inspect.isroutine(given):
        raise WrongType(f"a function is no metric yet: write metrics.of({getattr(given, '__name__', 'fn')})")
    raise WrongType(f"{type(given).__name__} is no metric: it has no {', '.join(missing)} (see stoker.metrics.Metric)")
