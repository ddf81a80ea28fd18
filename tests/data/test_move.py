from collections import namedtuple
from dataclasses import dataclass

import torch
from stoker.data._move import map_batch, move_batch

META = torch.device("meta")  # a device that is everywhere
Pair = namedtuple("Pair", ["a", "b"])


@dataclass(frozen=True)
class Batch:
    images: torch.Tensor
    names: list


class Packed:
    def __init__(self, device="cpu"):
        self.device = device

    def to(self, device):
        return Packed(device)


def test_tensors_move_wherever_they_are():
    x = torch.zeros(2)
    batch = move_batch((x, [x, {"x": x}], Pair(x, "a"), Batch(x, ["b"]), Packed(), None, "word", 3), META)
    assert batch[0].device == META
    assert batch[1][0].device == batch[1][1]["x"].device == META
    assert batch[2].a.device == META
    assert batch[2].b == "a"
    assert batch[3].images.device == META
    assert batch[3].names == ["b"]
    assert batch[4].device == META
    assert batch[5:] == (None, "word", 3)


def test_what_is_there_already_is_not_copied():
    x = torch.zeros(2)
    assert move_batch({"x": x}, torch.device("cpu"))["x"] is x


def test_a_function_of_every_part_keeps_the_structure():
    batch = {"x": [1, (2, Pair(3, "word"))], "y": Batch(4, [b"bytes"])}
    seen = []
    assert map_batch(lambda part: seen.append(part) or part, batch) == batch
    assert seen == [1, 2, 3, "word", 4, b"bytes"]
    packed = Packed()
    assert map_batch(lambda part: part, [packed])[0] is packed
