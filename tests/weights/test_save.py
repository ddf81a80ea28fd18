"""What `save` writes: names, precision, metadata, tied tensors; and which models it refuses."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from stoker.errors import InvalidArgument, WrongType
from stoker.weights import inspect, load, save
from tests.weights.models import DTYPES, FORMATS, Holder, every_dtype, same_bits


@pytest.mark.parametrize(("path", "kwargs", "expected"), [
    ("run/model", {}, "run/model.safetensors"),
    ("model.safetensors", {}, "model.safetensors"),
    ("model.v1", {}, "model.v1.safetensors"),
    ("model", {"format": "json"}, "model.json"),
    ("model.msgpack", {"format": "msgpack", "compress": True}, "model.msgpack.gz"),
    ("model.json.gz", {"format": "json", "compress": True}, "model.json.gz"),
    ("a/b/c/model.gz", {"compress": True}, "a/b/c/model.safetensors.gz"),
])  # fmt: skip
def test_the_path_gets_missing_suffixes_and_directories(tmp_path, path, kwargs, expected):
    assert save(nn.Linear(2, 2), tmp_path / path, **kwargs) == tmp_path / expected
    assert (tmp_path / expected).is_file()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compress", [False, True])
def test_the_same_weights_give_the_same_bytes(tmp_path, format, compress):
    model = nn.Linear(3, 2)
    first, second = (save(model, tmp_path / name, format=format, compress=compress) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert not compress or first.read_bytes()[4:8] == bytes(4)  # gzip's time stamp


def test_half_and_double_change_the_stored_dtypes(tmp_path):
    model = Holder(**every_dtype())
    listing = inspect(save(model, tmp_path / "h", precision="half"))
    half = {name[2:]: str(entry.dtype)[6:] for name, entry in listing.tensors.items()}
    assert {name: stored for name, stored in half.items() if name != stored} == {
        **dict.fromkeys(("int32", "int64", "uint32", "uint64"), "int16"),
        **dict.fromkeys(("float32", "float64"), "float16"),
        "complex128": "complex64",
    }
    double = inspect(save(model, tmp_path / "d", precision="double")).tensors
    assert {str(entry.dtype)[6:] for entry in double.values()} == {"bool", "int64", "float64", "complex128"}


def test_half_rounds_to_the_nearest_number_and_keeps_infinities(tmp_path):
    given = torch.tensor([1e-9, 0.1, 65504.0, -1.0009765625, float("inf")])
    path = save(Holder(t=given), tmp_path / "m", precision="half")
    restored = load(Holder(t=torch.empty(5)), path).t
    assert restored.tolist() == [0.0, 0.0999755859375, 65504.0, -1.0009765625, float("inf")]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("precision", ["half", "double"])
def test_every_precision_loads_into_the_dtypes_of_the_model(tmp_path, format, precision):
    given = every_dtype()
    restored = Holder(**{name: torch.zeros(3, 5).to(tensor.dtype) for name, tensor in given.items()})
    load(restored, save(Holder(**given), tmp_path / "m", format=format, precision=precision))
    assert len(given) == len(DTYPES)
    assert all(same_bits(getattr(restored, name), tensor) for name, tensor in given.items())


@pytest.mark.parametrize(("tensor", "precision", "text"), [
    (torch.tensor([1, 40000]), "half", r"'t' cannot be saved with precision='half': 40000 cannot be represented in i"),
    (torch.tensor([1.0, 1e6]), "half", r"1000000.0 is too large for float16"),
    (torch.tensor([1e300 + 0j], dtype=torch.complex128), "half", r"too large for complex64"),
    (torch.tensor([2**63], dtype=torch.uint64), "double", r"9223372036854775808 cannot be represented in int64"),
])  # fmt: skip
def test_a_number_that_does_not_fit_is_an_error_and_leaves_no_file(tmp_path, tensor, precision, text):
    with pytest.raises(InvalidArgument, match=text):
        save(Holder(t=tensor), tmp_path / "m", precision=precision)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_explained(tmp_path):
    with pytest.raises(InvalidArgument, match=r"format='safetensor': expected one of .*did you mean 'safetensors'"):
        save(nn.Linear(1, 1), tmp_path / "m", format="safetensor")
    with pytest.raises(InvalidArgument, match=r"precision='halve': expected one of 'full', 'half', 'double'"):
        save(nn.Linear(1, 1), tmp_path / "m", precision="halve")
    with pytest.raises(InvalidArgument, match=r"'.' is not a file name"):
        save(nn.Linear(1, 1), "")
    with pytest.raises(WrongType, match=r"expected a torch.nn.Module"):
        save(3, tmp_path / "m")
    (tmp_path / "m.safetensors").mkdir()
    with pytest.raises(InvalidArgument, match=r"cannot write '.*m.safetensors': Is a directory"):
        save(nn.Linear(1, 1), tmp_path / "m")
    with pytest.raises(InvalidArgument, match=r"cannot write '.*': File name too long"):
        save(nn.Linear(1, 1), tmp_path / ("m" * 300))
    with pytest.raises(InvalidArgument, match=r"cannot write '.*': .*embedded null"):
        save(nn.Linear(1, 1), "a\0b")
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_metadata_maps_strings_to_strings(tmp_path):
    path = save(nn.Linear(1, 1), tmp_path / "m", metadata={"trained on": "digits é"})
    assert inspect(path).metadata == {"trained on": "digits é"}
    with pytest.raises(WrongType, match=r"strings to strings; got 'epoch': 3"):
        save(nn.Linear(1, 1), tmp_path / "m", metadata={"epoch": 3})
    with pytest.raises(InvalidArgument, match=r"'stoker' is reserved"):
        save(nn.Linear(1, 1), tmp_path / "m", metadata={"stoker": "x"})
    with pytest.raises(InvalidArgument, match=r"reserves the name '__metadata__'"):
        save(Holder(__metadata__=torch.ones(1)), tmp_path / "m")


def test_a_file_holds_what_state_dict_holds(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.TransformerEncoderLayer(4, 2, 8), nn.LSTM(2, 2))
    model.register_buffer("kept", torch.ones(1))
    model.register_buffer("not_kept", torch.ones(1), persistent=False)
    model.register_parameter("none", None)
    torch.nn.utils.parametrizations.weight_norm(model[0])
    assert list(inspect(save(model, tmp_path / "m")).tensors) == list(model.state_dict())


def test_wrappers_do_not_appear_in_names(tmp_path, mesh):
    class Own(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    def names(model):
        return list(inspect(save(model, tmp_path / "m")).tensors)

    inner = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    expected = list(inner.state_dict())
    compiled = torch.compile(inner, backend="eager")
    assert names(compiled) == names(DistributedDataParallel(compiled)) == names(DistributedDataParallel(inner))
    assert names(compiled) == names(nn.Sequential(checkpoint_wrapper(inner[0]), inner[1])) == expected
    assert "module.0.weight" in names(Own(inner))  # a user's own attribute of that name is part of the name


def test_tied_tensors_are_stored_once(tmp_path):
    weight = nn.Parameter(torch.randn(3, 3))
    model = nn.Module()
    model.one, model.two = weight, weight
    model.register_buffer("same", weight.detach())
    model.register_buffer("turned", weight.detach().t())
    model.register_buffer("row", weight.detach()[0])
    model.register_buffer("empty", torch.zeros(0))
    model.register_buffer("void", torch.zeros(0))
    listing = inspect(save(model, tmp_path / "m"))
    assert list(listing.tensors) == ["one", "turned", "row", "empty", "void"]
    assert listing.aliases == {"two": "one", "same": "one"}


def test_several_models_are_saved_in_one_file(tmp_path):
    models = {"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}
    again = load({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}, save(models, tmp_path / "m"))
    assert torch.equal(again["two"].weight, models["two"].weight)


class WithExtra(nn.Linear):
    def get_extra_state(self):
        return {"anything": 1}


@pytest.mark.parametrize(("model", "text"), [
    (nn.LazyLinear(2), r"'weight' has no shape yet \(a lazy module\)"),
    (nn.Linear(2, 2, device="meta"), r"'weight' is on the meta device"),
    (nn.Sequential(WithExtra(1, 1)), r"'0' has extra state"),
    (WithExtra(1, 1), r"'WithExtra' has extra state"),
    (Holder(sparse=torch.eye(2).to_sparse()), r"'sparse' has the layout torch.sparse_coo"),
    (Holder(x=torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)), r"'x' has the dtype torch.float4_e2m1"),
])  # fmt: skip
def test_a_tensor_that_cannot_be_saved_is_named(tmp_path, model, text):
    with pytest.raises(InvalidArgument, match=text):
        save(model, tmp_path / "m")


def test_a_tensor_that_changes_while_it_is_saved_is_an_error_and_the_old_file_stays(tmp_path):
    path = save(nn.Linear(2, 2), tmp_path / "m")
    before = path.read_bytes()
    model = nn.Linear(2, 2)

    class LatePath:  # converted to a string between the two passes over the model
        def __fspath__(self) -> str:
            model.weight.data.add_(1)
            return str(path)

    with pytest.raises(InvalidArgument, match=r"'weight' changed while it was being saved; nothing was written"):
        save(model, LatePath())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
