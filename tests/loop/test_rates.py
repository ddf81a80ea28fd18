"""Learning rates as tensors: the same ones as long as there are as many."""

import torch

from stoker.loop._rates import Rates


def test_another_rate_is_written_into_the_same_tensor():
    rates = Rates(torch.device("cpu"))
    assert rates.all() == [] and rates.like([]) is None
    rates.set(0.1)
    held = rates.tensors
    rates.set(0.2)
    assert rates.tensors is held and held.item() == 0.2


def test_several_rates_stay_by_their_selectors():
    rates = Rates(torch.device("cpu"))
    rates.set({"a": 0.1, "b": 0.2})
    held = dict(rates.tensors)
    rates.set({"a": 0.3, "b": 0.2})
    assert [rates.tensors[key] is held[key] for key in held] == [True, True]
    assert [rate.item() for rate in rates.all()] == [0.3, 0.2]
    assert rates.like([1, 2]) == {"a": 1, "b": 2}
    rates.set(0.5)
    assert rates.tensors.item() == 0.5
