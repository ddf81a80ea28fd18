"""`Plan`: how the training step runs, and why not in a faster way."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["eager", "gradient", "captured", "compiled"]

_DESCRIPTIONS = {
    "eager": "eager, one operation after the other",
    "gradient": "compiled up to the gradients: forward and backward are one program, and the update comes after it",
    "captured": "captured: forward, backward, update and metrics are one CUDA graph of the eager operations",
    "compiled": "compiled: forward, backward, update and metrics are one program",
}


@dataclass
class Plan:
    r"""The mode of a training step, and what there is to say about it.

    >>> plan = Plan("eager", reason="a callback listens between forward and step")
    >>> print(*plan.lines(), sep="\n")
    step       eager, one operation after the other
               not captured: a callback listens between forward and step
    """

    mode: Mode
    reason: str = ""  # why it is not a faster one
    wanted: Mode = "captured"  # the fastest that was tried or requested
    defers_check: bool = False  # an eager step does not wait for the finite check, on any rank
    data: str = ""  # where the data is
    notes: list[str] = field(default_factory=list)  # shapes, memory, seconds of compilation

    @property
    def warning(self) -> str:
        """What to tell a user who requested a faster mode."""
        how = "is compiled up to the gradients only" if self.mode == "gradient" else f"runs {self.mode}"
        return f"the training step {how}, not {self.wanted} as requested: {self.reason}"

    def lines(self) -> list[str]:
        """The plan as text."""
        lines = [f"step       {_DESCRIPTIONS[self.mode]}"]
        if self.reason:
            lines.append(f"           not {self.wanted}: {self.reason}")
        if self.data:
            lines.append(f"data       {self.data}")
        return [*lines, *(f"           {note}" for note in self.notes)]

    def fall_back(self, mode: Mode, reason: str) -> None:
        """Takes a slower mode. Of several reasons for the same mode the first one is kept."""
        self.mode, self.reason = mode, self.reason if self.reason and mode == self.mode else reason


def choose_plan(
    device_type: str, *, compile: bool, against_replay: Iterable[str] = (), against_update: Iterable[str] = ()
) -> Plan:
    """The fastest plan that is right, as far as it is known before the first batch.

    >>> choose_plan("cpu", compile=False).mode, choose_plan("cuda", compile=False).mode
    ('eager', 'captured')

    `against_replay` are reasons why the step can only run eagerly; `against_update` are reasons why only the part of it
    up to the gradients can be compiled.
    """
    if device_type == "cpu" and not compile:
        return Plan("eager", wanted="compiled")
    wanted: Mode = "compiled" if compile else "captured"
    plan = Plan(wanted, wanted=wanted)
    if device_type not in ("cpu", "cuda"):
        plan.fall_back("eager", f"torch has no graphs for {device_type}")
    for reason in against_replay:
        plan.fall_back("eager", reason)
    for reason in against_update:
        plan.fall_back("gradient" if plan.mode in ("compiled", "gradient") else "eager", reason)
    return plan
