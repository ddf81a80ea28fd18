"""The state of the global random generators, and cheap snapshots of it."""

import random

import numpy
import pytest
import torch

from stoker import StateMismatch
from stoker.checkpoint import RandomWatch, random_state, set_random_state
from tests.checkpoint.states import same, write_and_read


@pytest.fixture(autouse=True)
def _restore_generators():
    generator, state = numpy.random.get_bit_generator(), random_state()
    yield
    numpy.random.set_bit_generator(generator)
    set_random_state(state)


def draw_all():
    """Numbers from every generator; `gauss` and `randn` keep every second number for the next call."""
    return (
        *(random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn()),
        *torch.randn(3).tolist(),
        torch.rand(()).item(),
    )


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "SFC64"])
def test_all_generators_continue_with_the_same_numbers(kind):
    numpy.random.set_bit_generator(getattr(numpy.random, kind)(3))
    for drawings in range(4):
        state = write_and_read(random_state())
        first = [draw_all() for _ in range(3)]
        set_random_state(state)
        assert [draw_all() for _ in range(3)] == first, drawings
        numpy.random.randint(0, 9, dtype=numpy.uint8)  # some generators keep the rest of a word


def test_drawing_does_not_change_a_state():
    state = random_state()
    before = write_and_read(state)
    draw_all()
    assert same(state, before)
    set_random_state(state)
    draw_all()
    assert same(state, before)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda state: state.pop("numpy"), r"numpy: 'numpy' is missing in the state"),
        (lambda state: state["python"].update(words=torch.ones(3)), "python: state vector is the wrong"),
        (lambda state: state.update(torch=torch.zeros(7, dtype=torch.uint8)), "torch: .*RNG state size"),
        (lambda state: state.update(cuda=[torch.zeros(16)] * 99), "generators of 99 GPUs, but there are"),
        (
            lambda state: state["numpy"].update(bit_generator="PCG64"),
            "numpy's global generator was a PCG64 and is a MT19937 here; call numpy.random.set_bit_generator first",
        ),
    ],
)
def test_an_invalid_state_changes_nothing(change, text):
    state = random_state()
    draw_all()
    before = random_state()
    change(state)
    with pytest.raises(StateMismatch, match=text):
        set_random_state(state)
    assert same(random_state(), before)


# Snapshots


def draw_python():
    random.random()


def draw_numpy():
    numpy.random.rand()


@pytest.mark.parametrize("draw", [draw_python, draw_numpy, draw_all], ids=lambda draw: draw.__name__)
def test_snapshots_after_every_update_hold_the_whole_state(draw):
    """Also if Python's and numpy's generators are used: the first snapshot notices it."""
    watch = RandomWatch()
    for _ in range(20):
        draw()
        snapshot, state = watch.snapshot(), random_state()
        torch.rand(3)
        assert same(watch.state_at(snapshot), state)
        torch.set_rng_state(state["torch"])


@pytest.mark.parametrize("draw", [draw_python, draw_numpy])
def test_an_unknown_state_is_none_and_later_ones_are_known(draw):
    watch = RandomWatch()
    snapshots = [watch.snapshot() for _ in range(5)]
    draw()
    assert watch.state_at(snapshots[-1]) is None
    snapshot, state = watch.snapshot(), random_state()
    draw()
    assert same(watch.state_at(snapshot), state)
    assert watch.state_at(snapshots[0]) is None


def test_a_generator_that_is_used_late_is_noticed():
    """At powers of two, so snapshots from before are unknown."""
    watch = RandomWatch()
    for _ in range(7):
        early = watch.snapshot()
        assert early.python is None and early.numpy is None  # most snapshots read only torch's generator
    random.random()
    eighth, state = watch.snapshot(), random_state()
    random.random()
    assert watch.state_at(early) is None
    assert same(watch.state_at(eighth), state)


def test_numbers_that_were_drawn_and_undone_do_not_count():
    watch = RandomWatch()
    snapshot, state = watch.snapshot(), random_state()
    draw_all()
    set_random_state(state)
    assert same(watch.state_at(snapshot), state)


@pytest.mark.cuda
def test_every_gpu_continues_with_the_same_numbers():
    torch.rand(2, device="cuda")
    watch = RandomWatch()
    state, snapshot = write_and_read(random_state()), watch.snapshot()
    assert len(state["cuda"]) == torch.cuda.device_count()
    first = torch.rand(4, device="cuda").tolist()
    set_random_state(state)
    assert torch.rand(4, device="cuda").tolist() == first
    set_random_state(watch.state_at(snapshot))
    assert torch.rand(4, device="cuda").tolist() == first
