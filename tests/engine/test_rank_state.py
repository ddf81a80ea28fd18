"""The state of several ranks in one checkpoint: each rank gets its own part, also if their number changes."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stoker.checkpoint import set_random_state
from stoker.distributed import World
from stoker.engine import Ranks, RunningTotals, gather_state
from stoker.engine import own_state as load_own_state
from stoker.gradients import Accumulator, Gradients
from stoker.metrics import Accuracy


def own_state(saved, number, size, *, sharded=False, split=None, metrics=()):
    """The state that a rank continues from."""
    world = World(number, size)
    ranks = Ranks(world, world if split is None else World(*split), model_is_distributed=sharded)
    train = SimpleNamespace(ctx=SimpleNamespace(seed=3), totals=RunningTotals(metrics, torch.device("cpu")))
    return load_own_state(ranks, saved, train, metrics)


def window(value, weight, model):
    found = Accumulator()
    found.add(Gradients({"weight": torch.full((1, 1), value)}, model), weight=weight)
    return found.state_dict()


def part(number, model):
    totals = RunningTotals([], torch.device("cpu"))
    totals.add_loss("loss", torch.tensor(float(number)), number + 1)
    totals.samples = number + 1
    windows = {None: window(float(number), number + 1, model)}
    return {
        "random": f"of rank {number}",
        "loader": {},
        "totals": totals.state_dict(),
        "accumulators": windows,
        "callbacks": {"Own": {"mean": number}},
        "state": {"seen": number},
    }


def state(count, model):
    first, *others = [part(number, model) for number in range(count)]
    progress = {"update": 5, "state": first.pop("state")}
    return {"progress": progress, "model": "common", **first, **({"ranks": others} if others else {})}


@pytest.fixture
def model():
    return nn.Linear(1, 1, bias=False)


def test_one_process_saves_and_loads_its_state_unchanged(model):
    alone = state(1, model)
    assert gather_state(Ranks(), alone) == alone
    assert own_state(alone, 0, 1) == alone


def test_as_many_ranks_as_before_continue_with_their_own_states(model):
    for number in range(3):
        found = own_state(state(3, model), number, 3)
        assert found["random"] == f"of rank {number}"
        assert found["totals"]["samples"] == number + 1
        assert found["accumulators"][None]["weight"] == number + 1
        assert (found["model"], "ranks" in found) == ("common", False)
        assert found["callbacks"] == {"Own": {"mean": number}}
        assert found["progress"] == {"update": 5, "state": {"seen": number}}


def test_another_number_of_ranks_has_the_same_totals(model):
    found = [own_state(state(3, model), number, 2) for number in range(2)]
    assert [each["random"] for each in found] == ["of rank 0", "of rank 1"]
    assert [each["totals"]["samples"] for each in found] == [6, 0]
    assert found[0]["totals"]["sums"] == {"loss": 8.0}
    first, second = (Accumulator(), Accumulator())
    first.load_state_dict(found[0]["accumulators"][None], model)
    second.load_state_dict(found[1]["accumulators"][None], model)
    assert len(first) == len(second) == 1  # the window is open on both, so that both close it
    assert first.take()["weight"].item() == pytest.approx(8 / 6)
    assert second.weight == 0
    assert [each["callbacks"]["Own"]["mean"] for each in found] == [0, 0]
    assert [each["progress"]["state"]["seen"] for each in found] == [0, 0]


def test_callback_states_that_cannot_be_sent_are_those_of_rank_0(model):
    saved = state(2, model)
    saved["callbacks"]["Odd"] = {"last": deque([1])}
    assert own_state(saved, 1, 2)["callbacks"] == {"Own": {"mean": 1}, "Odd": {"last": deque([1])}}


def test_ranks_with_the_same_samples_count_once(model):
    saved = state(4, model)
    for number, each in enumerate([saved, *saved["ranks"]]):
        each["share"] = number // 2
    found = [own_state(saved, number, 2) for number in range(2)]
    assert [each["totals"]["samples"] for each in found] == [1 + 3, 0]
    assert [each["random"] for each in found] == ["of rank 0", "of rank 2"]
    assert "share" not in found[0]
    # As many processes with another mesh: all four have their own samples now.
    found = [own_state(saved, number, 4) for number in range(4)]
    assert [each["totals"]["samples"] for each in found] == [1 + 3, 0, 0, 0]
    # The same mesh.
    found = [own_state(saved, number, 4, split=(number // 2, 2)) for number in range(4)]
    assert [each["totals"]["samples"] for each in found] == [1, 2, 3, 4]
    # More processes in a mesh: ranks with the same samples draw the same random numbers.
    found = [own_state(saved, number, 6, split=(number // 2, 3)) for number in range(6)]
    assert [each["totals"]["samples"] for each in found] == [4, 4, 0, 0, 0, 0]
    assert [each["random"] for each in found[:4]] == ["of rank 0", "of rank 0", "of rank 2", "of rank 2"]


def test_states_of_other_metrics_are_dropped(model):
    found = own_state(state(2, model), 0, 1, metrics=[Accuracy()])
    assert found["totals"]["metrics"] == {} and found["totals"]["samples"] == 1


def test_a_new_rank_draws_its_own_random_numbers(model):
    numbers = []
    for number in (1, 2):
        set_random_state(own_state(state(1, model), number, 3)["random"])
        numbers.append(torch.rand(()).item())
    assert numbers[0] != numbers[1]
    set_random_state(own_state(state(1, model), 1, 3)["random"])
    assert torch.rand(()).item() == numbers[0]


def test_a_sharded_window_is_gathered_from_all_ranks(model):
    found = [own_state(state(3, model), number, 3, sharded=True)["accumulators"][None] for number in range(3)]
    assert [each["weight"] for each in found] == [6, 6, 6]
    saved = state(3, model)
    for other in saved["ranks"]:
        del other["accumulators"]  # as shards are saved
    assert [own_state(saved, number, 3)["accumulators"][None]["weight"] for number in range(3)] == [1, 0, 0]


def test_sparse_gradients_of_several_ranks_are_added():
    model = nn.Embedding(3, 1, sparse=True)
    states = []
    for row in (0, 2):
        found = Accumulator()
        tensor = torch.sparse_coo_tensor([[row]], [[1.0]], (3, 1), check_invariants=True)
        found.add(Gradients({"weight": tensor}, model), weight=1)
        states.append({**part(0, nn.Linear(1, 1, bias=False)), "accumulators": {None: found.state_dict()}})
    saved = {"progress": {"update": 5}, **states[0], "ranks": states[1:]}
    whole = Accumulator()
    whole.load_state_dict(own_state(saved, 0, 1)["accumulators"][None], model)
    assert whole.take()["weight"].to_dense().flatten().tolist() == [0.5, 0.0, 0.5]
