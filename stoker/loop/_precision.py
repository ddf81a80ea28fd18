"""The types that a forward pass computes in, and the scale that keeps 16-bit gradients from vanishing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from stoker.errors import InvalidArgument, StateMismatch
from stoker.gradients import Gradients

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_AS_IT_IS = nullcontext()
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def check_precision(precision: str) -> None:
    """Refuses a name that is none."""
    if precision not in PRECISIONS:
        raise InvalidArgument(f"precision is one of {', '.join(map(repr, PRECISIONS))}; got {precision!r}")


def forward_in(precision: str, device: torch.device) -> Any:
    """The context of a forward pass: autocast for bf16 and fp16; fp32 is whatever PyTorch is set to."""
    if precision in _TYPES:
        return torch.autocast(device.type, dtype=_TYPES[precision])
    return _AS_IT_IS


def rounding() -> tuple[str, ...]:
    """What PyTorch is set to for products, convolutions and recurrent layers of float32, however it was set."""
    return tuple("ieee" if each == "none" else each for each in _settings())


def _settings() -> list[str]:
    return [place.fp32_precision for place in _places()]


def _places() -> tuple[Any, ...]:
    backends: Any = torch.backends
    return backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul


@contextmanager
def held(precision: str) -> Iterator[None]:
    """TF32 for the length of a fit; PyTorch's own setting comes back afterwards."""
    if precision != "tf32":
        yield
        return
    before, old = _settings(), _old()
    if old is not None:  # so that those who ask for them hear of it
        _set_old("high", True)
    else:
        _set(["tf32"] * len(before))
    try:
        yield
    finally:
        if old is not None:
            _set_old(*old)
        _set(before)


def _old() -> tuple[str, bool] | None:
    """PyTorch's older settings of the same; None where asking raises, since the newer ones say what they can't."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _set_old(matmul: str, is_allowed: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = is_allowed


def _set(precisions: Sequence[str]) -> None:
    for place, each in zip(_places(), precisions, strict=True):
        if place.fp32_precision != each:  # else it may be what a wider setting says
            place.fp32_precision = each


class Scaler:
    """The factor on an fp16 loss: halved after an overflow, doubled after many updates without one.

    >>> scaler = Scaler()
    >>> scaler.scaled(torch.tensor(2.0)).item() == 2.0 * 65536
    True
    """

    __slots__ = ("factor", "steady")

    def __init__(self) -> None:
        self.factor = 65536.0
        self.steady = 0  # updates since the last change

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to differentiate."""
        return loss * self.factor

    def unscaled(self, grads: Gradients) -> Gradients:
        """The true gradients; before clipping, which would otherwise clip the factor."""
        return grads.scale(1.0 / self.factor)

    def after(self, finite: bool) -> None:
        """Learns from an update that was applied, or from one that overflowed and was not."""
        if not finite:
            self.factor = max(self.factor / 2, 1.0)
            self.steady = 0
            return
        self.steady += 1
        if self.steady >= 2000 and math.isfinite(self.factor * 2):
            self.factor, self.steady = self.factor * 2, 0

    def state_dict(self) -> dict[str, Any]:
        """The factor, and for how long it has been that."""
        return {"factor": self.factor, "steady": self.steady}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        factor, steady = (state or {}).get("factor"), (state or {}).get("steady")
        if type(factor) is not float or type(steady) is not int or not factor >= 1 or steady < 0:
            raise StateMismatch(
                f"a scaler's state is a factor of at least 1 and a count of updates; got {state!r:.100}"
            )
        self.factor, self.steady = factor, steady
