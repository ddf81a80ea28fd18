"""Agreement between the processes of a fit; with one process there is nothing to do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker.callbacks import Requests
from stoker.checkpoint import random_state
from stoker.data import Loader, PaddingBatch
from stoker.distributed import Agreement, World
from stoker.engine._rng import seed_of_rank, seed_rng
from stoker.engine._state import TrainState, is_storable
from stoker.engine._totals import merge_states
from stoker.errors import BadData, InvalidArgument, StateMismatch
from stoker.gradients import GradientReducer
from stoker.metrics import Metric

_NO_REQUEST: dict[str, Any] = {"stop": None, "interrupt": None, "terminated": False, "save": None, "warnings": []}
_END = object()
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_OWN_PARTS = ("random", "loader", "totals", "accumulators")  # of the state: these differ between ranks


class RankSync:
    """What the ranks of a fit do together.

    `world` are all processes; `data_world` are those among which a batch is split (a mesh may have more dimensions).
    `model_is_distributed`: the model itself reduces its gradients, because it is sharded or was wrapped by the user.
    """

    def __init__(
        self, world: World, data_world: World, *, model_is_distributed: bool = False, agree: bool = True
    ) -> None:
        self.world, self.data_world, self.model_is_distributed = world, data_world, model_is_distributed
        self._agreement = Agreement(world) if world.size > 1 and agree else None

    @property
    def must_agree(self) -> bool:
        """Whether ranks have to agree before they act."""
        return self._agreement is not None

    def send_requests_with(self, reducer: GradientReducer) -> None:
        """Sends with the gradients of a batch whether a rank has a request, if all ranks reduce them together."""
        if self._agreement is not None and self.data_world.size == self.world.size:
            reducer.request_flag = self._agreement.flag

    def exchange(self, requests: Requests, *, wait: bool = False) -> Mapping[str, Any] | None:
        """Hands in what this rank requests, and returns what any rank requested a batch ago; with `wait`, all of it.

        Every rank calls this after every batch, so that all act at the same place. Returns None if there is nothing.
        """
        if self._agreement is None:
            return None
        own, requests.pending = requests.pending or {}, {}
        if self.world.is_first:
            own.pop("warnings", None)  # they are in the record already
        handed_in = {**_NO_REQUEST, **own}
        return self._agreement.exchange(handed_in, wait=wait)

    def broadcast_within_split(self, tensors: list[Tensor]) -> None:
        """Writes the first rank's values over those of all ranks that a batch is split among."""
        if tensors and self.data_world.size > 1:
            self.data_world.broadcast(tensors)

    def broadcast_buffers(self, models: Iterable[nn.Module | None]) -> None:
        """Writes rank 0's buffers (running statistics) over those of all ranks, before evaluating or saving."""
        if self.world.size > 1:
            self.world.broadcast([buffer for model in models if model is not None for buffer in model.buffers()])

    def stop_streams_together(self, loader: Loader, batches: Iterable[Any]) -> Iterable[Any]:
        """The batches. If their number is unknown, ranks ask each other before each one: none is left waiting."""
        if self.world.size == 1 or length_of(loader) is not None:
            return batches
        return self._until_all_end(batches) if loader.sharded else self._in_step(batches)

    def _in_step(self, batches: Iterable[Any]) -> Iterator[Any]:
        number, iterator = 0, iter(batches)
        while not self.world.any((batch := next(iterator, _END)) is _END):
            number += 1
            yield batch
        ended = self.world.all_gather(batch is _END)
        if not all(ended):
            raise BadData(
                f"rank {ended.index(True)}'s stream ended after {number} batches, and rank {ended.index(False)}'s did "
                "not: every rank reads the same stream, and stoker gives each its share of it"
            )

    def _until_all_end(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of a rank that has its own data; padding after its last one, until every rank has ended."""
        iterator, last = iter(batches), _END
        while self.world.any((batch := next(iterator, _END)) is not _END):
            if last is _END and self.world.any(batch is _END):
                raise BadData("the data of a rank is empty, and the data of another is not: every rank needs a part")
            last = last if batch is _END else batch
            yield PaddingBatch(last) if batch is _END else batch

    def check_trained(self, model: nn.Module, epoch: int) -> None:
        """Raises if ranks do not train the same parameters: gloo would abort, as their gradients differ in size."""
        if self.data_world.size == 1 or self.model_is_distributed:
            return
        own = [name for name, parameter in named_parameters(model).items() if parameter.requires_grad]
        if self.data_world.combine([own], lambda one, other: one if one == other else []):
            return  # all are equal
        first, *others = self.data_world.all_gather(own)
        rank, theirs = next((rank, each) for rank, each in enumerate(others, start=1) if each != first)
        raise InvalidArgument(
            f"rank {rank} trains other parameters than rank 0 in epoch {epoch}, for example "
            f"{min(set(first) ^ set(theirs))}: freeze and unfreeze the same ones on every rank"
        )

    def check_replicas(self, model: nn.Module, epoch: int) -> None:
        """Raises if a rank's weights differ from rank 0's. The sums of the parameters' bits are compared.

        Waits for the device, once. A model that reduces its gradients itself is not compared.
        """
        parameters = {} if self.data_world.size == 1 or self.model_is_distributed else named_parameters(model)
        if not parameters:
            return
        own = torch.stack([_sum_bits(parameter) for parameter in parameters.values()]).tolist()
        if self.data_world.combine(own, lambda one, other: one if one == other else []):
            return  # all are equal
        first, *others = self.data_world.all_gather(own)
        for rank, theirs in enumerate(others, start=1):
            apart = [name for name, one, other in zip(parameters, first, theirs, strict=True) if one != other]
            if apart:
                more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
                raise StateMismatch(
                    f"rank {rank} has other weights than rank 0 at the end of epoch {epoch}: {apart[0]}{more}. Every "
                    "rank has to treat them alike: look for a hook that changes gradients, learning rate or weights "
                    "depending on what only one rank knows (its loss, its random numbers, its clock)"
                )

    # --- the parts of the state that differ between ranks

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state with every rank's own parts: rank 0's in their usual place, the others' under "ranks".

        Shards of an accumulator belong to all ranks together.
        """
        if self.world.size == 1:
            return state
        own = {name: state[name] for name in _OWN_PARTS if not (self.model_is_distributed and name == "accumulators")}
        # For user state that can't be sent, rank 0's is used on all ranks.
        callbacks = {name: each for name, each in state["callbacks"].items() if is_storable(each)}
        own |= {"share": self.data_world.rank, "callbacks": callbacks, "state": state["progress"]["state"]}
        _, *others = self.world.all_gather(own)
        return {**state, "share": self.data_world.rank, "ranks": others}

    def own_state(self, state: Mapping[str, Any], train: TrainState, metrics: Sequence[Metric]) -> dict[str, Any]:
        """The state for this rank to load.

        If the number of ranks is unchanged, each rank loads its own parts. Otherwise rank 0 loads the merged totals and
        accumulators, the others start at zero, and a new rank seeds its own random numbers.
        """
        rank, parts = self.world.rank, [state, *state.get("ranks", ())]
        own = {name: value for name, value in state.items() if name not in ("ranks", "share")}
        shares = _one_per_share(parts)
        same_ranks = len(parts) == self.world.size and len(shares) == self.data_world.size
        if same_ranks:
            own |= {name: parts[rank][name] for name in ("random", "loader", "totals")}
            if rank:
                callbacks = {**state["callbacks"], **parts[rank]["callbacks"]}
                own |= {"callbacks": callbacks, "progress": {**state["progress"], "state": parts[rank]["state"]}}
        else:
            own["random"] = self._random_of_share(shares, train.ctx.seed, update=state["progress"]["update"])
            own["totals"] = self._merge_totals(train, metrics, [part["totals"] for part in shares])
        is_sharded = self.model_is_distributed or any("accumulators" not in part for part in parts)
        if same_ranks and not is_sharded:
            return own | {"accumulators": parts[rank]["accumulators"]}
        return own | {"accumulators": self._merge_accumulators([part.get("accumulators", {}) for part in shares])}

    def _merge_totals(
        self, train: TrainState, metrics: Sequence[Metric], saved: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        if not self.data_world.is_first:
            return train.totals.state_dict()
        known = all(metric.name in totals["metrics"] for metric in metrics for totals in saved)
        return merge_states(metrics, saved) if known else saved[0]  # other metrics: loading tells the user

    def _random_of_share(self, shares: Sequence[Mapping[str, Any]], seed: int | None, *, update: int) -> Any:
        if self.data_world.rank < len(shares):
            return shares[self.data_world.rank]["random"]
        with seed_rng(seed_of_rank(seed, self.data_world.rank, update)):
            return random_state()

    def _merge_accumulators(self, parts: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
        """All sums at rank 0, and none at the others, which have seen as many batches."""
        first, *others = parts
        if self.data_world.is_first or self.model_is_distributed:
            return {
                key: _add_windows([window, *(each[key] for each in others if key in each)])
                for key, window in first.items()
            }
        return {key: {**window, "weight": 0, "weight_on_host": False, "sums": {}} for key, window in first.items()}


def length_of(loader: Any) -> int | None:
    """The batches of an epoch, or None if their number is unknown."""
    try:
        return len(loader)
    except TypeError:
        return None


def _sum_bits(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits, read as integers: [] of int64, on its device."""
    plain = tensor.detach()
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    return plain.view(_INTEGERS[plain.element_size()]).sum(dtype=torch.int64)


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
