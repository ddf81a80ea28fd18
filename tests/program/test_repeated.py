"""Which made step fits a batch, when one is made, and when everything stays eager."""

import pytest
import torch

from stoker.program import Plan, Verdict
from stoker.program._made import Made
from stoker.program._reason import Cannot
from stoker.program._repeated import Repeated
from stoker.program._tree import matched, taken_apart, written_back


class Around:
    def __init__(self, stations):
        self.value = stations.attribute

    def changed(self, now):
        return None if self.value == now.value else "it sets its attribute in every step"

    difference = changed

    def put_back(self):
        """Nothing to put back."""


class Sum:
    """Stations that add up what they are given; `calls` says what was done."""

    def __init__(self, restless=False):
        self.verdict = Verdict(torch.device("cpu"))
        self.total, self.calls, self.told = torch.zeros(()), [], []
        self.attribute, self.open, self.restless = 0, False, restless

    def run(self, given):
        self.calls.append("eager")
        self.attribute += self.restless
        self.total = self.total + given.sum()

    def add(self, given):
        return self.total + given.sum()

    def kept(self):
        return {"total": self.total}

    def hold(self, kept, *, own=True):
        self.total = kept["total"]

    def obstacle(self):
        return ""

    def pins(self):
        return self.attribute

    def surroundings(self):
        return Around(self)

    def turn(self):
        return self.open

    @property
    def begun(self):
        return bool(self.calls)

    def unsettled(self):
        return ""

    def changed(self, plan):
        self.told.append(plan.why)

    def ready(self): ...
    def set_rates(self): ...
    def begin(self, said): ...
    def say(self, said): ...
    def rest(self): ...
    def forget(self): ...
    def place(self):
        return len(self.calls)

    def fail(self, given, place):
        raise ArithmeticError(f"batch {given.tolist()} at {place}")


class Maker:
    """Makes steps that add in place, as a program does."""

    def __init__(self, error=None):
        self.made, self.error = [], error

    def make(self, stations, batch, kept, before):
        if self.error is not None:
            raise self.error
        self.made.append(tuple(batch.tensors[0].shape))

        def launch(tensors):
            stations.calls.append("made")
            before[0].add_(tensors[0].sum())

        return Made(launch, before, (kept, before), (), True)


class Sums(Repeated):
    __slots__ = ("failing",)

    def settle(self): ...

    def _after_launch(self):
        if getattr(self, "failing", False):
            self._fail()


def sums(mode="captured", *, error=None, restless=False):
    stations, maker = Sum(restless), Maker(error)
    return Sums(stations, Plan(mode, wanted=mode), maker), stations, maker


def test_a_kind_is_run_eagerly_once_and_made_when_it_comes_again():
    program, stations, maker = sums()
    for _ in range(4):
        program.run(torch.ones(3))
    assert stations.calls == ["eager", "made", "made", "made"] and maker.made == [(3,)]
    assert stations.total.item() == 12


def test_what_is_compiled_is_made_at_once_when_an_update_has_been_applied():
    """By whatever process: a run that goes on compiles where the whole one has compiled."""
    program, stations, _ = sums("compiled")
    for place in range(4):
        stations.open = place >= 2
        program.run(torch.ones(3))
    assert stations.calls == ["eager", "made", "made", "made"]
    resumed, stations, _ = sums("compiled")
    stations.calls.append("in another process")
    resumed.run(torch.ones(3))
    assert stations.calls == ["in another process", "made"]


def test_another_kind_is_made_at_once_where_nothing_else_is_new():
    program, stations, maker = sums()
    for size in (3, 3, 2, 3, 2):
        program.run(torch.ones(size))
    assert stations.calls == ["eager", "made", "made", "made", "made"] and maker.made == [(3,), (2,)]
    assert stations.total.item() == 13


@pytest.mark.parametrize("other", [torch.ones(3, dtype=torch.float64), torch.ones(6)[::2]], ids=["dtype", "stride"])
def test_types_and_strides_are_kinds(other):
    program, _, maker = sums()
    for batch in (torch.ones(3), torch.ones(3), other):
        program.run(batch)
    assert len(maker.made) == 2


def test_what_python_decides_by_is_a_kind_and_looked_at_when_somebody_was_there():
    program, stations, maker = sums()
    for _ in range(3):
        program.run(torch.ones(3))
    stations.attribute = 5
    program.touched()
    for _ in range(2):
        program.run(torch.ones(3))
    assert stations.calls == ["eager", "made", "made", "eager", "made"]
    stations.attribute = 0
    program.touched()
    program.run(torch.ones(3))
    assert stations.calls[-1] == "made" and len(maker.made) == 2  # the first one fits again
    assert stations.total.item() == 18


def test_whether_a_window_is_open_is_a_kind():
    program, stations, _ = sums()
    for place in range(8):
        stations.open = place % 2 == 0
        program.run(torch.ones(3))
    assert stations.calls == ["eager", "eager", *["made"] * 6] and stations.total.item() == 24


def test_at_most_so_many_are_made():
    program, stations, maker = sums()
    sizes = [1 + place % 15 for place in range(45)]
    for size in sizes:
        program.run(torch.ones(size))
    assert len(maker.made) == 12 and stations.total.item() == sum(sizes)
    assert program.plan.notes == ["12 kinds of batches have a program of their own; others run eagerly"]


def test_what_was_seen_is_kept_in_little_room():
    """A key has a print of every module in it; thousands of kinds of batches must not keep thousands of those."""
    program, _, _ = sums()
    for size in range(1, 40):
        program.run(torch.ones(size))
    assert all(isinstance(each, int) for each in program._seen)


def test_a_step_that_changes_what_it_decides_by_is_given_up_with_the_reason():
    program, stations, maker = sums(restless=True)
    for _ in range(20):
        program.run(torch.ones(3))
    assert stations.told == ["it sets its attribute in every step"] and not maker.made
    assert program.plan.mode == "eager" and stations.total.item() == 60


@pytest.mark.parametrize("error", [Cannot("no way"), RuntimeError("no way")], ids=["ours", "theirs"])
def test_what_can_not_be_made_is_run_eagerly_for_good(error):
    program, stations, _ = sums(error=error)
    for _ in range(4):
        program.run(torch.ones(3))
    assert stations.calls == ["eager"] * 4 and stations.total.item() == 12
    assert program.plan.mode == "eager" and "no way" in program.plan.why and len(stations.told) == 1


def test_a_batch_that_hides_its_tensors_is_run_eagerly():
    class Box:
        def sum(self):
            return torch.tensor(2.0)

    program, stations, _ = sums()
    program.run(Box())
    assert stations.total.item() == 2 and program.plan.why == (
        "a batch has a Box in it, which can't be taken apart into tensors"
    )


def test_the_first_bad_run_is_done_again_where_it_was():
    program, stations, _ = sums()
    for _ in range(3):
        program.run(torch.ones(1))
    stations.verdict.good.fill_(2)  # the third made run was the bad one
    program.failing = True
    with pytest.raises(ArithmeticError, match=r"batch \[7.0\] at 3"):
        program.run(torch.tensor([7.0]))
    assert stations.verdict.at == 1 and not stations.verdict.halted


def test_what_a_run_leaves_is_written_over_what_it_has_read_where_it_fits():
    kept = {"a": torch.zeros(2), "n": 1}
    before, after = [], []
    shapes = taken_apart(kept, before), taken_apart({"a": torch.ones(2), "n": 1}, after)
    assert matched(before, after, shapes)
    written_back(before, after)
    assert kept["a"].tolist() == [1.0, 1.0]
    assert not matched(before, [torch.ones(3)], shapes)
    assert not matched(before, [torch.ones(2).double()], shapes)
    assert not matched(before, after, (shapes[0], taken_apart({"a": torch.ones(2), "n": 2}, [])))
