"""Tensors by name in an open file: `write_tensors`, `read_tensors`, `check_tensor`."""

import io
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stoker.errors import BadFile, InvalidArgument
from stoker.weights import check_tensor, load, read_tensors, write_tensors
from tests.weights.models import every_dtype, same_bits


def write(tensors) -> bytes:
    file = io.BytesIO()
    write_tensors(file, tensors)
    return file.getvalue()


def read(content: bytes) -> dict[str, torch.Tensor]:
    return read_tensors(io.BytesIO(content), name="memory", size=len(content))


def test_every_dtype_and_layout_is_restored_in_the_given_order():
    whole = torch.complex(torch.arange(24.0), torch.ones(24)).reshape(4, 6)
    given = {
        **every_dtype(),
        "scalar": torch.tensor(2.5),
        "none": torch.ones(0, 3),
        "one": torch.tensor(1j).cdouble(),
        "t": whole.T,
        "conj": whole.conj(),
        "part": whole[::2, 1],
        "wide": whole[:1].expand(3, 6),
    }
    found = read(write(given))
    assert list(found) == list(given)
    assert all(same_bits(found[name], tensor) for name, tensor in given.items())
    negated = {"neg": whole.conj().imag}
    assert torch.equal(read(write(negated))["neg"], negated["neg"])


def test_the_safetensors_package_and_load_read_such_files(tmp_path):
    (tmp_path / "ours").write_bytes(write({"c": torch.tensor([1 + 2j], dtype=torch.complex128)}))
    assert torch.equal(load_file(tmp_path / "ours")["c"], torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    model = nn.Linear(3, 2)
    (tmp_path / "m.safetensors").write_bytes(write(model.state_dict()))
    assert torch.equal(load(nn.Linear(3, 2), tmp_path / "m.safetensors").weight, model.weight)


def test_a_subclass_of_tensor_is_refused():
    class Mine(torch.Tensor):
        pass

    with pytest.raises(InvalidArgument, match="'x' is a Mine, a subclass of Tensor; files hold plain tensors"):
        check_tensor("x", torch.ones(1).as_subclass(Mine))
    check_tensor("x", nn.Parameter(torch.ones(1)))
    check_tensor("x", nn.Buffer(torch.ones(1)))


@pytest.mark.parametrize(("names", "text"), [
    ('["x"]', "calls 'x' complex, but"), ('["w"]', "calls 'w' complex, but"), ('["z", "z"]', "calls 'z' complex, but"),
    ("[1]", "list of complex tensors is damaged"), ("{}", "list of complex tensors is damaged"),
    ("[", "expected JSON"), ("[" * 100_000, "expected JSON"),
], ids=range(7))  # fmt: skip
def test_a_damaged_list_of_complex_tensors_is_refused(names, text):
    header = {
        "__metadata__": {"complex128": names},
        "z": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]},
        "w": {"dtype": "F32", "shape": [1], "data_offsets": [16, 20]},
    }
    content = json.dumps(header).encode()
    with pytest.raises(BadFile, match=text):
        read(len(content).to_bytes(8, "little") + content + bytes(20))


def test_a_file_of_another_size_is_refused():
    content = write({"a": torch.ones(3)})
    for wrong in (content[:-1], content + b"\0", content[:20], b""):
        with pytest.raises(BadFile, match=r"^memory"):
            read(wrong)


@pytest.mark.cuda
def test_tensors_on_the_gpu_are_copied_to_the_cpu():
    given = {"a": torch.randn(3, 5, device="cuda"), "b": torch.randn(7)}
    found = read(write(given))
    assert all(found[name].device.type == "cpu" and torch.equal(found[name], given[name].cpu()) for name in given)
