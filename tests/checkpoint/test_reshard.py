"""Shards out of files that are as they should be, and that are not; like other ranks' in tests/distributed."""

import json

import pytest
import torch
from safetensors.torch import save_file

from stoker.checkpoint._reshard import read_shards
from stoker.errors import BadFile


def shards(folder, *files):
    """Files of tensors, each with where it starts in the whole."""
    names = []
    for number, tensors in enumerate(files):
        places = {key: {"saved_offsets": start} for key, (start, _) in tensors.items() if start is not None}
        names.append(f"{number}.safetensors")
        metadata = {"DCP_SHARDING_INFO": json.dumps(places)}
        save_file({key: each.contiguous() for key, (_, each) in tensors.items()}, folder / names[-1], metadata=metadata)
    return names


def test_parts_make_a_whole_and_copies_count_once(tmp_path):
    whole, number = torch.arange(12.0).reshape(4, 3), torch.tensor(7)
    files = shards(
        tmp_path,
        {"a": ([0, 0], whole[:3]), "n": ([], number), "e": ([0], torch.empty(0))},
        {"a": ([3, 0], whole[3:]), "n": ([], number), "e": ([0], torch.empty(0))},
        {"a": ([4, 0], whole[4:])},  # a rank for which nothing was left
    )
    found = read_shards(tmp_path, files, {})
    assert torch.equal(found["a"], whole) and torch.equal(found["n"], number) and found["e"].shape == (0,)


def test_what_does_not_make_a_whole_is_refused(tmp_path):
    files = shards(tmp_path, {"a": ([0], torch.ones(2))}, {"a": ([3], torch.ones(2))})
    with pytest.raises(BadFile, match=r"the parts of 'a' don't make a whole tensor \[5\]"):
        read_shards(tmp_path, files, {})
    files = shards(tmp_path, {"a": ([0], torch.ones(2))}, {"a": ([2, 0], torch.ones(2, 1))})
    with pytest.raises(BadFile, match="the parts of 'a' are not of one tensor"):
        read_shards(tmp_path, files, {})
    for start in (None, [0, 0], "x", ["x"], 3, [-1]):
        files = shards(tmp_path, {"a": (start, torch.ones(2))})
        with pytest.raises(BadFile):
            read_shards(tmp_path, files, {})
    (tmp_path / "0.safetensors").write_bytes(b"no header at all")
    with pytest.raises(BadFile, match="can't be read"):
        read_shards(tmp_path, ["0.safetensors"], {})
