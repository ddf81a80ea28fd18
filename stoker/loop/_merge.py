"""The numbers of all ranks as one: each has counted its own samples, and every rank gets the same sums."""

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.distributed import World
from stoker.loop._tally import Tally
from stoker.metrics import Metric


def merged(tally: Tally, world: World) -> Tally:
    """What all ranks have counted, in a tally of its own; the tally itself where there is one rank."""
    if world.size == 1:
        return tally
    whole = tally.empty()
    whole.load_state_dict(added(tally.metrics, world.all_gather(tally.state_dict())))
    return whole


def added(metrics: Sequence[Metric], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of several tallies as that of one which has seen it all; in their order, so to the same bits."""
    first, *others = states
    kept = dict(first["metrics"])
    for other in others:
        kept = {metric.name: metric.merge(kept[metric.name], other["metrics"][metric.name]) for metric in metrics}
    return {
        "metrics": kept,
        "on_host": first["on_host"],
        "sums": _sums([state["sums"] for state in states]),
        "weights": _sums([state["weights"] for state in states]),
        "samples": sum(state["samples"] for state in states),
    }


def _sums(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(float(part[name]) for part in parts if name in part) for name in names}
