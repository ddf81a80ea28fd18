import pytest
import torch
from torch import nn

from stoker.errors import BadFile
from stoker.weights import Listing, inspect, save


@pytest.mark.parametrize("format", ["safetensors", "msgpack", "json"])
@pytest.mark.parametrize("compress", [False, True])
def test_names_shapes_and_metadata_are_read_without_loading(tmp_path, format, compress):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("phase", torch.zeros((), dtype=torch.complex128))
    path = save(model, tmp_path / "m", format=format, compress=compress, metadata={"run": "7"})
    listing = inspect(path)
    assert isinstance(listing, Listing)
    assert {name: repr(entry) for name, entry in listing.tensors.items()} == {
        "phase": "complex128 []",
        "0.weight": "float32 [2, 2]",
    }
    assert list(listing.tensors) == ["phase", "0.weight"]  # in the model's order
    assert listing.aliases == {"1.weight": "0.weight"}
    assert (listing.format, listing.compressed, listing.precision) == (format, compress, "full")
    assert listing.metadata == {"run": "7"}
    assert repr(listing).splitlines() == [
        f"{path.name}: {format}{', gzipped' if compress else ''}, full precision, 2 tensors, 5 numbers",
        "  phase     complex128 []",
        "  0.weight  float32 [2, 2]",
        "  1.weight  is 0.weight",
        "  run: 7",
    ]


def test_damage_in_the_head_is_noticed_and_a_long_list_is_cut(tmp_path):
    path = save(nn.ModuleList([nn.Linear(1, 1) for _ in range(30)]), tmp_path / "m")
    assert "and 20 more" in repr(inspect(path))
    path.write_bytes(path.read_bytes().replace(b'"29.bias":', b'"99.bias":', 1))
    with pytest.raises(BadFile, match=r"checksum"):
        inspect(path)
