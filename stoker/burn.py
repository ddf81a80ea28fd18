"""burn: reads weights that Burn, the Rust framework, has saved, and writes weights that it reads.

`load` reads burnpack files (`.bpk`, Burn's format since 0.20) and records of the named MessagePack recorders (`.mpk`,
`.mpk.gz`, of 0.14 to 0.21), and runs no code. `save` writes burnpack, which does not depend on the Rust struct.

Burn and PyTorch differ in two ways, which both functions convert: Burn keeps the weight of a `Linear` as [in, out], and
calls the parameters of normalization layers `gamma` and `beta`. The names in files are those of the Rust struct.
"""

import gzip
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stoker import weights
from stoker._files import open_regular_file, write_atomically
from stoker._select import Selector
from stoker.errors import BadFile, InvalidArgument, MissingExtra, MissingFile, explain_missing

__all__ = ["load", "read", "save"]

_M = TypeVar("_M", bound=nn.Module)

_MAGIC, _VERSION = b"NRUB", 1  # 0x4255524E, little endian
_HEADER = 10  # bytes: magic, version, and the size of the metadata
_ALIGNMENT = 256  # of the data section and of each tensor
_MAX_METADATA = 100 << 20  # bytes, Burn's own limit
_MAX_DEPTH = 128  # of nested modules in a record, Burn's own limit
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "Flex32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "Bool": torch.bool,
}


def load(
    model: _M,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    only: Selector | None = None,
    rename: Any = None,
) -> _M:
    """Loads the weights of a Burn file into a model, in place, and returns the model.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    >>> path = save(model, "model.bpk")
    >>> list(read(path))
    ['0.bias', '0.weight', '1.beta', '1.gamma']
    >>> torch.equal(load(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), path)[0].weight, model[0].weight)
    True

    The arguments are those of `stoker.load`; `rename` maps names in the file to those of the model, with `gamma` and
    `beta` for normalization layers. A model with an `nn.LSTM`, `nn.MultiheadAttention` or another module that Burn
    composes differently does not match, and the error lists the names.
    """
    weights.load(_burn_view(model), read(path), strict=strict, only=only, rename=rename)
    return model


def save(model: nn.Module, path: str | os.PathLike[str], *, metadata: Mapping[str, str] | None = None) -> Path:
    """Writes the weights of a model as a burnpack file, with Burn's names and layout, and returns its path.

    In Rust, `BurnpackStore::from_file("model.bpk")` loads it into a module whose fields have the names of the PyTorch
    modules. The path gets the suffix `.bpk`. Needs `stoker[burn]`.
    """
    path = Path(path)
    path = path if path.suffix == ".bpk" else path.with_name(f"{path.name}.bpk")
    names = {dtype: name for name, dtype in _DTYPES.items() if name != "Flex32"}
    descriptors: dict[str, Any] = {}
    contents: list[tuple[int, Tensor]] = []
    end = 0
    for name, tensor in sorted(_burn_view(model).state_dict().items()):
        if tensor.dtype not in names:
            raise InvalidArgument(f"{name!r} has the dtype {tensor.dtype}, which Burn does not have; cast it first")
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + tensor.numel() * tensor.element_size()
        dtype: Any = names[tensor.dtype] if tensor.dtype != torch.bool else {"Bool": "Native"}
        descriptors[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        contents.append((start, tensor))
    header = _cbor().dumps({"tensors": descriptors, **({"metadata": dict(metadata)} if metadata else {})})
    first = -(-(_HEADER + len(header)) // _ALIGNMENT) * _ALIGNMENT

    def write(file: Any) -> None:
        file.write(_MAGIC + _VERSION.to_bytes(2, "little") + len(header).to_bytes(4, "little") + header)
        for start, tensor in contents:
            file.write(bytes(first + start - file.tell()))
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)
    return path


def read(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Returns the tensors of a Burn file by name, with Burn's names and layout."""
    path = Path(path)
    try:
        with open_regular_file(path) as file:
            content = file.read()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except FileNotFoundError as error:
        raise MissingFile(f"there is no file {str(path)!r}") from error
    except (OSError, EOFError) as error:
        raise BadFile(f"{path} cannot be read: {error}") from error
    try:
        tensors = _read_burnpack(content) if content[:4] == _MAGIC else dict(_read_record(content))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, BadFile):
            raise BadFile(f"{path}: {error}") from None
        problem = f"{type(error).__name__}: {error}"
        raise BadFile(f"{path} is damaged, or not a burnpack file or MessagePack record of Burn: {problem}") from error
    return tensors


def _read_burnpack(content: bytes) -> dict[str, Tensor]:
    version, size = int.from_bytes(content[4:6], "little"), int.from_bytes(content[6:10], "little")
    if version > _VERSION:
        raise BadFile(f"burnpack version {version}; this stoker reads {_VERSION}")
    if size > min(_MAX_METADATA, len(content) - _HEADER):
        raise BadFile("it ends too early: it is truncated, or still being written")
    try:
        described = _cbor().loads(content[_HEADER : _HEADER + size])["tensors"]
    except MissingExtra:
        raise
    except Exception as error:  # cbor2's errors have no base class of Python's in common
        raise BadFile(f"its list of tensors is damaged: {error}") from error
    ends = [int(each["data_offsets"][1]) for each in described.values()]
    # The first files of this version have no padding in front of the data; the size of the file tells.
    aligned = -(-(_HEADER + size) // _ALIGNMENT) * _ALIGNMENT
    first = _HEADER + size if len(content) == _HEADER + size + max(ends, default=0) else aligned
    tensors = {}
    for name, each in described.items():
        start, end = each["data_offsets"]
        if not 0 <= start <= end <= len(content) - first:
            raise BadFile(f"the bytes of {name!r} are outside of the file: it is truncated, or damaged")
        tensors[name] = _tensor(name, content[first + start : first + end], each["shape"], each["dtype"])
    return tensors


def _read_record(content: bytes) -> Iterator[tuple[str, Tensor]]:
    import msgpack

    try:
        record = msgpack.unpackb(content, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadFile(f"it is not MessagePack: {error or type(error).__name__}") from error
    if not isinstance(record, dict) or not {"metadata", "item"} <= set(record):
        raise BadFile("expected a record of Burn, a map with 'metadata' and 'item'")
    yield from _walk(record["item"], "", 0)


def _walk(item: Any, path: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a module's record: maps are structs, lists are vectors, and nil is a constant."""
    if depth > _MAX_DEPTH:
        raise BadFile(f"modules are nested more than {_MAX_DEPTH} deep")
    if isinstance(item, dict):
        if set(item) == {"id", "param"}:
            item = item["param"]
        if set(item) == {"bytes", "shape", "dtype"}:
            yield path, _tensor(path, item["bytes"], item["shape"], item["dtype"])
            return
        if set(item) == {"value", "shape"}:
            raise BadFile("the record was written by Burn before 0.14; save it again with Burn 0.14 to 0.16")
    pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    for name, part in pairs:
        yield from _walk(part, f"{path}.{name}" if path else str(name), depth + 1)


def _tensor(name: str, data: Any, shape: Any, dtype: Any) -> Tensor:
    data = bytes(data)  # a list of numbers in the first records
    if isinstance(dtype, dict):
        ((dtype, store),) = dtype.items()
        dtype = "Bool" if (dtype, store) in (("Bool", "Native"), ("Bool", "U8")) else f"{dtype} ({store})"
    if dtype not in _DTYPES:
        raise BadFile(f"{name!r} has the dtype {dtype}, which PyTorch does not have (quantized tensors can't be read)")
    kind = _DTYPES[dtype]
    if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) * kind.itemsize != len(data):
        raise BadFile(f"{name!r} has {len(data):,} bytes, which do not fit its shape {list(shape)} of {dtype}")
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)


def _burn_view(model: nn.Module) -> nn.Module:
    """Modules whose buffers are the model's tensors under Burn's names and in Burn's layout, sharing their memory."""
    view = nn.Module()
    own = model.state_dict(keep_vars=True)
    for prefix, module in model.named_modules(remove_duplicate=False):
        folder = view
        for part in prefix.split(".") if prefix else ():
            if part not in folder._modules:
                folder.add_module(part, nn.Module())
            folder = folder.get_submodule(part)
        for name in (*module._parameters, *module._buffers):
            tensor = own.get(f"{prefix}.{name}" if prefix else name)
            if tensor is None or name == "num_batches_tracked":  # Burn does not count batches
                continue
            if isinstance(module, nn.Linear) and name == "weight":
                tensor = tensor.t()
            if isinstance(module, _NORMS):
                name = {"weight": "gamma", "bias": "beta"}.get(name, name)
            folder.register_buffer(name, tensor.detach())
    return view


def _cbor() -> Any:
    with explain_missing('burnpack files need cbor2: pip install "stoker[burn]"'):
        import cbor2
    return cbor2
