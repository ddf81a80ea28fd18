"""`stoker.burn` against files that are built here, byte by byte, as Burn's sources say."""

import gzip
import struct

import msgpack
import pytest
import torch
from torch import nn

from stoker import burn
from stoker.errors import BadFile, MissingFile, StateMismatch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.layers = nn.ModuleList([nn.Linear(8, 5), nn.Linear(5, 3, bias=False)])
        self.words = nn.Embedding(4, 3)

    def forward(self, x):
        x = self.norm(self.conv(x)).flatten(1)
        return self.layers[1](torch.relu(self.layers[0](x))) + self.words.weight[0]


def make_net(seed):
    torch.manual_seed(seed)
    net = Net()
    net(torch.randn(6, 1, 4, 4))  # so that the running statistics are not those of a new model
    return net.eval()


def burn_tensors(net):
    """The tensors as the Rust struct of the same fields has them."""
    return {
        "conv.weight": net.conv.weight,
        "conv.bias": net.conv.bias,
        "norm.gamma": net.norm.weight,
        "norm.beta": net.norm.bias,
        "norm.running_mean": net.norm.running_mean,
        "norm.running_var": net.norm.running_var,
        "layers.0.weight": net.layers[0].weight.t(),
        "layers.0.bias": net.layers[0].bias,
        "layers.1.weight": net.layers[1].weight.t(),
        "words.weight": net.words.weight,
    }


def little_endian(tensor):
    return struct.pack(f"<{tensor.numel()}f", *tensor.detach().flatten().tolist())


# --- burnpack: CBOR by hand, from RFC 8949


def cbor(value):
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return _head(4, len(value)) + b"".join(map(cbor, value))
    return _head(5, len(value)) + b"".join(cbor(part) for pair in value.items() for part in pair)


def _head(major, number):
    if number < 24:
        return bytes([major << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([major << 5 | code]) + number.to_bytes(size, "big")
    raise AssertionError(number)


def burnpack(tensors, *, align=256):
    described, data = {}, b""
    for number, (name, tensor) in enumerate(sorted(tensors.items())):
        data += bytes(-len(data) % align)
        start = len(data)
        data += little_endian(tensor)
        described[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, len(data)]}
        described[name]["param_id"] = 2**63 + number
    metadata = cbor({"tensors": described, "metadata": {"producer": "burn"}, "scalars": {"step": {"UInt": 7}}})
    head = struct.pack("<IHI", 0x4255524E, 1, len(metadata)) + metadata
    return head + bytes(-len(head) % align) + data


# --- named MessagePack: `BurnRecord { metadata, item }` of `ParamSerde { id, param: TensorData }`


def record(net):
    item = {}
    for number, (name, tensor) in enumerate(burn_tensors(net).items()):
        *path, last = name.split(".")
        here = item
        for part in path:
            here = here.setdefault(part, {})
        data = {"bytes": little_endian(tensor), "shape": list(tensor.shape), "dtype": "F32"}
        here[last] = {"id": f"id{number}", "param": data}
    item["conv"] |= {"stride": [None, None], "kernel_size": [None, None], "dilation": [None, None], "groups": None}
    item["norm"] |= {"momentum": None, "epsilon": None}
    item["layers"] = [item["layers"]["0"], {**item["layers"]["1"], "bias": None}]  # Vec<Linear>, Option<Param>
    item["activation"] = None
    metadata = {"float": "f32", "int": "i32", "format": "NamedMpkFileRecorder", "version": "0.18.0", "settings": ""}
    return msgpack.packb({"metadata": metadata, "item": item, "_b": None})


@pytest.mark.parametrize(
    "write",
    [
        lambda net: burnpack(burn_tensors(net)),
        lambda net: burnpack(burn_tensors(net), align=1),  # the first files had no padding
        record,
        lambda net: gzip.compress(record(net)),
    ],
    ids=["burnpack", "burnpack without padding", "MessagePack", "gzipped MessagePack"],
)
def test_weights_of_burn_give_the_predictions_of_the_model_that_they_come_from(write, tmp_path):
    trained, path = make_net(0), tmp_path / "model"
    path.write_bytes(write(trained))
    loaded = burn.load(make_net(1), path)
    x = torch.randn(7, 1, 4, 4)
    assert torch.equal(loaded(x), trained(x)) and not torch.equal(make_net(1)(x), trained(x))


def test_a_saved_file_is_what_burns_own_writer_lays_out(tmp_path):
    net = make_net(0)
    path = burn.save(net, tmp_path / "model", metadata={"producer": "stoker"})
    content = path.read_bytes()
    magic, version, size = struct.unpack("<IHI", content[:10])
    assert (path.name, magic, version) == ("model.bpk", 0x4255524E, 1)
    import cbor2

    metadata = cbor2.loads(content[10 : 10 + size])
    assert metadata["metadata"] == {"producer": "stoker"}
    assert list(metadata["tensors"]) == sorted(burn_tensors(net))
    first = -(-(10 + size) // 256) * 256
    for name, tensor in burn_tensors(net).items():
        described = metadata["tensors"][name]
        start, end = described["data_offsets"]
        assert start % 256 == 0 and (described["dtype"], described["shape"]) == ("F32", list(tensor.shape))
        assert content[first + start : first + end] == little_endian(tensor)
    assert len(content) == first + max(each["data_offsets"][1] for each in metadata["tensors"].values())


def test_every_dtype_survives_and_names_can_be_changed(tmp_path):
    model = nn.Module()
    for number, dtype in enumerate(
        (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)
    ):
        model.register_buffer(f"part{number}", torch.tensor([[0, 1], [1, 1]]).to(dtype))
    model.register_buffer("empty", torch.zeros(0, 3))
    read = burn.read(burn.save(model, tmp_path / "model.bpk"))
    assert all(torch.equal(read[name], each) and read[name].dtype == each.dtype for name, each in model.named_buffers())
    linear = nn.Linear(3, 2)
    path = burn.save(nn.ModuleDict({"output": linear}), tmp_path / "linear.bpk")
    assert torch.equal(burn.load(nn.Linear(3, 2), path, rename={"output": ""}).weight, linear.weight)


def test_files_that_do_not_match_or_are_damaged_are_errors(tmp_path):
    path = tmp_path / "model.bpk"
    path.write_bytes(burnpack(burn_tensors(make_net(0))))
    with pytest.raises(StateMismatch, match=r"(?s)not in the file: 'weight'.*not in the model: .*'norm.gamma'"):
        burn.load(nn.Linear(3, 2), path)
    whole = path.read_bytes()
    for content, text in (
        (whole[:-1], "outside of the file: it is truncated"),
        (whole[:40], "it ends too early"),
        (whole[:4] + b"\x02\x00" + whole[6:], "burnpack version 2; this stoker reads 1"),
        (whole.replace(b"cF32", b"cQ8X"), "has the dtype Q8X, which PyTorch does not have"),
        (whole.replace(b"cF32", b"cF64"), "which do not fit its shape .* of F64"),
        (whole.replace(b"gtensors", b"\xfftensors"), "its list of tensors is damaged"),
        (msgpack.packb({"weights": 1}), "expected a record of Burn"),
        (b"\xc1", "it is not MessagePack"),
        (msgpack.packb({"metadata": {}, "item": {"w": {"value": [1.0], "shape": [1]}}}), "written by Burn before 0.14"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadFile, match=text):
            burn.read(path)
    with pytest.raises(MissingFile, match="there is no file"):
        burn.read(tmp_path / "nowhere.bpk")
