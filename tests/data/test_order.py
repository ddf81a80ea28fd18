import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.data._order import ORDER, SAMPLE, key, own_random_numbers, permutation, seed_everything, seed_of
from stoker.errors import WrongType

whole = st.integers(-(2**63), 2**64 - 1)


def drawn():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]


def states():
    kind, words, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), (kind, words.tolist(), rest), random.getstate()


@given(whole, whole)
def test_keys_are_64_bit_and_depend_on_every_argument_and_its_place(a, b):
    found = key(ORDER, a, b)
    assert 0 <= found < 2**64
    assert found == key(ORDER, a, b)
    assert found != key(SAMPLE, a, b)
    assert found != key(ORDER, a + 1, b)
    assert found != key(ORDER, a, b + 1)
    assert a == b or found != key(ORDER, b, a)


def test_keys_of_neighbours_are_spread():
    low = {key(SAMPLE, 0, epoch, number) & 0xFFFFFFFF for epoch in range(10) for number in range(1000)}
    assert len(low) > 9995  # torch and numpy use 32 bits; of 10 000 random ones, a hundredth of a pair collides


def test_a_key_never_changes():
    # a checkpoint stores a position, and the data order of a resumed run is made anew from these
    assert [key(ORDER, 0, 0), key(SAMPLE, 7, 3, 11)] == [6791897765849424158, 9536551022127088844]


@settings(max_examples=50)
@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 1000))
def test_permutations_are_pure(size, seed, epoch):
    torch.rand(1)
    found = permutation(size, seed, epoch=epoch)
    assert sorted(found.tolist()) == list(range(size))
    assert torch.equal(found, permutation(size, seed, epoch=epoch))


def test_permutations_differ_by_seed_and_epoch():
    orders = {tuple(permutation(50, seed, epoch=epoch).tolist()) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_the_default_device_does_not_change_the_order():
    plain = permutation(20, 3)
    with torch.device("meta"):
        assert permutation(20, 3, epoch=0).device.type == "cpu"
        assert permutation(20, 3).tolist() == plain.tolist()


def test_seeding_reaches_all_three_generators():
    with own_random_numbers():
        seed_everything(2**63 + 5)
        first = drawn()
        seed_everything(2**63 + 5)
        assert drawn() == first
        seed_everything(2**63 + 6)
        assert all(a != b for a, b in zip(drawn(), first, strict=True))


def test_random_numbers_are_given_back_also_when_an_exception_flies():
    before = states()
    with own_random_numbers():
        drawn()
        seed_everything(1)
    assert states() == before

    def fails():
        with own_random_numbers():
            seed_everything(1)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert states() == before


@pytest.mark.parametrize("wrong", [True, False, 1.5, "7", None])
def test_a_seed_is_a_whole_number(wrong):
    with pytest.raises(WrongType, match=r"shuffle takes a seed, which is a whole number, as in shuffle=0; got "):
        seed_of("shuffle", wrong)


def test_whole_numbers_of_other_libraries_are_seeds():
    assert [seed_of("seed", each) for each in (3, np.int64(3), torch.tensor(3))] == [3, 3, 3]
