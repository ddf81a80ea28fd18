"""Rank 0 asks for one tensor after the other, and tells how it ended; real ranks: tests/distributed."""

from pathlib import Path

import pytest
import torch

from stoker.distributed import World
from stoker.errors import PeerFailed
from stoker.weights import _together
from stoker.weights._together import save_together


class Sharded:
    """What looks like a tensor of which a part is here."""

    def __init__(self, value):
        self.value, self.gathered = value, 0

    def detach(self):
        return self

    def full_tensor(self):
        self.gathered += 1
        return self.value


class Wire(World):
    """A rank that says, or hears, what is in a list."""

    def __init__(self, rank, said):
        super().__init__(rank=rank, size=2)
        object.__setattr__(self, "said", said)

    def told(self, value):
        if not self.is_first:
            return self.said.pop(0)
        self.said.append(value)
        return value


@pytest.fixture
def tensors():
    return {"a": Sharded(torch.ones(2)), "b": Sharded(torch.zeros(2)), "plain": torch.ones(1)}


def test_plain_ones_are_written_and_nobody_is_asked():
    plain = {"a": torch.ones(2)}
    assert save_together(plain, lambda fetch: Path("m") if fetch("a") is plain["a"] else None) == Path("m")


def test_the_others_follow_what_rank_0_fetches(tensors, monkeypatch):
    said = []
    monkeypatch.setattr(_together, "joined", lambda: Wire(0, said))

    def write(fetch):
        assert all(torch.equal(fetch(name), tensors[name].value) for name in ("b", "a", "b"))
        assert fetch("plain") is tensors["plain"]
        return Path("m")

    assert save_together(tensors, write) == Path("m")
    assert said == ["b", "a", "b", None, ("m", None)]
    monkeypatch.setattr(_together, "joined", lambda: Wire(1, said))
    assert save_together(tensors, None) == Path("m") and said == []
    assert (tensors["a"].gathered, tensors["b"].gathered) == (2, 4)


def test_a_failure_of_rank_0_is_told(tensors, monkeypatch):
    said = []

    def write(fetch):
        fetch("a")
        raise OSError("full")

    monkeypatch.setattr(_together, "joined", lambda: Wire(0, said))
    with pytest.raises(OSError, match="^full$"):
        save_together(tensors, write)
    monkeypatch.setattr(_together, "joined", lambda: Wire(1, said))
    with pytest.raises(PeerFailed, match="^rank 0 could not save the model: OSError: full$"):
        save_together(tensors, None)
