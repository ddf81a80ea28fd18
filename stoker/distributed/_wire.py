"""A value as bytes and back, so that ranks can tell each other things: MessagePack, with tensors, and never pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.errors import WrongType

_TENSOR, _TUPLE, _BIG_INT = 1, 2, 3  # MessagePack's codes for what it has no word for


def packed(value: Any) -> bytes:
    """The bytes of a value.

    >>> unpacked(packed({"epoch": 3, None: (1.5, b"x")}))
    {'epoch': 3, None: (1.5, b'x')}

    Values are None, bool, int, float, str, bytes and tensors, in lists, tuples, and mappings by str, int or None.
    """
    try:
        return _bytes(value)
    except _Unknown as unknown:
        (stranger,) = unknown.args
        where = "/".join(_path(value, stranger)) or "what is sent"
        raise WrongType(
            f"{where} is a {type(stranger).__module__}.{type(stranger).__qualname__}, which can't be sent to the other "
            "ranks: numbers, texts, bytes and tensors can, and lists, tuples and mappings of them. "
            "A metric's state has to be made of these where there are several ranks; torch.as_tensor takes an array"
        ) from None


def unpacked(data: bytes) -> Any:
    """What `packed` was given; tensors are on the CPU."""
    import msgpack

    return msgpack.unpackb(data, ext_hook=_native, strict_map_key=False, unicode_errors="surrogatepass")


def _bytes(value: Any) -> bytes:
    import msgpack

    return msgpack.Packer(default=_foreign, strict_types=True, unicode_errors="surrogatepass").pack(value)


class _Unknown(Exception):
    """Has met something that there are no bytes for."""


def _path(value: Any, sought: Any) -> list[str]:
    """The keys that lead to it; none where it is the value itself."""
    if not isinstance(value, Mapping | list | tuple):
        return []
    for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
        if each is sought:
            return [str(key)]
        if below := _path(each, sought):
            return [str(key), *below]
    return []


def _foreign(value: Any) -> Any:
    """What stands for a value that MessagePack doesn't know."""
    from msgpack import ExtType

    if isinstance(value, Tensor):
        return ExtType(_TENSOR, _bytes(_flat(value)))
    if isinstance(value, tuple):
        return ExtType(_TUPLE, _bytes(list(value)))
    if type(value) is int:  # more than 64 bits
        return ExtType(_BIG_INT, str(value).encode())
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    kind: Any
    for kind in (int, float, str, list):  # such as NumPy's float64, which is a float
        if isinstance(value, kind):
            return kind(value)
    raise _Unknown(value)


def _native(code: int, data: bytes) -> Any:
    if code == _BIG_INT:
        return int(data)
    content = unpacked(data)
    return tuple(content) if code == _TUPLE else _tensor(*content)


def _flat(tensor: Tensor) -> list[Any]:
    if type(tensor).__name__ == "DTensor" or tensor.layout != torch.strided:
        raise WrongType("only a plain, dense tensor can be sent to the other ranks; take .to_local() or .to_dense()")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return [str(plain.dtype).removeprefix("torch."), list(plain.shape), plain.flatten().view(torch.uint8).numpy().data]


def _tensor(dtype: str, shape: list[int], data: bytes) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)
