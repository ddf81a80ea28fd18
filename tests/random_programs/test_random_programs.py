"""Random fits give the same bits captured and eagerly, resumed and whole, and with less memory; or the same errors.

Outside of CI the programs are new in every run. A test that fails prints the smallest program that fails, as a script.
"""

import os
import time

import pytest

from tests.random_programs import check_seed

pytestmark = pytest.mark.cuda

FAST, LONG, AT_ONCE = 24, 400, 4  # programs, and how many are one test


def seeds(count, first):
    """Seeds in groups: the same ones in CI; elsewhere new ones, or those from RANDOM_PROGRAMS on."""
    given = os.environ.get("RANDOM_PROGRAMS")
    start = int(given) if given else first if os.environ.get("CI") else time.time_ns() // 1000 % 10**9
    return [range(at, at + AT_ONCE) for at in range(start, start + count, AT_ONCE)]


@pytest.mark.parametrize("place", range(FAST // AT_ONCE))
def test_a_random_program_gives_the_same_bits_in_every_way(place):
    for seed in seeds(FAST, 0)[place]:
        check_seed(seed)


@pytest.mark.soak
@pytest.mark.parametrize("place", range(LONG // AT_ONCE))
def test_many_random_programs_give_the_same_bits_in_every_way(place):
    for seed in seeds(LONG, 10_000)[place]:
        check_seed(seed)
