"""Whether an update may be applied, decided on the device: nobody waits, and after the first bad one none is."""

import torch
from torch import Tensor


class Verdict:
    """Judges losses and gradients where they are.

    >>> verdict = Verdict(torch.device("cpu"))
    >>> verdict.judge([torch.tensor(1.0), torch.tensor(2.0)])
    >>> verdict.end()
    >>> verdict.judge([torch.tensor(1.0), torch.tensor(float("nan"))])
    >>> verdict.end()
    >>> verdict.allowed.item(), verdict.halted, verdict.at
    (False, True, 2)

    From the first run on whose numbers are not finite, no update is allowed any more, until `clear`: the host, which
    hears of it later, finds the weights as they were before that run. Every operation here is one that the device
    does in each step, so there are few.
    """

    __slots__ = ("allowed", "empty", "good", "poison")

    def __init__(self, device: torch.device) -> None:
        self.poison = torch.zeros((), device=device)  # NaN from the first bad run on
        self.good = torch.zeros((), dtype=torch.int64, device=device)  # runs before it
        self.empty = torch.zeros(
            (), dtype=torch.bool, device=device
        )  # the last judged weighed nothing; only on the CPU
        self.allowed: Tensor | None = None  # whether the last judged update may be applied

    def judge(self, sizes: list[Tensor], weight: float | Tensor = 1) -> None:
        """Looks at numbers that are finite where all is well; what weighs nothing is no reason to stop."""
        all_sizes = _together(sizes, self.poison.device)
        if not isinstance(weight, Tensor):
            self.poison.add_(_doubt(all_sizes))
            self.allowed = self.poison == 0
            if self.empty.device.type == "cpu":
                self.empty.zero_()
            return
        nothing = weight.detach().to(self.poison.device) == 0
        if torch.compiler.is_compiling():
            # Each out of numbers of its own: where one comes out of the other, triton's compiler can fail.
            self.allowed = self.poison + _doubt(torch.where(nothing, torch.inf, all_sizes)) == 0
            self.poison.add_(_doubt(torch.where(nothing, 0, all_sizes)))
        else:
            self.poison.add_(_doubt(all_sizes).masked_fill_(nothing, 0))
            self.allowed = nothing <= self.poison  # 0 <= 0; no number is at most NaN
        if self.empty.device.type == "cpu":  # where it is read at once
            self.empty.copy_(nothing)

    def end(self) -> None:
        """Counts a run that was good."""
        self.good.add_(self.poison == 0)

    @property
    def halted(self) -> bool:
        """Whether a run was bad; waits for the device."""
        return self.poison.item() != 0

    @property
    def at(self) -> int:
        """The number of the first bad run; waits for the device."""
        return int(self.good.item()) + 1

    def clear(self) -> None:
        """Starts anew."""
        for tensor in self.tensors():
            tensor.zero_()

    def tensors(self) -> list[Tensor]:
        """What it keeps, and changes in place."""
        return [self.poison, self.good, self.empty]


def _together(sizes: list[Tensor], device: torch.device) -> Tensor:
    """Numbers side by side in one type, with few operations where many are of a kind."""
    kinds = dict.fromkeys((size.dtype, size.device) for size in sizes)
    wide = torch.float64 if any(dtype == torch.float64 for dtype, _ in kinds) else torch.float32
    alike = [[size.detach() for size in sizes if (size.dtype, size.device) == kind] for kind in kinds]
    parts = [torch.stack(some).to(device, wide) for some in alike]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _doubt(sizes: Tensor) -> Tensor:
    """0, or NaN where a size is not finite."""
    largest = torch.linalg.vector_norm(sizes, torch.inf)
    return largest - largest
