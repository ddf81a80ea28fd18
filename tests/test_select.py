"""Choosing parameters: what chooses nothing, and wrappers that leave no trace."""

import pytest
import torch
from torch import nn

import stoker


@pytest.mark.parametrize("nothing", [[], (), ["0", []]], ids=str)
def test_an_empty_list_chooses_nothing_and_says_so(nothing):
    model = nn.Sequential(nn.Linear(2, 1))
    for choose in (stoker.select, stoker.freeze):
        with pytest.raises(stoker.NoSuchParameter, match=r"an empty list chooses no parameter; '\*' chooses all"):
            choose(model, nothing)
    assert all(p.requires_grad for p in model.parameters())
    grads = stoker.backward(model(torch.ones(1, 2)).sum(), model)
    with pytest.raises(stoker.NoSuchParameter, match="an empty list chooses no parameter"):
        grads.take(nothing)
    assert len(grads) == 2


def test_data_parallel_is_no_part_of_a_name():
    model = nn.ModuleDict({"body": nn.DataParallel(nn.Linear(2, 1)), "module": nn.Linear(1, 1)})
    assert list(stoker.select(model, "*")) == ["body.weight", "body.bias", "module.weight", "module.bias"]
