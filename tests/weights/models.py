"""Small models and comparisons for the tests of weights files."""

import torch
from torch import nn

FORMATS = ("safetensors", "msgpack", "json")
DTYPES = (
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
)


class Holder(nn.Module):
    """A module whose buffers are the given tensors."""

    def __init__(self, **tensors: torch.Tensor):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def every_dtype() -> dict[str, torch.Tensor]:
    return {f"a_{str(dtype)[6:]}": torch.ones(3, 5).to(dtype) for dtype in DTYPES}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def small_model(fill: float | None = None) -> nn.Module:
    """Linear layers, two of them tied, a batch norm, and a complex128 buffer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[3].weight = model[2].weight
    model.register_buffer("phases", torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128))
    model[1].running_mean.copy_(torch.randn(4))
    if fill is not None:
        for tensor in model.state_dict().values():
            tensor.fill_(fill)
    return model


def snapshot(model: nn.Module) -> dict[str, bytes]:
    return {name: bits(tensor) for name, tensor in model.state_dict().items()}
