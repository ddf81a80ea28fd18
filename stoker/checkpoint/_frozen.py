"""Frozen parameters, which checkpoints may leave out: which ones, and the fingerprints that identify them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stoker.distributed import is_dtensor
from stoker.errors import InvalidArgument

Frozen = Literal["auto", "fingerprint", "save"]
_LARGE = 64 << 20  # bytes of frozen parameters from which on "auto" leaves them out
_ROW = 1 << 18  # words of 8 bytes that get multipliers of their own
_ROWS = 32  # that a GPU multiplies at once


def choose_left_out(parameters: Mapping[str, Tensor], frozen: Frozen) -> list[str]:
    """The names of the frozen parameters that a checkpoint leaves out.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 2, bias=False).requires_grad_(False), nn.Linear(2, 1))
    >>> choose_left_out(dict(model.named_parameters()), "fingerprint")
    ['0.weight']
    >>> choose_left_out(dict(model.named_parameters()), "auto")  # it is small
    []

    A tensor of a subclass (quantised weights), which no file can hold, is left out by "auto" whatever its size.
    Sharded parameters are only left out by "fingerprint", which gathers them one by one.
    """
    names = [name for name, each in parameters.items() if not each.requires_grad]
    if frozen == "save":
        return []
    if frozen == "fingerprint":
        return names
    names = [name for name in names if not is_dtensor(parameters[name])]
    if count_bytes({name: parameters[name] for name in names}) >= _LARGE:
        return names
    return [name for name in names if not is_plain(parameters[name])]


def count_bytes(tensors: Mapping[str, Tensor]) -> int:
    """The bytes of tensors together; of a subclass, those of the tensors inside it."""
    found = [[each] if is_dtensor(each) else _parts_of(name, each) for name, each in tensors.items()]
    return sum(part.numel() * part.element_size() for parts in found for part in parts)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is not of a subclass other than `nn.Parameter`, so that files can hold it."""
    return type(tensor) in (Tensor, nn.Parameter)


def fingerprint_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A fingerprint of the bytes of each tensor, the same on every device; of a subclass, of the tensors inside it.

    >>> one, other = torch.arange(6.0), torch.arange(6.0).flip(0)
    >>> found = fingerprint_tensors({"one": one, "other": other, "copy": one.clone()})
    >>> found["one"] == found["copy"], found["one"] == found["other"]
    (True, False)

    It is a sum of products with fixed multipliers, modulo 2⁶⁴: two different tensors have the same one by accident
    once in billions of pairs, but it protects against no attacker. A core of a CPU reads about 3 GB/s; a GPU reads as
    fast as its memory allows, and waits once.
    """
    hashes = {name: [_hash(part) for part in _parts_of(name, each)] for name, each in tensors.items()}
    devices: dict[torch.device, list[Tensor]] = {}
    for parts in hashes.values():
        for part in parts:
            devices.setdefault(part.device, []).append(part)
    values = {device: iter(torch.stack(parts).tolist()) for device, parts in devices.items()}  # sync: with each device
    return {
        name: "-".join(f"{next(values[part.device]) & (1 << 64) - 1:016x}" for part in parts)
        for name, parts in hashes.items()
    }


def _parts_of(name: str, tensor: Tensor) -> list[Tensor]:
    """The plain tensors that a tensor consists of."""
    tensor = tensor.detach()
    if is_dtensor(tensor):
        whole: Any = tensor
        return [whole.full_tensor()]
    if is_plain(tensor):
        return [tensor]
    if hasattr(tensor, "__tensor_flatten__"):
        wrapper: Any = tensor
        inner = [getattr(tensor, attribute) for attribute in wrapper.__tensor_flatten__()[0]]
    else:
        inner = [value for value in vars(tensor).values() if isinstance(value, Tensor)]
        if _has_memory(tensor):
            inner.append(tensor.as_subclass(Tensor))
    if not inner:
        raise InvalidArgument(
            f"{name!r} is a {type(tensor).__name__}, a subclass of Tensor, and nothing is known about the tensors in "
            "it: a checkpoint can neither hold nor identify it. Give the class a __tensor_flatten__"
        )
    return [part for each in inner for part in _parts_of(name, each)]


def _has_memory(tensor: Tensor) -> bool:
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # a wrapper
        return False


def _hash(tensor: Tensor) -> Tensor:
    """The hash of a plain tensor's bytes: [] of int64, on its device."""
    content = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    missing = -content.numel() % 8
    if missing or content.storage_offset() % 8:  # words of 8 bytes have to begin and end at whole words of the memory
        content = torch.cat([content, content.new_zeros(missing)])
    return _hash_words(content.view(torch.int64))


def _hash_words(words: Tensor) -> Tensor:
    while words.numel() > _ROW:
        full = words.numel() // _ROW * _ROW
        multipliers, rows = _multipliers(_ROW, words.device), 1 if words.is_cpu else _ROWS
        sums = [_mix(part).mul_(multipliers).sum(1) for part in words[:full].view(-1, _ROW).split(rows)]
        if full < words.numel():
            rest = words[full:]
            sums.append(_mix(rest).mul_(multipliers[: len(rest)]).sum().reshape(1))
        words = torch.cat(sums)
    return _mix(words).mul_(_multipliers(_ROW, words.device)[: len(words)]).sum()


def _mix(words: Tensor) -> Tensor:
    """Adds the upper half of each word to the lower one: products lose the upper bits, where the sign of a float is."""
    return (words >> 32).add_(words)


@lru_cache(maxsize=8)
def _multipliers(count: int, device: torch.device) -> Tensor:
    """Fixed odd numbers that look random: the mixing function of SplitMix64."""
    numbers = torch.arange(1, count + 1) * -0x61C8864680B583EB
    numbers = (numbers ^ (numbers >> 30)) * -0x40A7B892E31B1A47
    numbers = (numbers ^ (numbers >> 27)) * -0x6B2FB644ECCEEE15
    return ((numbers ^ (numbers >> 31)) | 1).to(device)
