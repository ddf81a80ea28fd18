"""Where a model keeps its tensors."""

import torch
from torch import nn

from stoker._select import named_parameters
from stoker.checkpoint._places import first_names, named_modules, spots


def model():
    shared = nn.Linear(2, 2, bias=False)
    made = nn.ModuleDict({"a": nn.Sequential(shared, nn.BatchNorm1d(2)), "b": shared, "c": nn.Linear(2, 2)})
    made["c"].weight = shared.weight
    return made


def test_modules_are_torchs_in_its_order():
    whole = model()
    assert list(named_modules(whole)) == list(whole.named_modules())


def test_a_wrapper_has_the_name_of_what_it_holds():
    inner = model()
    wrapped = nn.Sequential(nn.DataParallel(inner))
    names = [f"0.{name}" if name else "0" for name, _ in named_modules(inner)]
    assert [name for name, _ in named_modules(wrapped)] == ["", *names]
    assert [name for name, _ in named_modules(wrapped, wrappers=True)] == ["", "0", *names]


def test_every_place_once_with_the_name_of_its_first():
    found = spots(model(), "_parameters")
    assert [spot.name for spot in found] == ["a.0.weight", "a.1.weight", "a.1.bias", "c.weight", "c.bias"]
    assert {name: first for name, first in first_names(found).items() if name != first} == {"c.weight": "a.0.weight"}
    assert set(first_names(found).values()) == set(named_parameters(model()))


def test_empty_buffers_have_a_place_and_empty_parameters_none():
    norm = nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    assert spots(norm, "_parameters") == []
    assert [(spot.key, spot.tensor) for spot in spots(norm, "_buffers")] == [
        ("running_mean", None), ("running_var", None), ("num_batches_tracked", None)
    ]  # fmt: skip
    norm.running_mean = torch.zeros(2)
    assert [spot.tensor is None for spot in spots(norm, "_buffers")] == [False, True, True]
