import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from stoker.errors import BadFile
from stoker.weights import inspect, load, save
from stoker.weights._head import DTYPES


class Holder(nn.Module):
    def __init__(self, **tensors: torch.Tensor):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def every_dtype() -> dict[str, torch.Tensor]:
    return {f"a_{name}": torch.ones(3, 5).to(dtype) for name, dtype in DTYPES.items() if name != "complex128"}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_the_package_reads_what_we_write(tmp_path):
    given = every_dtype()
    path = save(Holder(**given), tmp_path / "m", metadata={"run": "7"})
    read = load_file(path)
    assert read.keys() == given.keys()
    assert all(read[name].dtype == given[name].dtype and bits(read[name]) == bits(given[name]) for name in given)
    with safe_open(path, "pt") as opened:
        assert opened.metadata()["run"] == "7"
        assert opened.metadata()["format"] == "pt"  # what transformers asks for


def test_we_read_what_the_package_writes(tmp_path):
    given = every_dtype()
    path = tmp_path / "theirs.safetensors"
    for metadata in (None, {"format": "pt", "note": "x"}):
        save_file(given, path, metadata=metadata)
        blank = Holder(**{name: torch.zeros(3, 5).to(tensor.dtype) for name, tensor in given.items()})
        load(blank, path)
        assert all(bits(getattr(blank, name)) == bits(tensor) for name, tensor in given.items())
        assert inspect(path).metadata == (metadata or {})
        assert inspect(path).precision is None
        assert len(repr(inspect(path)).splitlines()) >= 1 + len(given)


def test_complex128_is_stored_as_pairs_that_others_can_read(tmp_path):
    given = torch.tensor([[1 + 2j], [3 - 4j]], dtype=torch.complex128)
    path = save(Holder(t=given), tmp_path / "m")
    assert torch.equal(torch.view_as_complex(load_file(path)["t"]), given)


def test_tensors_are_aligned(tmp_path):
    given = {"a": torch.ones(3, dtype=torch.bool), "b": torch.ones(1), "c": torch.ones(1, dtype=torch.float64)}
    path = save(Holder(**given), tmp_path / "m")
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert all(header[name]["data_offsets"][0] % given[name].element_size() == 0 for name in given)


def forge(path, header, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(("header", "data", "text"), [
    ({"w": entry(offsets=(0, 8), shape=(2,))}, bytes(4), r"ends too early"),
    ({"w": entry()}, bytes(8), r"goes on after its last tensor"),
    ({"w": entry(shape=(-1,), offsets=(0, -4))}, b"", r"sizes are whole and not negative"),
    ({"w": entry(shape=(-1, -1))}, bytes(4), r"sizes are whole and not negative"),
    ({"w": entry(shape=(True,))}, bytes(4), r"sizes are whole"),
    ({"w": entry(shape=(1.0,))}, bytes(4), r"sizes are whole"),
    ({"w": entry(shape=(2**40, 2**40))}, bytes(4), r"which torch can't hold"),
    ({"w": entry(shape=(2**40,))}, bytes(4), r"1,099,511,627,776 |4,398,046,511,104 bytes, but lies at \[0, 4\]"),
    ({"w": entry(shape=(2**62, 4))}, bytes(4), r"which torch can't hold"),
    ({"w": entry(shape=(1,) * 70)}, bytes(4), r"expected a list of sizes"),
    ({"w": {**entry(), "shape": "1"}}, bytes(4), r"expected a list of sizes"),
    ({"w": entry(dtype="X9")}, bytes(4), r"has the dtype 'X9', which torch can't hold"),
    ({"w": entry(dtype=[])}, bytes(4), r"has the dtype \[\]"),
    ({"w": entry(offsets=(4, 0))}, bytes(4), r"but lies at \[4, 0\]"),
    ({"w": entry(offsets=(-4, 0))}, bytes(4), r"but lies at \[-4, 0\]"),
    ({"w": entry(offsets=(0,))}, bytes(4), r"expected where it starts and ends"),
    ({"w": entry(), "v": entry()}, bytes(8), r"overlaps with the one before it"),
    ({"w": entry(), "v": entry(offsets=(2, 6))}, bytes(8), r"overlaps with the one before it"),
    ({"w": entry(), "v": entry(offsets=(8, 12))}, bytes(12), r"leaves a gap before it"),
    ({"w": {"dtype": "F32"}}, bytes(4), r"is described by"),
    ({"w": 3}, b"", r"is described by 3"),
    ({"__metadata__": {"a": 1}, "w": entry()}, bytes(4), r"no mapping of strings to strings"),
    ({"__metadata__": {"stoker": "{"}, "w": entry()}, bytes(4), r"what stoker noted in it is damaged"),
    ({"__metadata__": {"stoker": "[]"}, "w": entry()}, bytes(4), r"what stoker noted in it is damaged"),
    ({"__metadata__": {"stoker": "{}"}, "w": entry()}, bytes(4), r"what stoker noted in it is damaged"),
    ({"__metadata__": {"stokes": "", "stoker.x": ""}, "w": entry()}, bytes(4), r"what stoker noted in it is damaged"),
    ({"__metadata__": {"stoker": '{"version": 2}'}, "w": entry()}, bytes(4), r"written by a newer stoker .*version 2"),
    (b'{"w": 1, "w": 2}', b"", r"'w' comes twice"),
    (b'{"w": ' + b"[" * 100_000, b"", r"not the JSON that it should be"),
    (b"{\xff}", b"", r"not the JSON that it should be"),
    (b'{"w": ' + b"1" * 10_000 + b"}", b"", r"not the JSON that it should be"),
])  # fmt: skip
def test_a_forged_header_is_refused_by_what_is_wrong_with_it(tmp_path, header, data, text):
    path = tmp_path / "forged"
    forge(path, header, data)
    with pytest.raises(BadFile, match=text):
        load(Holder(w=torch.zeros(1)), path)
    with pytest.raises(BadFile, match=text):
        inspect(path)


def test_a_header_that_claims_too_much_is_refused(tmp_path):
    path = tmp_path / "forged"
    forge(path, b"{}", length=2**32)
    with pytest.raises(BadFile, match=r"its header claims 4,294,967,296 bytes; at most 100,000,000 are read"):
        load(Holder(w=torch.zeros(1)), path)
    forge(path, b"{}", length=90_000_000)
    with pytest.raises(BadFile, match=r"ends too early"):
        load(Holder(w=torch.zeros(1)), path)
