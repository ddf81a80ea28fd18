"""What differs between the ranks of a fit, in its state: gathered when it is saved, and given back to each."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stoker.checkpoint import random_state
from stoker.loop._fit import Fit
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
    own = [name for name in OWN if not (fit.sharded and name == "window")]
    first, *others = fit.world.gathered({name: state[name] for name in own})
    return {**state, **first, "ranks": others}


def of_this_rank(fit: Fit, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state for this rank to go on from, whether as many processes have saved it or not.

    As many: each goes on with its own. Else what was counted and added up goes on at rank 0, and the others begin anew
    to count; a rank that is new draws random numbers of its own.
    """
    rank, size, parts = fit.world.rank, fit.world.size, [state, *state.get("ranks", ())]
    own = {name: value for name, value in state.items() if name != "ranks"}
    if len(parts) == size:
        own |= {name: parts[rank][name] for name in ("random", "loader", "tally")}
    else:
        own["random"] = _random(fit, parts)
        tallies = [part["tally"] for part in parts]
        own["tally"] = added(fit.train_metrics, tallies) if rank == 0 else fit.tally.state_dict()
    whole = fit.sharded or any("window" not in part for part in parts)  # one window that all ranks have a shard of
    if len(parts) == size and not whole:
        return own | {"window": parts[rank]["window"]}
    return own | {"window": _windows(fit, [part.get("window", {}) for part in parts])}


def _random(fit: Fit, parts: Sequence[Mapping[str, Any]]) -> Any:
    if fit.world.rank < len(parts):
        return parts[fit.world.rank]["random"]
    with seeded(seed_of_rank(fit.ctx.seed, fit.world.rank, parts[0]["loop"]["update"])):
        return random_state()


def _windows(fit: Fit, parts: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Each window's sums: all of them at rank 0, and none at the others, which have seen as many batches."""
    first, *others = parts
    if fit.world.is_first or fit.sharded:
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
