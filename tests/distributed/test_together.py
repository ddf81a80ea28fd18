"""Only rank 0, and all at once."""

import pytest

from stoker.distributed import barrier, rank_zero

from .processes import launched


@rank_zero
def written(text):
    """Writes."""
    return f"written: {text}"


def use_them(rank, size):
    barrier()  # joins
    found = written("x")
    barrier()
    return found


@pytest.mark.parametrize("size", [1, 2])
def test_rank_zero_and_barrier(size):
    assert launched(use_them, size) == ["written: x"] + [None] * (size - 1)


def test_the_function_keeps_its_name():
    assert written.__name__ == "written" and written.__doc__ == "Writes."
    barrier()
