import pytest
import torch

from stoker.errors import BadFile
from stoker.weights._head import Entry, Head, Seal, check_head, checksum, read_seal, short, unique


def head(**changes) -> Head:
    parts = {
        "tensors": {"a": Entry(torch.float32, (2, 3)), "b": Entry(torch.int64, ())},
        "metadata": {"run": "7"},
        "seal": Seal("full", {"c": "a"}, {}, {"a": "00000001", "b": "00000002"}),
    }
    return Head(**{**parts, **changes})


@pytest.mark.parametrize("changes", [
    {"tensors": {"a": Entry(torch.float32, (3, 2)), "b": Entry(torch.int64, ())}},
    {"tensors": {"a": Entry(torch.int32, (2, 3)), "b": Entry(torch.int64, ())}},
    {"tensors": {"x": Entry(torch.float32, (2, 3)), "b": Entry(torch.int64, ())}},
    {"metadata": {"run": "8"}},
    {"seal": Seal("half", {"c": "a"}, {}, {"a": "00000001", "b": "00000002"})},
    {"seal": Seal("full", {"c": "b"}, {}, {"a": "00000001", "b": "00000002"})},
    {"seal": Seal("full", {"c": "a"}, {}, {"a": "00000003", "b": "00000002"})},
    {"seal": Seal("full", {"c": "a"}, {"a": "float64"}, {"a": "00000001", "b": "00000002"})},
])  # fmt: skip
def test_the_checksum_covers_everything_that_the_head_says(changes):
    said = head().sealed()["head"]
    assert check_head("m", head(), said)
    with pytest.raises(BadFile, match=r"m is damaged: its names, shapes or metadata"):
        check_head("m", head(**changes), said)


def test_a_seal_comes_back():
    assert read_seal("m", head().sealed(), head().tensors) == head().seal


def test_small_things():
    assert checksum(b"123456789") == "cbf43926"  # the check value in the definition of CRC-32
    assert Entry(torch.float64, (2, 3)).bytes == 48
    assert len(short("x" * 1000)) == 80
    with pytest.raises(ValueError, match="comes twice"):
        unique([("a", 1), ("a", 2)])
