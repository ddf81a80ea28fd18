"""A step that is made once and repeated: which made one fits a batch, when to make one, and when to stay eager."""

import gc
from collections import Counter
from collections.abc import Hashable
from typing import Any, Protocol

import torch
from torch import Tensor

from stoker.data import RowSelection
from stoker.program._made import Batch, Made, NotYet
from stoker.program._plan import Plan
from stoker.program._reason import Cannot, reason_of
from stoker.program._runs import Runs
from stoker.program._stations import Stations
from stoker.program._tree import Opaque, Shape, taken_apart, together, written_back

_MOST = 12  # made steps at a time; batches of yet another kind run eagerly


class Maker(Protocol):
    """Makes a step out of stations."""

    def make(self, stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Made:
        """A step for such batches; raises `Cannot`, or whatever the user's code raises. Nothing has run after it."""
        ...


class Repeated(Runs):
    """Runs batches through made steps; through the stations where there is none, or none can be made.

    The first batch of a kind is run eagerly: it is a real one, and brings everything into being that later ones find.
    """

    __slots__ = (
        "_before",
        "_given_up",
        "_known",
        "_last",
        "_maker",
        "_own",
        "_pins",
        "_rests",
        "_seen",
        "_steps",
        "_touched",
    )

    def __init__(self, stations: Stations, plan: Plan, maker: Maker) -> None:
        super().__init__(stations, plan)
        self._maker = maker
        self._given_up = False
        self._start_anew()

    def _start_anew(self) -> None:
        """Without any made step."""
        self._steps: dict[Hashable, Made] = {}
        self._seen: Counter[int] = Counter()  # hashes of keys
        self._rests: set[int] = set()  # hashes of keys without the batch's signature
        self._known: set[Hashable] = set()  # keys without the batch's signature, of steps that were made
        self._own: set[int] = set()  # ids of the tensors that made steps keep their values in
        self._last: Made | None = None
        self._touched, self._pins = True, None  # what the steps were made for

    def run(self, given: Any) -> None:
        """One batch."""
        if self._given_up:
            self._by_itself(given)
            return
        last = self._last
        if last is not None and self._is_again(last, given):
            self._repeat(last, given, [given.rows, *last.columns])
            return
        self._launch()
        batch = self._taken_apart(given)
        if batch is None:
            self._eagerly(given)
            return
        made = self._found(batch)
        if made is None:
            self._eagerly(given)
        else:
            self._repeat(made, given, batch.tensors)

    def touched(self) -> None:
        """Somebody may have changed something: the next run looks whether its step still fits."""
        self._touched = True

    def settle(self) -> None:
        """Waits until every run that was started is known to be right; raises where one is not."""
        raise NotImplementedError

    # --- which step

    @property
    def _at_once(self) -> bool:
        """What is compiled rounds in its own way. So whether a batch is compiled must not depend on what this process
        has seen before: a run that goes on comes to the same bits.
        """
        return self.plan.mode in ("compiled", "gradient")

    def _is_again(self, last: Made, given: Any) -> bool:
        """Whether the last step is the one for a batch as well, as can be told at a glance."""
        if not last.again or self._touched or not last.picks(given):
            return False
        self._stations.set_rates()
        return self._stations.turn() == last.turn

    def _taken_apart(self, given: Any) -> Batch | None:
        tensors: list[Tensor] = []
        try:
            shape = taken_apart(given, tensors)
        except Opaque as error:
            self._give_up(f"a batch has a {error} in it, which can't be taken apart into tensors")
            return None
        return Batch(given, shape, tensors, (shape, *[(each.shape, each.stride(), each.dtype) for each in tensors]))

    def _found(self, batch: Batch) -> Made | None:
        """The step for a batch as things stand, made now where that pays; the kept values are in its own tensors."""
        stations = self._stations
        stations.ready()
        if self._touched or self._pins is None:
            if why := stations.obstacle():
                self._give_up(why)
                return None
            self._pins, self._touched = stations.pins(), False
        leaves: list[Tensor] = []
        try:
            kept = taken_apart(stations.kept(), leaves)
        except Opaque as error:
            self._give_up(f"a metric keeps a {error}, which is no tensor")
            return None
        if any(leaf.device != stations.verdict.poison.device for leaf in leaves):
            self._give_up("a metric keeps a number on another device than the model's")
            return None
        rest = (kept, *[(each.shape, each.dtype) for each in leaves], self._pins, stations.turn())
        key = (batch.signature, rest)
        made = self._steps.get(key)
        if made is None and self._is_due(key, rest):
            try:
                made = self._make(batch, kept, leaves)
            except NotYet:
                return self._found(batch)
            if made is not None:
                self._steps[key] = made
                self._known.add(rest)
        if made is None:
            return None
        if isinstance(batch.value, RowSelection):
            made.source, made.size, made.columns = batch.value.source, len(batch.value), batch.tensors[1:]
        written_back(made.before, leaves)
        stations.hold(together(kept, iter(made.before)))
        return made

    def _is_due(self, key: Hashable, rest: Hashable) -> bool:
        if len(self._steps) >= _MOST:
            note = f"{_MOST} kinds of batches have a program of their own; others run eagerly"
            if note not in self.plan.notes:
                self.plan.notes.append(note)
            return False
        if self._at_once:
            return self._stations.begun
        self._rests.add(hash(rest))
        seen = hash(key)  # not the key, which holds a print of every module
        self._seen[seen] += 1
        # Of a shape that is new, cuDNN tries its kernels where it was told to, which can't be in a recording.
        return (rest in self._known and not torch.backends.cudnn.benchmark) or self._seen[seen] > 1

    def _make(self, batch: Batch, kept: Shape, leaves: list[Tensor]) -> Made | None:
        stations = self._stations
        self.settle()
        original, around = together(kept, iter(leaves)), stations.surroundings()
        before = [leaf if id(leaf) in self._own else leaf.clone() for leaf in leaves]
        stations.hold(together(kept, iter(before)))
        try:
            made = self._maker.make(stations, batch, kept, before)
            if made_anew := stations.unsettled():
                raise NotYet(made_anew)
            if (changed := around.difference(stations.surroundings())) is not None:
                raise Cannot(changed)
        except NotYet as error:
            if str(error) == "losses" and self._at_once:
                raise  # they are known now
            return None
        except Exception as error:
            why = reason_of(error)
        else:
            self._own.update(id(tensor) for tensor in (*before, *made.after[1]))
            made.turn = stations.turn()
            return made
        finally:
            stations.hold(original, own=any(id(leaf) in self._own for leaf in leaves))
        self._give_up(why)
        around.put_back()
        stations.forget()  # what it has left in the middle
        gc.collect()  # and what its exception held: the nodes of autograd there are of the stream of a recording
        return None

    def _give_up(self, why: str) -> None:
        """From here on everything runs eagerly, for a reason that is told."""
        self._given_up = True
        self.plan.narrow("eager", why)
        self._steps.clear()
        self._stations.changed(self.plan)

    # --- running

    def _eagerly(self, given: Any) -> None:
        self.settle()
        self._last, self._touched = None, True  # a first run brings things into being
        restless = not self._steps and len(self._rests) > _MOST
        around = self._stations.surroundings() if restless else None
        self._by_itself(given)
        self._after_eagerly()
        if around is not None:
            why = around.changed(self._stations.surroundings())
            self._give_up(
                why or "what its Python decides by is another thing in every batch: a module's attribute, say"
            )

    def _by_itself(self, given: Any) -> None:
        """The stations, one after the other."""
        self._stations.run(given)

    def _after_eagerly(self) -> None:
        """What a run has brought into being is there."""

    def _repeat(self, made: Made, given: Any, tensors: list[Tensor]) -> None:
        stations = self._stations
        self._before_launch()
        self._counted(made, given)
        made.launch(tensors)
        if not made.again:
            shape, after = made.after
            stations.hold(together(shape, iter(after)))
        stations.say(made.said)
        self._last = made
        self._after_launch()
        stations.rest()

    def _counted(self, made: Made, given: Any) -> None:
        self._count(given)
        self._stations.begin(made.said)

    def _launch(self) -> None:
        """What was put off is launched now."""

    def _before_launch(self) -> None:
        """Makes room, where runs are under way."""

    def _after_launch(self) -> None:
        """Notes that a run is under way, or looks at once how it went."""

    def _fail(self) -> None:
        self._last = None
        super()._fail()
