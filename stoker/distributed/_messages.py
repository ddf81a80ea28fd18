"""Values as bytes and back, for messages between ranks: MessagePack with tensors, never pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.distributed._dtensor import is_dtensor
from stoker.errors import WrongType

_TENSOR, _TUPLE, _BIG_INT = 1, 2, 3  # codes of MessagePack extension types


def pack(value: Any) -> bytes:
    """The bytes of a value.

    >>> unpack(pack({"epoch": 3, None: (1.5, b"x")}))
    {'epoch': 3, None: (1.5, b'x')}

    Values are None, bool, int, float, str, bytes and tensors, in lists, tuples, and mappings with keys of str, int or
    None.
    """
    try:
        return _to_bytes(value)
    except _Unsupported as unsupported:
        (part,) = unsupported.args
        where = "/".join(_path(value, part)) or "the value"
        raise WrongType(
            f"{where} is a {type(part).__module__}.{type(part).__qualname__}, which can't be sent to the other ranks: "
            "only numbers, strings, bytes and tensors can, in lists, tuples and mappings. With several ranks the state "
            "of a metric must consist of these; torch.as_tensor converts an array"
        ) from None


def unpack(data: bytes) -> Any:
    """The value that was given to `pack`; tensors are on the CPU."""
    import msgpack

    return msgpack.unpackb(data, ext_hook=_from_extension, strict_map_key=False, unicode_errors="surrogatepass")


def _to_bytes(value: Any) -> bytes:
    import msgpack

    return msgpack.Packer(default=_to_extension, strict_types=True, unicode_errors="surrogatepass").pack(value)


class _Unsupported(Exception):
    """A part of a value has no representation in bytes."""


def _path(value: Any, sought: Any) -> list[str]:
    """The keys that lead to a part; empty if it is the value itself."""
    if not isinstance(value, Mapping | list | tuple):
        return []
    for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
        if each is sought:
            return [str(key)]
        if below := _path(each, sought):
            return [str(key), *below]
    return []


def _to_extension(value: Any) -> Any:
    """What MessagePack packs in place of a value that it does not know."""
    from msgpack import ExtType

    if isinstance(value, Tensor):
        return ExtType(_TENSOR, _to_bytes(_describe_tensor(value)))
    if isinstance(value, tuple):
        return ExtType(_TUPLE, _to_bytes(list(value)))
    if type(value) is int:  # more than 64 bits
        return ExtType(_BIG_INT, str(value).encode())
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    kind: Any
    for kind in (int, float, str, list):  # subclasses, such as NumPy's float64
        if isinstance(value, kind):
            return kind(value)
    raise _Unsupported(value)


def _from_extension(code: int, data: bytes) -> Any:
    if code == _BIG_INT:
        return int(data)
    content = unpack(data)
    return tuple(content) if code == _TUPLE else _make_tensor(*content)


def _describe_tensor(tensor: Tensor) -> list[Any]:
    if is_dtensor(tensor) or tensor.layout != torch.strided:
        raise WrongType("only ordinary, dense tensors can be sent to the other ranks; use .to_local() or .to_dense()")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return [str(plain.dtype).removeprefix("torch."), list(plain.shape), plain.flatten().view(torch.uint8).numpy().data]


def _make_tensor(dtype: str, shape: list[int], data: bytes) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)
