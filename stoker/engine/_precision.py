"""The precision of a fit: autocast, TF32, and the loss scale that keeps fp16 gradients from underflowing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from stoker.errors import InvalidArgument, StateMismatch
from stoker.gradients import Gradients

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NO_AUTOCAST = nullcontext()
_UPDATES_BEFORE_GROWTH = 2000


def check_precision(precision: str) -> None:
    """Raises if `precision` is not one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise InvalidArgument(f"precision is one of {', '.join(map(repr, PRECISIONS))}; got {precision!r}")


def autocast(precision: str, device: torch.device) -> Any:
    """The context of a forward pass: autocast for bf16 and fp16, nothing for fp32 and tf32."""
    if precision in _AUTOCAST_TYPES:
        return torch.autocast(device.type, dtype=_AUTOCAST_TYPES[precision])
    return _NO_AUTOCAST


def float32_settings() -> tuple[str, ...]:
    """PyTorch's precision settings for float32 products, convolutions and recurrent layers."""
    return tuple("ieee" if each == "none" else each for each in _read_settings())


@contextmanager
def tf32_if_requested(precision: str) -> Iterator[None]:
    """Allows TF32 for the length of a fit with `precision="tf32"`, and restores PyTorch's settings afterwards."""
    if precision != "tf32":
        yield
        return
    before, legacy = _read_settings(), _read_legacy_settings()
    if legacy is not None:  # code that reads the older settings sees the change too
        _write_legacy_settings("high", True)
    else:
        _write_settings(["tf32"] * len(before))
    try:
        yield
    finally:
        if legacy is not None:
            _write_legacy_settings(*legacy)
        _write_settings(before)


def _backends() -> tuple[Any, ...]:
    backends: Any = torch.backends
    return backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul


def _read_settings() -> list[str]:
    return [backend.fp32_precision for backend in _backends()]


def _write_settings(values: Sequence[str]) -> None:
    for backend, value in zip(_backends(), values, strict=True):
        if backend.fp32_precision != value:  # an equal value may be inherited from a more general setting
            backend.fp32_precision = value


def _read_legacy_settings() -> tuple[str, bool] | None:
    """PyTorch's older settings; None if reading them raises because the newer ones have been used."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _write_legacy_settings(matmul: str, allow_tf32: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = allow_tf32


class LossScale:
    """The factor on an fp16 loss: halved after an overflow, doubled after 2000 updates without one.

    >>> LossScale().scale(torch.tensor(2.0)).item() == 2.0 * 65536
    True
    """

    __slots__ = ("factor", "steady_updates")

    def __init__(self) -> None:
        self.factor = 65536.0
        self.steady_updates = 0  # since the last change of the factor

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss to differentiate."""
        return loss * self.factor

    def unscale(self, grads: Gradients) -> Gradients:
        """Returns the true gradients. Clipping comes after it."""
        return grads.scale(1.0 / self.factor)

    def adjust(self, *, finite: bool) -> None:
        """Adapts the factor after an update that was applied, or that overflowed and was not."""
        if not finite:
            self.factor, self.steady_updates = max(self.factor / 2, 1.0), 0
            return
        self.steady_updates += 1
        if self.steady_updates >= _UPDATES_BEFORE_GROWTH and math.isfinite(self.factor * 2):
            self.factor, self.steady_updates = self.factor * 2, 0

    def state_dict(self) -> dict[str, Any]:
        """The factor, and the number of updates since it last changed."""
        return {"factor": self.factor, "steady": self.steady_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        factor, steady = (state or {}).get("factor"), (state or {}).get("steady")
        if type(factor) is not float or type(steady) is not int or not factor >= 1 or steady < 0:
            raise StateMismatch(
                "the saved loss scale does not match: expected a factor of at least 1 and a count of updates; "
                f"got {state!r:.100}"
            )
        self.factor, self.steady_updates = factor, steady
