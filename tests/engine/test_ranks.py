from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stoker.checkpoint import set_random_state
from stoker.distributed import World
from stoker.gradients import Accumulator, Gradients
from stoker.loop._ranks import of_all_ranks, of_this_rank
from stoker.engine._totals import Tally
from stoker.metrics import Accuracy


def rank(number, size, *, sharded=False, split=None, metrics=()):
    tally = Tally(metrics, torch.device("cpu"))
    world = World(number, size)
    return SimpleNamespace(
        world=world,
        split=world if split is None else World(*split),
        sharded=sharded,
        ctx=SimpleNamespace(seed=3),
        tally=tally,
        train_metrics=metrics,
    )


def window(value, weight, model):
    found = Accumulator()
    found.add(Gradients({"weight": torch.full((1, 1), value)}, model), weight=weight)
    return found.state_dict()


def part(number, model):
    tally = Tally([], torch.device("cpu"))
    tally.add_loss("loss", torch.tensor(float(number)), number + 1)
    tally.samples = number + 1
    windows = {None: window(float(number), number + 1, model)}
    return {
        "random": f"of rank {number}",
        "loader": {},
        "tally": tally.state_dict(),
        "window": windows,
        "callbacks": {"Own": {"mean": number}},
        "state": {"seen": number},
    }


def state(count, model):
    first, *others = [part(number, model) for number in range(count)]
    loop = {"update": 5, "state": first.pop("state")}
    return {"loop": loop, "model": "common", **first, **({"ranks": others} if others else {})}


@pytest.fixture
def model():
    return nn.Linear(1, 1, bias=False)


def test_alone_the_state_is_as_it_was(model):
    alone = state(1, model)
    assert of_all_ranks(rank(0, 1), alone) == alone
    assert of_this_rank(rank(0, 1), alone) == alone


def test_as_many_ranks_go_on_with_their_own(model):
    for number in range(3):
        found = of_this_rank(rank(number, 3), state(3, model))
        assert found["random"] == f"of rank {number}"
        assert found["tally"]["samples"] == number + 1
        assert found["window"][None]["weight"] == number + 1
        assert (found["model"], "ranks" in found) == ("common", False)
        assert found["callbacks"] == {"Own": {"mean": number}}
        assert found["loop"] == {"update": 5, "state": {"seen": number}}


def test_other_numbers_of_ranks_have_the_same_sums_together(model):
    found = [of_this_rank(rank(number, 2), state(3, model)) for number in range(2)]
    assert [each["random"] for each in found] == ["of rank 0", "of rank 1"]
    assert [each["tally"]["samples"] for each in found] == [6, 0]
    assert found[0]["tally"]["sums"] == {"loss": 8.0}
    first, second = (Accumulator(), Accumulator())
    first.load_state_dict(found[0]["window"][None], model)
    second.load_state_dict(found[1]["window"][None], model)
    assert len(first) == len(second) == 1  # a window is open on both, and closes on both
    assert first.take()["weight"].item() == pytest.approx(8 / 6)
    assert second.held[1:] == (0, {})
    assert [each["callbacks"]["Own"]["mean"] for each in found] == [0, 0]
    assert [each["loop"]["state"]["seen"] for each in found] == [0, 0]


def test_what_can_t_be_sent_of_a_callback_is_rank_0_s(model):
    saved = state(2, model)
    saved["callbacks"]["Odd"] = {"last": deque([1])}
    assert of_this_rank(rank(1, 2), saved)["callbacks"] == {"Own": {"mean": 1}, "Odd": {"last": deque([1])}}


def test_ranks_that_had_the_same_rows_count_once(model):
    saved = state(4, model)
    for number, each in enumerate([saved, *saved["ranks"]]):
        each["share"] = number // 2
    found = [of_this_rank(rank(number, 2), saved) for number in range(2)]
    assert [each["tally"]["samples"] for each in found] == [1 + 3, 0]
    assert [each["random"] for each in found] == ["of rank 0", "of rank 2"]
    assert "share" not in found[0]
    # As many processes, and another mesh: all four have rows of their own now.
    found = [of_this_rank(rank(number, 4), saved) for number in range(4)]
    assert [each["tally"]["samples"] for each in found] == [1 + 3, 0, 0, 0]
    # The same mesh.
    found = [of_this_rank(rank(number, 4, split=(number // 2, 2)), saved) for number in range(4)]
    assert [each["tally"]["samples"] for each in found] == [1, 2, 3, 4]
    # Twice as many, in a mesh: ranks with the same rows draw the same.
    found = [of_this_rank(rank(number, 6, split=(number // 2, 3)), saved) for number in range(6)]
    assert [each["tally"]["samples"] for each in found] == [4, 4, 0, 0, 0, 0]
    assert [each["random"] for each in found[:4]] == ["of rank 0", "of rank 0", "of rank 2", "of rank 2"]


def test_other_metrics_are_left_to_whoever_resumes(model):
    found = of_this_rank(rank(0, 1, metrics=[Accuracy()]), state(2, model))
    assert found["tally"]["metrics"] == {} and found["tally"]["samples"] == 1


def test_a_new_rank_draws_numbers_of_its_own(model):
    numbers = []
    for number in (1, 2):
        set_random_state(of_this_rank(rank(number, 3), state(1, model))["random"])
        numbers.append(torch.rand(()).item())
    assert numbers[0] != numbers[1]
    set_random_state(of_this_rank(rank(1, 3), state(1, model))["random"])
    assert torch.rand(()).item() == numbers[0]


def test_shards_of_a_window_are_all_of_it(model):
    found = [of_this_rank(rank(number, 3, sharded=True), state(3, model))["window"][None] for number in range(3)]
    assert [each["weight"] for each in found] == [6, 6, 6]
    saved = state(3, model)
    for other in saved["ranks"]:
        del other["window"]  # as shards are saved
    assert [of_this_rank(rank(number, 3), saved)["window"][None]["weight"] for number in range(3)] == [1, 0, 0]


def test_sparse_sums_are_put_one_after_the_other():
    model = nn.Embedding(3, 1, sparse=True)
    states = []
    for row in (0, 2):
        found = Accumulator()
        tensor = torch.sparse_coo_tensor([[row]], [[1.0]], (3, 1), check_invariants=True)
        found.add(Gradients({"weight": tensor}, model), weight=1)
        states.append({**part(0, nn.Linear(1, 1, bias=False)), "window": {None: found.state_dict()}})
    saved = {"loop": {"update": 5}, **states[0], "ranks": states[1:]}
    whole = Accumulator()
    whole.load_state_dict(of_this_rank(rank(0, 1), saved)["window"][None], model)
    assert whole.take()["weight"].to_dense().flatten().tolist() == [0.5, 0.0, 0.5]
