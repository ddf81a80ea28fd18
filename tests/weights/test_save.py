import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from stoker.errors import InvalidArgument, WrongType
from stoker.weights import inspect, load, save
from stoker.weights._head import DTYPES

FORMATS = ("safetensors", "msgpack", "json")


class Holder(nn.Module):
    def __init__(self, **tensors: torch.Tensor):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def random_bits(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (*shape, dtype.itemsize)
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, size, dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(shape)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from(list(DTYPES.values())),
    shape=st.lists(st.integers(0, 3), max_size=4).map(tuple),
    seed=st.integers(0, 1000),
    format=st.sampled_from(FORMATS),
    compress=st.booleans(),
)
def test_any_bits_of_any_dtype_come_back_from_any_format(dtype, shape, seed, format, compress):
    given = random_bits(dtype, shape, seed)  # NaNs with every payload, infinities and subnormals among them
    with tempfile.TemporaryDirectory() as folder:
        path = save(Holder(t=given), Path(folder) / "m", format=format, compress=compress)
        restored = load(Holder(t=torch.zeros(shape, dtype=dtype)), path)
        assert inspect(path).tensors["t"].dtype == dtype
    assert same_bits(restored.t, given)


@pytest.mark.parametrize("format", FORMATS)
def test_values_at_the_edges_come_back(tmp_path, format):
    given = {
        "floats": torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, 3.4e38]),
        "odd_nan": torch.tensor([0x7FC00001, -0x400000], dtype=torch.int32).view(torch.float32),
        "unsigned": torch.tensor([0, 2**64 - 1], dtype=torch.uint64),
        "strided": torch.arange(12.0).reshape(3, 4).t()[::2],
        "conjugate": torch.tensor([[1 + 2j, 3 - 4j]]).conj(),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(2, 0, 3),
        "complex_scalar": torch.tensor(1 + 2j, dtype=torch.complex128),
    }
    blank = Holder(**{name: torch.full_like(tensor, 7).contiguous() for name, tensor in given.items()})
    restored = load(blank, save(Holder(**given), tmp_path / "m", format=format))
    for name, tensor in given.items():
        assert same_bits(getattr(restored, name), tensor), name


@pytest.mark.parametrize(("path", "kwargs", "expected"), [
    ("run/model", {}, "run/model.safetensors"),
    ("model.safetensors", {}, "model.safetensors"),
    ("model.v1", {}, "model.v1.safetensors"),
    ("model", {"format": "json"}, "model.json"),
    ("model", {"format": "msgpack", "compress": True}, "model.msgpack.gz"),
    ("model.msgpack", {"format": "msgpack", "compress": True}, "model.msgpack.gz"),
    ("model.json.gz", {"format": "json", "compress": True}, "model.json.gz"),
    ("a/b/c/model.gz", {"compress": True}, "a/b/c/model.safetensors.gz"),
])  # fmt: skip
def test_the_path_gets_the_suffix_that_it_lacks_and_its_folders(tmp_path, path, kwargs, expected):
    assert save(nn.Linear(2, 2), tmp_path / path, **kwargs) == tmp_path / expected
    assert (tmp_path / expected).is_file()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compress", [False, True])
def test_the_same_weights_give_the_same_bytes(tmp_path, format, compress):
    model = nn.Linear(3, 2)
    first, second = (save(model, tmp_path / name, format=format, compress=compress) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert not compress or first.read_bytes()[4:8] == bytes(4)  # gzip's note of the time


def test_half_makes_floats_and_integers_small_and_nothing_larger(tmp_path):
    model = Holder(**{f"a_{name}": torch.ones(2, dtype=dtype) for name, dtype in DTYPES.items()})
    listing = inspect(save(model, tmp_path / "h", precision="half"))
    half = {name[2:]: str(entry.dtype)[6:] for name, entry in listing.tensors.items()}
    changed = {name: stored for name, stored in half.items() if name != stored}
    assert changed == {
        **dict.fromkeys(("int32", "int64", "uint32", "uint64"), "int16"),
        **dict.fromkeys(("float32", "float64"), "float16"),
        "complex128": "complex64",
    }
    double = inspect(save(model, tmp_path / "d", precision="double")).tensors
    assert {str(entry.dtype)[6:] for entry in double.values()} == {"bool", "int64", "float64", "complex128"}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("precision", ["half", "double"])
def test_every_precision_loads_into_the_dtypes_of_the_model(tmp_path, format, precision):
    given = {f"a_{name}": torch.ones(2, 3, dtype=dtype) for name, dtype in DTYPES.items()}
    restored = Holder(**{name: torch.zeros(2, 3).to(tensor.dtype) for name, tensor in given.items()})
    load(restored, save(Holder(**given), tmp_path / "m", format=format, precision=precision))
    assert all(same_bits(getattr(restored, name), tensor) for name, tensor in given.items())


@pytest.mark.parametrize(("tensor", "precision", "text"), [
    (torch.tensor([1, 40000]), "half", r"'t' can't be saved with precision='half': 40000 is no int16; use 'full'"),
    (torch.tensor([1.0, 1e6]), "half", r"1000000.0 is too large for float16"),
    (torch.tensor([1e300 + 0j], dtype=torch.complex128), "half", r"too large for complex64"),
    (torch.tensor([2**63], dtype=torch.uint64), "double", r"9223372036854775808 is no int64"),
])  # fmt: skip
def test_a_number_that_does_not_fit_is_an_error_and_leaves_no_file(tmp_path, tensor, precision, text):
    with pytest.raises(InvalidArgument, match=text):
        save(Holder(t=tensor), tmp_path / "m", precision=precision)
    assert list(tmp_path.iterdir()) == []


def test_infinities_that_were_there_before_stay(tmp_path):
    path = save(Holder(t=torch.tensor([float("inf"), float("nan")])), tmp_path / "m", precision="half")
    assert load(Holder(t=torch.zeros(2)), path).t.tolist()[0] == float("inf")


def test_words_that_are_wrong_say_which_are_right(tmp_path):
    with pytest.raises(InvalidArgument, match=r"format='safetensor': expected one of .*did you mean 'safetensors'"):
        save(nn.Linear(1, 1), tmp_path / "m", format="safetensor")
    with pytest.raises(InvalidArgument, match=r"precision='halve': expected one of 'full', 'half', 'double'"):
        save(nn.Linear(1, 1), tmp_path / "m", precision="halve")
    with pytest.raises(InvalidArgument, match=r"names no file"):
        save(nn.Linear(1, 1), "")
    with pytest.raises(WrongType, match=r"expected a torch.nn.Module"):
        save(3, tmp_path / "m")


def test_metadata_is_text_by_text(tmp_path):
    path = save(nn.Linear(1, 1), tmp_path / "m", metadata={"trained on": "digits é"})
    assert inspect(path).metadata == {"trained on": "digits é"}
    with pytest.raises(WrongType, match=r"strings by strings; got 'epoch': 3"):
        save(nn.Linear(1, 1), tmp_path / "m", metadata={"epoch": 3})
    with pytest.raises(InvalidArgument, match=r"'stoker' is taken by the file itself"):
        save(nn.Linear(1, 1), tmp_path / "m", metadata={"stoker": "x"})
    with pytest.raises(InvalidArgument, match=r"can't be written as text"):
        save(nn.Linear(1, 1), tmp_path / "m", metadata={"x": "\ud800"})
    with pytest.raises(InvalidArgument, match=r"a tensor called '__metadata__'"):
        save(Holder(__metadata__=torch.ones(1)), tmp_path / "m")


def test_a_tied_tensor_is_stored_once(tmp_path):
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Linear(20, 20, bias=False))
    model[1].weight = model[0].weight
    listing = inspect(save(model, tmp_path / "m"))
    assert list(listing.tensors) == ["0.weight"]
    assert listing.aliases == {"1.weight": "0.weight"}


def test_a_tensor_that_changes_while_it_is_saved_is_an_error_and_the_old_file_stays(tmp_path):
    path = save(nn.Linear(2, 2), tmp_path / "m")
    before = path.read_bytes()
    model = nn.Linear(2, 2)

    class Late:  # a path that is asked for between the two walks over the model
        def __fspath__(self) -> str:
            model.weight.data.add_(1)
            return str(path)

    with pytest.raises(InvalidArgument, match=r"'weight' changed while it was being saved; nothing was written"):
        save(model, Late())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A real refusal of the system: the process may write no file of more than some bytes."""
    path = save(nn.Linear(2, 2), tmp_path / "m")
    before = path.read_bytes()
    program = """
import resource, signal, sys
from torch import nn
from stoker.weights import save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    save(nn.Linear(100, 100), sys.argv[1])
except OSError as error:
    print("refused:", error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("refused:")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_half_stores_the_nearest_number_that_16_bits_hold(tmp_path):
    given = torch.tensor([1e-9, 0.1, 65504.0, -1.0009765625])
    path = save(Holder(t=given), tmp_path / "m", precision="half")
    got = load(Holder(t=torch.empty(4)), path).t
    assert got.tolist() == [0.0, 0.0999755859375, 65504.0, -1.0009765625]
