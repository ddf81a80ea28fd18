from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stoker import StateMismatch
from stoker.loop._replicas import bits_of, check_replicas


def fit(model, others, *, sharded=False):
    """A fit whose other ranks have these sums; None: it must not ask."""

    class Split(SimpleNamespace):
        def gathered(self, value):
            assert others is not None
            return [value, *(value if each is None else each for each in others)]

    size = 1 if others is None else len(others) + 1
    return SimpleNamespace(model=model, split=Split(size=size), sharded=sharded, ctx=SimpleNamespace(epoch=3))


def test_one_process_and_shards_ask_nobody():
    check_replicas(fit(nn.Linear(1, 1), None))
    check_replicas(fit(nn.Linear(1, 1), [[0, 0]], sharded=True))
    check_replicas(fit(nn.ReLU(), [[0]]))  # nothing to compare


def test_the_rank_that_differs_is_named():
    check_replicas(fit(nn.Linear(1, 1), [None, None]))
    with pytest.raises(StateMismatch, match=r"rank 2 has other weights than rank 0 .* epoch 3: weight and 1 more\. "):
        check_replicas(fit(nn.Linear(1, 1), [None, [1, 1]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_one_bit_is_seen_in_every_dtype(dtype):
    one = torch.ones(3, 2).to(dtype).T
    other = one.clone()
    other[1, 2] = 0
    assert bits_of(one) == bits_of(one.clone()) != bits_of(other)


def test_numbers_that_are_none_and_complex_ones_are_compared_as_well():
    assert bits_of(torch.tensor([float("nan")])) == bits_of(torch.tensor([float("nan")]))
    assert bits_of(torch.tensor([1 + 2j])) != bits_of(torch.tensor([1 - 2j]))
