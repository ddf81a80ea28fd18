"""How the training step runs, and why not in a wider way: said before it starts, and kept up to date."""

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["eager", "gradient", "captured", "compiled"]

_WORDS = {
    "eager": "eager, one operation after the other",
    "gradient": "compiled up to the gradients: forward and backward are one program, and the update comes after it",
    "captured": "captured: forward, backward, update and metrics are one CUDA graph of the eager operations",
    "compiled": "compiled: forward, backward, update and metrics are one program",
}


@dataclass
class Plan:
    r"""The mode of a training step, and what there is to say of it.

    >>> plan = Plan("eager", why="a callback listens between forward and step")
    >>> print(*plan.lines(), sep="\n")
    step       eager, one operation after the other
               not captured: a callback listens between forward and step
    """

    mode: Mode
    why: str = ""  # why it is no wider one
    wanted: Mode = "captured"  # the widest that was tried or asked for
    data: str = ""  # where the data is
    notes: list[str] = field(default_factory=list)  # what turned out: shapes, memory, seconds of compiling

    @property
    def step(self) -> str:
        """The mode in words."""
        return _WORDS[self.mode]

    @property
    def complaint(self) -> str:
        """What to say to somebody who asked for a wider mode."""
        how = "is compiled up to the gradients only" if self.mode == "gradient" else f"runs {self.mode}"
        return f"the training step {how}, not {self.wanted} as asked for: {self.why}"

    def lines(self) -> list[str]:
        """A few lines for people."""
        found = [f"step       {self.step}"]
        if self.why:
            found.append(f"           not {self.wanted}: {self.why}")
        if self.data:
            found.append(f"data       {self.data}")
        return [*found, *(f"           {note}" for note in self.notes)]

    def narrow(self, mode: Mode, why: str) -> None:
        """Takes a narrower mode, for a reason that is kept; of several for the same mode the first one counts."""
        self.mode, self.why = mode, self.why if self.why and mode == self.mode else why


def size(count: float) -> str:
    """Bytes for people.

    >>> size(1536), size(3 * 2**30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
