"""What the loop hands over to be run as one program: all stations of a batch, and everything that they touch."""

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from stoker.program._plan import Plan
from stoker.program._verdict import Verdict


class Inputs(NamedTuple):
    """Tensors that a run reads: those that it writes in place, and those that are set before it."""

    written: list[Tensor]  # parameters, buffers, the optimizer's state, the average, the verdict
    rates: list[Tensor]  # learning rates that change


class Stations(Protocol):
    """One batch through all stations, as a function of tensors that a program can run in its own way."""

    verdict: Verdict

    def run(self, given: Any) -> None:
        """Everything that is done with a batch, operation by operation, on whatever tensors are in place."""
        ...

    def on_device(self) -> AbstractContextManager[None]:
        """While it is open, nothing in `run` reads a value: the verdict is the device's."""
        ...

    def ready(self) -> None:
        """Before a run on the device: what it adds to is tensors, and the rates are set."""
        ...

    def set_rates(self) -> None:
        """Before a repeated run: the learning rates alone."""
        ...

    def kept(self) -> Any:
        """What a run replaces (sums, states of metrics, windows): tensors and plain values, nested."""
        ...

    def hold(self, kept: Any, *, own: bool = True) -> None:
        """Puts such values in place: a program's own, which are changed in place, or those that stood there."""
        ...

    def said(self) -> Any:
        """What a run leaves for the loop and the hooks: outputs, and what it has done."""
        ...

    def forget(self) -> None:
        """Lets go of the last run's outputs: a graph of autograd that is still held would be in the way."""
        ...

    def begin(self, said: Any) -> None:
        """Before a made run that will leave `said`: from here on there is no way back."""
        ...

    def say(self, said: Any) -> None:
        """Leaves that again, for a run that was repeated by the device."""
        ...

    def turn(self) -> Hashable:
        """What differs from run to run and Python decides by: whether a window is open, a rate that is a number."""
        ...

    def inputs(self) -> Inputs:
        """The tensors behind it all."""
        ...

    def lent(self, inputs: Inputs) -> AbstractContextManager[None]:
        """While it is open, these are in the place of the real tensors."""
        ...

    def obstacle(self) -> str:
        """Why there can't be a program any more; empty where nothing is in the way."""
        ...

    def pins(self) -> Any:
        """What Python decides by, beside the kept values: equal as long as a program of it stays right."""
        ...

    def unread(self) -> AbstractContextManager[None]:
        """While it is open, no station reads a value, and whether an update is applied the device decides."""
        ...

    @property
    def exact(self) -> bool:
        """Whether another process has to come to the same bits: the fit is saved, and can be gone on with."""
        ...

    @property
    def begun(self) -> bool:
        """Whether an update has been applied, by whatever process: what later ones find is there."""
        ...

    def unsettled(self) -> str:
        """What the last run on the device has made that was not there before: "losses", which are known from now on,
        or "state" of the optimizer, which is undone and needs a real run.
        """
        ...

    def surroundings(self) -> "Surroundings":
        """What a run must not change, for a program of it to be right: attributes of modules, generators."""
        ...

    def alone(self) -> bool:
        """Whether nothing happens between the run before and this one: nobody looks, and the rates are the same."""
        ...

    def settle_in(self) -> None:
        """Moves what a first run has made (the optimizer's state) to memory of its own."""
        ...

    def rest(self) -> None:
        """What can't be in a program, after a run: metrics whose state grows."""
        ...

    def place(self) -> Any:
        """Where the loop stands."""
        ...

    def left_at(self, place: Any) -> None:
        """Says that nothing since a run that was not finite has changed a weight."""
        ...

    def fail(self, given: Any, place: Any) -> None:
        """Does a run again that was not finite, where it was, which raises."""
        ...

    def tell(self, text: str) -> None:
        """Says something to whoever watches."""
        ...

    def changed(self, plan: Plan) -> None:
        """The plan is another one than was said before."""
        ...


class Surroundings(Protocol):
    """What stood around a run before it."""

    def difference(self, now: Any) -> str | None:
        """What has changed since, in words; None where nothing has."""
        ...

    def changed(self, now: Any) -> str | None:
        """The same, but for random numbers, which an eager run may draw anywhere."""
        ...

    def put_back(self) -> None:
        """As it was."""
        ...
