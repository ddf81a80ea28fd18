"""The global generators as a value, and marks that cost next to nothing."""

import random
from collections.abc import Mapping

import numpy
import pytest
import torch

from stoker import StateMismatch
from stoker.checkpoint import RandomWatch, random_state, set_random_state
from stoker.loop import put_back
from tests.checkpoint.trees import through


@pytest.fixture(autouse=True)
def _as_before():
    before = numpy.random.get_bit_generator()
    with put_back():
        yield
        numpy.random.set_bit_generator(before)


def drawn():
    """From every generator; `gauss` and `randn` keep every second number for the next call."""
    return (
        *(random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn()),
        *torch.randn(3).tolist(),
        torch.rand(()).item(),
    )


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return a == b


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_all_generators_go_on_where_they_stood(kind):
    numpy.random.set_bit_generator(getattr(numpy.random, kind)(3))
    for drawings in range(4):
        state = through(random_state())
        first = [drawn() for _ in range(3)]
        set_random_state(state)
        assert [drawn() for _ in range(3)] == first, drawings
        numpy.random.randint(0, 9, dtype=numpy.uint8)  # some keep the rest of a word, too


def test_a_state_is_not_changed_by_what_is_drawn_after_it():
    state = random_state()
    before = through(state)
    drawn()
    assert same(state, before)
    set_random_state(state)
    drawn()
    assert same(state, before)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda state: state.pop("numpy"), r"numpy: 'numpy' is missing in the state"),
        (lambda state: state["python"].pop("words"), r"python: 'words' is missing"),
        (lambda state: state["python"].update(words=torch.ones(3)), "python: state vector is the wrong"),
        (lambda state: state.update(torch=torch.zeros(7, dtype=torch.uint8)), "torch: .*RNG state size"),
        (lambda state: state.update(torch=None), "torch: "),
        (lambda state: state["numpy"]["state"].update(key=torch.ones(3)), "numpy: "),
        (lambda state: state.update(cuda=[torch.zeros(16)] * 99), "generators of 99 GPUs, and there are"),
        (
            lambda state: state["numpy"].update(bit_generator="PCG64"),
            "numpy's global generator was a PCG64 and is a MT19937 here; call numpy.random.set_bit_generator before",
        ),
    ],
    ids=["no-numpy", "no-words", "few-words", "short", "none", "numpy-words", "gpus", "kind"],
)
def test_what_can_not_be_set_changes_nothing(change, text):
    state = random_state()
    drawn()
    before = random_state()
    change(state)
    with pytest.raises(StateMismatch, match=text):
        set_random_state(state)
    assert same(random_state(), before)


def test_several_faults_are_told_at_once():
    with pytest.raises(StateMismatch) as error:
        set_random_state({})
    assert [f"{name}: " in str(error.value) for name in ("torch", "cuda", "python", "numpy")] == [True] * 4


# --- marks


def python():
    random.random()


def arrays():
    numpy.random.rand()


def torchs():
    torch.rand(())


def nothing():
    pass


@pytest.mark.parametrize("draw", [nothing, torchs, python, arrays, drawn], ids=lambda draw: draw.__name__)
def test_a_mark_after_every_update_is_the_whole_state(draw):
    """Also where Python's and numpy's are drawn from: the first mark sees it."""
    watch = RandomWatch()
    for _ in range(20):
        draw()
        mark, state = watch.mark(), random_state()
        torch.rand(3)
        assert same(watch.state_at(mark), state)
        torch.set_rng_state(state["torch"])


@pytest.mark.parametrize("draw", [python, arrays], ids=lambda draw: draw.__name__)
def test_what_can_not_be_told_is_none_once_and_known_from_then_on(draw):
    watch = RandomWatch()
    marks = [watch.mark() for _ in range(5)]
    draw()
    assert watch.state_at(marks[-1]) is None
    mark, state = watch.mark(), random_state()
    draw()
    assert same(watch.state_at(mark), state)
    assert watch.state_at(marks[0]) is None


def test_a_late_drawer_is_found_out_by_a_mark():
    """At powers of two; so the state is not told from a look that came too late."""
    watch = RandomWatch()
    for _ in range(7):
        early = watch.mark()
    random.random()
    eighth, state = watch.mark(), random_state()
    random.random()
    assert watch.state_at(early) is None
    assert same(watch.state_at(eighth), state)


def test_what_was_drawn_and_put_back_does_not_count():
    watch = RandomWatch()
    mark, state = watch.mark(), random_state()
    with put_back():
        drawn()
    assert same(watch.state_at(mark), state)


def test_most_marks_look_at_torch_only():
    watch = RandomWatch()
    marks = [watch.mark() for _ in range(9)]
    assert all(mark.python is None and mark.numpy is None for mark in marks)
    random.random()
    assert [watch.mark().python is None for _ in range(8)] == [True] * 6 + [False] * 2  # the tenth to the 17th


@pytest.mark.cuda
def test_every_gpu_goes_on_where_it_stood():
    torch.rand(2, device="cuda")
    watch = RandomWatch()
    state, mark = through(random_state()), watch.mark()
    assert len(state["cuda"]) == torch.cuda.device_count()
    first = torch.rand(4, device="cuda").tolist()
    set_random_state(state)
    assert torch.rand(4, device="cuda").tolist() == first
    set_random_state(watch.state_at(mark))
    assert torch.rand(4, device="cuda").tolist() == first
