"""The state of several ranks in one checkpoint: what differs between them, and each rank's own part of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stoker.checkpoint import random_state
from stoker.engine._ranks import Ranks
from stoker.engine._rng import seed_of_rank, seed_rng
from stoker.engine._state import TrainState, is_storable
from stoker.engine._totals import merge_states
from stoker.metrics import Metric

_OWN_PARTS = ("random", "loader", "totals", "accumulators")  # entries of a state that differ between ranks


def gather_state(ranks: Ranks, state: dict[str, Any]) -> dict[str, Any]:
    """The state with every rank's own parts: rank 0's in their usual place, the others' under "ranks".

    Shards of an accumulator belong to all ranks together.
    """
    if ranks.world.size == 1:
        return state
    own = {name: state[name] for name in _OWN_PARTS if not (ranks.model_is_distributed and name == "accumulators")}
    # For user state that can't be sent, rank 0's is used on all ranks.
    callbacks = {name: each for name, each in state["callbacks"].items() if is_storable(each)}
    own |= {"share": ranks.data_world.rank, "callbacks": callbacks, "state": state["progress"]["state"]}
    _, *others = ranks.world.all_gather(own)
    return {**state, "share": ranks.data_world.rank, "ranks": others}


def own_state(ranks: Ranks, state: Mapping[str, Any], current: TrainState, metrics: Sequence[Metric]) -> dict[str, Any]:
    """The part of a saved state that this rank loads; `current` is its state before that.

    If the number of ranks is unchanged, each rank loads its own parts. Otherwise rank 0 loads the merged totals and
    accumulators, the others start at zero, and a new rank seeds its own random numbers.
    """
    rank, parts = ranks.world.rank, [state, *state.get("ranks", ())]
    own = {name: value for name, value in state.items() if name not in ("ranks", "share")}
    shares = _one_per_share(parts)
    same_ranks = len(parts) == ranks.world.size and len(shares) == ranks.data_world.size
    if same_ranks:
        own |= {name: parts[rank][name] for name in ("random", "loader", "totals")}
        if rank:
            callbacks = {**state["callbacks"], **parts[rank]["callbacks"]}
            own |= {"callbacks": callbacks, "progress": {**state["progress"], "state": parts[rank]["state"]}}
    else:
        own["random"] = _random_of_share(ranks, shares, current.ctx.seed, update=state["progress"]["update"])
        own["totals"] = _merge_totals(ranks, current, metrics, [part["totals"] for part in shares])
    is_sharded = ranks.model_is_distributed or any("accumulators" not in part for part in parts)
    if same_ranks and not is_sharded:
        return own | {"accumulators": parts[rank]["accumulators"]}
    return own | {"accumulators": _merge_accumulators(ranks, [part.get("accumulators", {}) for part in shares])}


def _merge_totals(
    ranks: Ranks, current: TrainState, metrics: Sequence[Metric], saved: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    if not ranks.data_world.is_first:
        return current.totals.state_dict()
    known = all(metric.name in totals["metrics"] for metric in metrics for totals in saved)
    return merge_states(metrics, saved) if known else saved[0]  # other metrics: loading tells the user


def _random_of_share(ranks: Ranks, shares: Sequence[Mapping[str, Any]], seed: int | None, *, update: int) -> Any:
    if ranks.data_world.rank < len(shares):
        return shares[ranks.data_world.rank]["random"]
    with seed_rng(seed_of_rank(seed, ranks.data_world.rank, update)):
        return random_state()


def _merge_accumulators(ranks: Ranks, parts: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """All sums at rank 0, and none at the others, which have seen as many batches."""
    first, *others = parts
    if ranks.data_world.is_first or ranks.model_is_distributed:
        return {
            key: _add_windows([window, *(each[key] for each in others if key in each)]) for key, window in first.items()
        }
    return {key: {**window, "weight": 0, "weight_on_host": False, "sums": {}} for key, window in first.items()}


def _one_per_share(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One rank's part for each share of a batch: ranks with the same rows have counted the same."""
    found: dict[int, Mapping[str, Any]] = {}
    for rank, part in enumerate(parts):
        found.setdefault(part.get("share", rank), part)
    return [found[share] for share in sorted(found)]


def _add_windows(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums = dict(windows[0]["sums"])
    for window in windows[1:]:
        for name, total in window["sums"].items():
            sums[name] = _add_sums(sums[name], total) if name in sums else total
    return {**windows[0], "sums": sums, "weight": sum(window["weight"] for window in windows)}


def _add_sums(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Adds two sums as an `Accumulator` saves them; of sparse ones the entries are joined."""
    if "indices" not in one:
        return {**one, "values": one["values"] + other["values"]}
    parts = {
        name: torch.cat([one[name], other[name]], dim=-1 if name == "indices" else 0) for name in ("indices", "values")
    }
    return {**parts, "coalesced": False}
