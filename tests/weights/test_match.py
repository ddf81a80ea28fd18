import pytest
import torch
from torch import nn

from stoker.errors import NoSuchParameter, StateMismatch
from stoker.weights import load, save


def net(**parts: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(parts)


def test_everything_that_does_not_fit_is_listed_with_near_misses(tmp_path):
    path = save(net(body=nn.Linear(3, 4), classifier=nn.Linear(4, 2), old=nn.Linear(1, 1)), tmp_path / "m")
    blank = net(body=nn.Linear(3, 5), clasifier=nn.Linear(4, 2))
    with pytest.raises(StateMismatch) as caught:
        load(blank, path)
    text = str(caught.value)
    assert "m.safetensors doesn't fit the model" in text
    assert "not in the file: 'clasifier.weight' (did you mean 'classifier.weight'" in text
    assert "not in the model: 'classifier.weight', 'classifier.bias', 'old.weight', 'old.bias'" in text
    assert "of another shape: 'body.weight' is [4, 3] there, [5, 3] in the model" in text
    assert "strict=False" in text


def test_a_prefix_that_explains_it_all_is_named(tmp_path):
    given = {f"module.{name}": tensor for name, tensor in nn.Linear(2, 2).state_dict().items()}
    with pytest.raises(StateMismatch, match=r"the names fit with rename=\{'module': ''\}"):
        load(nn.Linear(2, 2), given)
    load(nn.Linear(2, 2), given, rename={"module": ""})


def test_without_strict_what_is_missing_or_unexpected_is_left_out_but_shapes_are_not():
    linear = nn.Linear(2, 2)
    before = linear.bias.clone()
    load(linear, {"weight": torch.ones(2, 2), "more": torch.ones(1)}, strict=False)
    assert linear.weight.sum() == 4
    assert torch.equal(linear.bias, before)
    with pytest.raises(StateMismatch) as caught:
        load(linear, {"weight": torch.ones(3), "more": torch.ones(1)}, strict=False)
    assert str(caught.value).splitlines() == [  # and no word of what is allowed
        "the mapping doesn't fit the model",
        "  of another shape: 'weight' is [3] there, [2, 2] in the model",
        "  strict=False allows names that are missing or unexpected, but no other shapes; only= loads a part",
    ]
    with pytest.raises(
        StateMismatch, match=r"(?s)not in the file: 'weight'.*so there is nothing to load; rename= maps"
    ):
        load(linear, {"wait": torch.ones(3)}, strict=False)


def test_the_advice_says_what_strict_does():
    with pytest.raises(StateMismatch, match="strict=False passes over names that are missing or unexpected"):
        load(nn.Linear(2, 2), {"weight": torch.ones(2, 2)})


def test_the_chosen_part_has_to_be_there_and_the_rest_is_no_concern(tmp_path):
    path = save(net(body=nn.Linear(3, 4), head=nn.Linear(4, 2)), tmp_path / "m")
    blank = net(body=nn.Linear(3, 4), head=nn.Linear(4, 10), extra=nn.Linear(1, 1))
    load(blank, path, only="body")
    with pytest.raises(StateMismatch, match=r"'head.weight' is \[2, 4\] there, \[10, 4\]"):
        load(blank, path, only=["body", "head"])
    with pytest.raises(StateMismatch, match=r"not in the file: 'extra.weight', 'extra.bias'"):
        load(blank, path, only="extra")
    with pytest.raises(NoSuchParameter, match=r"'bodi' chooses no parameter; did you mean 'body'"):
        load(blank, path, only="bodi")
    with pytest.raises(NoSuchParameter, match=r"no part of this model"):
        load(blank, path, only=nn.Linear(1, 1))


def test_long_lists_are_cut():
    many = nn.ModuleList([nn.Linear(1, 1) for _ in range(40)])
    with pytest.raises(StateMismatch, match=r"and 60 more"):
        load(many, {"x": torch.ones(1)})
