import io
import json

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn

from stoker.errors import BadFile, InvalidArgument
from stoker.weights import check_tensor, read_tensors, write_tensors
from stoker.weights import load as load_weights
from stoker.weights._head import DTYPES
from tests.weights.test_safetensors import bits, entry


def every_dtype() -> dict[str, torch.Tensor]:
    return {f"a_{name}": torch.ones(3, 5).to(dtype) for name, dtype in DTYPES.items()}


def written(tensors) -> bytes:
    file = io.BytesIO()
    write_tensors(file, tensors)
    return file.getvalue()


def back(content: bytes) -> dict[str, torch.Tensor]:
    return read_tensors(io.BytesIO(content), name="memory", size=len(content))


def test_every_dtype_and_shape_comes_back_in_the_order_given():
    given = {**every_dtype(), "scalar": torch.tensor(2.5), "none": torch.ones(0, 3), "one": torch.tensor(1j).cdouble()}
    found = back(written(given))
    assert list(found) == list(given)
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert bits(found[name]) == bits(tensor)


def test_views_are_written_as_they_look():
    whole = torch.complex(torch.arange(24.0), torch.ones(24)).reshape(4, 6)
    given = {
        "t": whole.T,
        "conj": whole.conj(),
        "neg": whole.conj().imag,
        "part": whole[::2, 1],
        "wide": whole[:1].expand(3, 6),
    }
    found = back(written(given))
    assert all(torch.equal(found[name], tensor) for name, tensor in given.items())


def test_the_package_reads_what_we_write_and_the_other_way_round(tmp_path):
    given = {name: tensor for name, tensor in every_dtype().items() if tensor.dtype != torch.complex128}
    (tmp_path / "ours").write_bytes(written(given))
    theirs, ours = load_file(tmp_path / "ours"), back(save(given))
    assert all(bits(theirs[name]) == bits(ours[name]) == bits(tensor) for name, tensor in given.items())
    (tmp_path / "ours").write_bytes(written({"c": torch.tensor([1 + 2j], dtype=torch.complex128)}))
    pairs = load_file(tmp_path / "ours")["c"]
    assert torch.equal(pairs, torch.tensor([[1.0, 2.0]], dtype=torch.float64))


def test_a_model_can_be_loaded_from_such_a_file(tmp_path):
    model = nn.Linear(3, 2)
    (tmp_path / "m.safetensors").write_bytes(written(model.state_dict()))
    other = load_weights(nn.Linear(3, 2), tmp_path / "m.safetensors")
    assert torch.equal(other.weight, model.weight)


def test_nothing_is_written_where_one_tensor_cant_be():
    file = io.BytesIO()
    with pytest.raises(InvalidArgument, match="'b' is on the meta device"):
        write_tensors(file, {"a": torch.ones(1), "b": torch.ones(1, device="meta")})
    assert file.getvalue() == b""


def test_a_tensor_of_its_own_kind_is_refused():
    class Mine(torch.Tensor):
        pass

    with pytest.raises(InvalidArgument, match="'x' is a Mine, a tensor of a kind of its own; files hold plain ones"):
        check_tensor("x", torch.ones(1).as_subclass(Mine))
    check_tensor("x", nn.Parameter(torch.ones(1)))
    check_tensor("x", nn.Buffer(torch.ones(1)))


def forged(header, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(("names", "text"), [
    ('["x"]', "says that 'x' is complex, but"), ('["w"]', "says that 'w' is complex, but"),
    ("[1]", "list of complex tensors is damaged"), ("{}", "list of complex tensors is damaged"),
    ("[", "list of complex tensors is damaged"), ("[" * 100_000, "list of complex tensors is damaged"),
    ('["z", "z"]', "says that 'z' is complex, but"),
], ids=range(7))  # fmt: skip
def test_a_damaged_list_of_complex_tensors_is_refused(names, text):
    header = {
        "__metadata__": {"complex128": names},
        "z": entry("F64", (2,), (0, 16)),
        "w": entry("F32", (1,), (16, 20)),
    }
    with pytest.raises(BadFile, match=text):
        back(forged(header, bytes(20)))


@pytest.mark.parametrize("shape", [(0, 2**62, 4), (2**62, 2**62, 0), (0, 2**31, 2**31, 2**31)])
def test_shapes_of_nothing_that_torch_cant_hold_are_refused(shape):
    with pytest.raises(BadFile, match=r"the tensor 'w' has the shape \[.*\], which torch can't hold"):
        back(forged({"w": entry("F32", shape, (0, 0))}))


def test_a_size_that_is_not_the_files_is_refused():
    content = written({"a": torch.ones(3)})
    for wrong in (content[:-1], content + b"\0", content[:20], b""):
        with pytest.raises(BadFile, match=r"^memory"):
            back(wrong)


@pytest.mark.cuda
def test_tensors_of_the_gpu_are_brought_over():
    given = {"a": torch.randn(3, 5, device="cuda"), "b": torch.randn(7)}
    found = back(written(given))
    assert all(found[name].device.type == "cpu" and torch.equal(found[name], given[name].cpu()) for name in given)
