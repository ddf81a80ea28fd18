"""What differs between the ranks of a fit, in its state: gathered when it is saved, and given back to each."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stoker.checkpoint import random_state
from stoker.loop._fit import Fit
from stoker.loop._mark import is_storable
from stoker.loop._merge import added
from stoker.loop._random import seed_of_rank, seeded

OWN = ("random", "loader", "tally", "window")
_SPARSE = ("indices", "values")


def of_all_ranks(fit: Fit, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with every rank's own parts: rank 0's where one process has them, the others' under "ranks".

    Shards of a window belong to all ranks together, and are no part of any.
    """
    if fit.world.size == 1:
        return dict(state)
    own = {name: state[name] for name in OWN if not (fit.sharded and name == "window")}
    # What can't be sent of the user's, rank 0's stands for.
    counted = {name: each for name, each in state["callbacks"].items() if is_storable(each)}
    own |= {"share": fit.split.rank, "callbacks": counted, "state": state["loop"]["state"]}
    _, *others = fit.world.all_gather(own)
    return {**state, "share": fit.split.rank, "ranks": others}


def of_this_rank(fit: Fit, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state for this rank to go on from, whether as many processes have saved it or not.

    As many: each goes on with its own. Else what was counted and added up goes on at rank 0, and the others begin anew
    to count; a rank that is new draws random numbers of its own. What callbacks have counted is rank 0's then.
    """
    rank, size, parts = fit.world.rank, fit.world.size, [state, *state.get("ranks", ())]
    own = {name: value for name, value in state.items() if name not in ("ranks", "share")}
    shares = _by_share(parts)
    as_before = len(parts) == size and len(shares) == fit.split.size
    if as_before:
        own |= {name: parts[rank][name] for name in ("random", "loader", "tally")}
        own |= _counted_here(state, parts[rank]) if rank else {}
    else:
        own["random"] = _random(fit, shares, update=state["loop"]["update"])
        own["tally"] = _tally(fit, [part["tally"] for part in shares])
    whole = fit.sharded or any("window" not in part for part in parts)  # one window that all ranks have a shard of
    if as_before and not whole:
        return own | {"window": parts[rank]["window"]}
    return own | {"window": _windows(fit, [part.get("window", {}) for part in shares])}


def _by_share(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One rank's part for each share of a batch: ranks that had the same rows have counted the same."""
    found: dict[int, Mapping[str, Any]] = {}
    for rank, part in enumerate(parts):
        found.setdefault(part.get("share", rank), part)
    return [found[share] for share in sorted(found)]


def _counted_here(state: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """What the callbacks of a rank after the first have counted, and its `ctx.state`."""
    callbacks = {**state["callbacks"], **part["callbacks"]}
    return {"callbacks": callbacks, "loop": {**state["loop"], "state": part["state"]}}


def _tally(fit: Fit, tallies: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """All that was counted, at rank 0. Of other metrics nothing can be added up, and whoever resumes is told so."""
    if not fit.split.is_first:
        return fit.tally.state_dict()
    known = all(metric.name in tally["metrics"] for metric in fit.train_metrics for tally in tallies)
    return added(fit.train_metrics, tallies) if known else tallies[0]


def _random(fit: Fit, shares: Sequence[Mapping[str, Any]], *, update: int) -> Any:
    if fit.split.rank < len(shares):
        return shares[fit.split.rank]["random"]
    with seeded(seed_of_rank(fit.ctx.seed, fit.split.rank, update)):
        return random_state()


def _windows(fit: Fit, parts: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Each window's sums: all of them at rank 0, and none at the others, which have seen as many batches."""
    first, *others = parts
    if fit.split.is_first or fit.sharded:
        return {key: _summed([window, *(each[key] for each in others if key in each)]) for key, window in first.items()}
    return {key: {**window, "weight": 0, "weight_on_host": False, "sums": {}} for key, window in first.items()}


def _summed(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums = dict(windows[0]["sums"])
    for window in windows[1:]:
        for name, total in window["sums"].items():
            sums[name] = _plus(sums[name], total) if name in sums else total
    return {**windows[0], "sums": sums, "weight": sum(window["weight"] for window in windows)}


def _plus(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two sums as an `Accumulator` saves them; of sparse ones the places are put one after the other."""
    if "indices" not in one:
        return {**one, "values": one["values"] + other["values"]}
    joined = {name: torch.cat([one[name], other[name]], dim=-1 if name == "indices" else 0) for name in _SPARSE}
    return {**joined, "coalesced": False}
