"""Values on their way between processes: small tensors as bytes, large ones through shared memory."""

import io
import math
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from stoker.errors import WrongType


def packed(value: Any, *, share_above: float = math.inf) -> memoryview:
    """A value as bytes, for `pickle.loads` in another process; tensors of more than `share_above` bytes are shared.

    >>> pickle.loads(packed({"x": torch.arange(3), "name": "a"}))
    {'x': tensor([0, 1, 2]), 'name': 'a'}

    Sharing moves a tensor's storage, so it is only for tensors that nobody else has; each costs both processes a file
    descriptor for as long as it lives. Bytes cost two copies, and of a view only what can be seen of it.
    """
    buffer = io.BytesIO()
    try:
        _Packer(buffer, share_above).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise WrongType(
            f"samples and batches have to travel between processes, and one can't ({error}); make it of tensors, "
            "arrays and plain values, or use workers=0"
        ) from error
    return buffer.getbuffer()


def stacked_to_share(tensors: list[Tensor], *, above: float) -> Tensor:
    """The tensors as `torch.stack` joins them, in shared memory if they are large, so that `packed` copies nothing."""
    size = sum(each.nbytes for each in tensors)
    plain = (type(each) is Tensor and each.is_contiguous() and not each.requires_grad for each in tensors)
    if size <= above or tensors[0].device.type != "cpu" or not all(plain):
        return torch.stack(tensors)
    memory = torch.UntypedStorage._new_shared(size, device="cpu")
    flat = torch.empty(0, dtype=tensors[0].dtype, device="cpu").set_(memory)
    return torch.stack(tensors, out=flat.view(len(tensors), *tensors[0].shape))


class _Packer(ForkingPickler):
    """Python's pickler for other processes, which torch has taught to share tensors, less the small ones."""

    def __init__(self, buffer: io.BytesIO, share_above: float) -> None:
        super().__init__(buffer)
        self._share_above = share_above

    def reducer_override(self, value: Any) -> Any:
        plain = type(value) is Tensor and value.device.type == "cpu" and value.layout == torch.strided
        if not plain or value.requires_grad or value.is_quantized or value.nbytes > self._share_above:
            return NotImplemented
        seen = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return _unpacked, (bytearray(seen.flatten().view(torch.uint8).numpy()), value.dtype, tuple(value.shape))


def _unpacked(content: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not content:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(content, dtype=dtype).reshape(shape)
