"""Values as bytes and back, for messages between ranks: MessagePack with tensors, never pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker._tree import named_leaves
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
        name = next((name for name, leaf in named_leaves(value, "value") if leaf is part), "value")
        raise WrongType(
            f"{name} is a {type(part).__module__}.{type(part).__qualname__}, which can't be sent to the other ranks: "
            "only numbers, strings, bytes and tensors can, in lists, tuples and mappings. With several ranks the state "
            "of a metric must consist of these; torch.as_tensor converts an array"
        ) from None


def unpack(data: bytes) -> Any:
    """The value that was given to `pack`; tensors are on the CPU."""
    import msgpack

    return msgpack.unpackb(data, ext_hook=_from_extension, strict_map_key=False, unicode_errors="surrogatepass")


class _Unsupported(Exception):
    """A part of a value has no representation in bytes."""


def _to_bytes(value: Any) -> bytes:
    import msgpack

    return msgpack.Packer(default=_to_extension, strict_types=True, unicode_errors="surrogatepass").pack(value)


def _to_extension(value: Any) -> Any:
    """What MessagePack packs in place of a value that it does not know."""
    from msgpack import ExtType

    if isinstance(value, Tensor):
        if is_dtensor(value) or value.layout != torch.strided:
            raise WrongType("only ordinary, dense tensors can be sent to other ranks; use .to_local() or .to_dense()")
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content = plain.flatten().view(torch.uint8).numpy().data
        return ExtType(_TENSOR, _to_bytes([str(plain.dtype).removeprefix("torch."), list(plain.shape), content]))
    if isinstance(value, tuple):
        return ExtType(_TUPLE, _to_bytes(list(value)))
    if type(value) is int:  # more than 64 bits
        return ExtType(_BIG_INT, str(value).encode())
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    kind: Any
    for kind in (Mapping, int, float, str, bytes, list):  # subclasses, such as NumPy's float64
        if isinstance(value, kind):
            return dict(value) if kind is Mapping else kind(value)
    raise _Unsupported(value)


def _from_extension(code: int, data: bytes) -> Any:
    if code == _BIG_INT:
        return int(data)
    content = unpack(data)
    if code == _TUPLE:
        return tuple(content)
    name, shape, values = content
    dtype = getattr(torch, name)
    return (
        torch.frombuffer(bytearray(values), dtype=dtype).reshape(shape) if values else torch.empty(shape, dtype=dtype)
    )
