"""What `load` does to a model: casts, tied tensors, parts, other names, and errors that change nothing."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from stoker.errors import BadFile, InvalidArgument, NoSuchParameter, StateMismatch, WrongType
from stoker.weights import load, save
from tests.weights.models import DTYPES, FORMATS, Holder


def make(**kwargs) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4, **kwargs), nn.BatchNorm1d(4, **kwargs), nn.Linear(4, 2, **kwargs))


def parts(**modules: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(modules)


def equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(one, other.to(one.dtype)) for one, other in pairs)


def test_parameters_are_filled_in_place_and_stay_the_same_objects(tmp_path):
    given, blank = make(), make()
    given(torch.randn(8, 3))  # which changes the buffers
    blank[0].weight.requires_grad_(False)
    parameters = list(blank.parameters())
    assert load(blank, save(given, tmp_path / "m")) is blank
    assert all(one is other for one, other in zip(blank.parameters(), parameters, strict=True))
    assert [parameter.requires_grad for parameter in blank.parameters()] == [False, *[True] * 5]
    assert all(parameter.is_leaf and parameter.grad is None for parameter in blank.parameters())
    assert equal(given, blank) and blank[1].num_batches_tracked.item() == 1


# Casts


def load_as(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """The value in another dtype, or None if `load` says that it does not fit."""
    try:
        return load(Holder(t=torch.zeros(value.shape).to(dtype)), {"t": value}).t
    except StateMismatch:
        return None


INTEGERS = [each for each in DTYPES if not each.is_floating_point and not each.is_complex and each != torch.bool]
EDGES = [
    sign * 2**power + off for power in (7, 8, 15, 16, 31, 32, 53, 63, 64) for off in (-1, 0, 1) for sign in (1, -1)
]


@settings(max_examples=100, deadline=None)
@given(
    value=st.sampled_from([0, 1, -1, *EDGES]) | st.integers(-(2**63), 2**64),
    to=st.sampled_from(INTEGERS),
    data=st.data(),
)
def test_an_integer_loads_exactly_if_the_dtype_can_hold_it(value, to, data):
    sources = [dtype for dtype in INTEGERS if torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max]
    if sources:
        loaded = load_as(torch.tensor([value], dtype=data.draw(st.sampled_from(sources))), to)
        fits = torch.iinfo(to).min <= value <= torch.iinfo(to).max
        assert (loaded is not None and loaded.tolist() == [value]) if fits else loaded is None


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_an_integer_loads_into_floats_only_if_exact(to):
    for value in (each for each in (0, 1, *EDGES) if -(2**63) <= each < 2**64):
        given = torch.tensor([value], dtype=torch.uint64 if value >= 2**63 else torch.int64)
        expected = given.to(to).real.double().item()
        exact = math.isfinite(expected) and int(expected) == value
        assert (load_as(given, to) is not None) == exact, value


@pytest.mark.parametrize(("value", "to", "fits"), [
    (2.0, torch.int8, True), (2.5, torch.int64, False), (float("nan"), torch.int64, False),
    (float("inf"), torch.int32, False), (300.0, torch.uint8, False), (-1.0, torch.uint8, False),
    (2.0**63, torch.int64, False), (2.0**64, torch.uint64, False), (-(2.0**63), torch.int64, True),
    (1.0, torch.bool, True), (0.5, torch.bool, False), (1e6, torch.float16, False), (65519.0, torch.float16, True),
    (1e-30, torch.float16, True), (1e39, torch.float32, False), (float("inf"), torch.float16, True),
    (float("nan"), torch.float16, True), (1e30, torch.float8_e4m3fn, False), (448.0, torch.float8_e4m3fn, True),
    (-3.0, torch.float8_e8m0fnu, False), (4.0, torch.float8_e8m0fnu, True), (float("nan"), torch.float8_e8m0fnu, True),
    (0.1, torch.complex64, True),
])  # fmt: skip
def test_a_float_is_rounded_to_other_floats_and_exact_otherwise(value, to, fits):
    assert (load_as(torch.tensor([1.0, value], dtype=torch.float64), to) is not None) == fits


def test_ones_load_between_every_pair_of_dtypes():
    for one in DTYPES:
        for other in DTYPES:
            loaded = load_as(torch.ones(2).to(one), other)
            assert (loaded is None) == (one.is_complex and not other.is_complex), (one, other)


def test_a_number_that_does_not_fit_is_named_and_nothing_changes(tmp_path):
    path = save(Holder(first=torch.ones(1), count=torch.tensor([300])), tmp_path / "m")
    for dtype, text in [
        (torch.uint8, r"'count' is int64, 'count' in the model is uint8, and 300 cannot be represented in uint8"),
        (torch.bool, r"300 cannot be represented in bool"),
    ]:
        blank = Holder(first=torch.zeros(1), count=torch.zeros(1, dtype=dtype))
        with pytest.raises(StateMismatch, match=text):
            load(blank, path)
        assert blank.first.item() == 0
    with pytest.raises(StateMismatch, match=r"1000000.0 is too large for float16"):
        load(Holder(t=torch.zeros(1, dtype=torch.float16)), {"t": torch.tensor([1e6])})
    with pytest.raises(StateMismatch, match=r"complex numbers cannot be cast to real ones"):
        load(Holder(t=torch.zeros(1)), {"t": torch.tensor([1j])})


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_changes_if_the_last_tensor_is_damaged(tmp_path, format):
    given, blank = make(), make()
    before = {name: tensor.clone() for name, tensor in blank.state_dict().items()}
    path = save(given, tmp_path / "m", format=format)
    content = bytearray(path.read_bytes())
    if format == "json":
        place = content.rindex(b".") + 1  # the first digit of the last number
        content[place] = ord("7") if content[place] != ord("7") else ord("8")
    else:
        content[{"safetensors": -9, "msgpack": -1}[format]] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadFile, match=r"is damaged: the checksum of '\S+' does not match"):
        load(blank, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in blank.state_dict().items())


# Tied tensors, mappings, models that cannot be filled


def test_tied_weights_load_into_tied_and_untied_models(tmp_path):
    def pair(tied: bool) -> nn.Sequential:
        made = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        if tied:
            made[1].weight = made[0].weight
        return made

    tied = pair(True)
    path = save(tied, tmp_path / "tied")
    again = load(pair(True), path)
    assert again[0].weight is again[1].weight
    assert torch.equal(again[1].weight, tied[0].weight)
    apart = load(pair(False), path)
    assert apart[0].weight is not apart[1].weight
    assert torch.equal(apart[1].weight, tied[0].weight)
    assert torch.equal(load(pair(True), save(apart, tmp_path / "equal"))[0].weight, tied[0].weight)
    assert torch.equal(load(pair(True), {"1.weight": tied[0].weight})[0].weight, tied[0].weight)
    other = pair(False)
    with pytest.raises(StateMismatch, match=r"'0.weight' and '1.weight' differ, but are one tied tensor in the model"):
        load(pair(True), save(other, tmp_path / "other"))
    chosen = load(pair(True), tmp_path / "other.safetensors", rename={"1.weight": None})
    assert torch.equal(chosen[1].weight, other[0].weight)


def test_the_source_may_be_a_mapping_of_tensors():
    given, blank = make(), make()
    assert equal(load(blank, given.state_dict()), given)
    with pytest.raises(WrongType, match=r"expected tensors by name; got 'epoch': a int"):
        load(make(), {"epoch": 3})
    with pytest.raises(WrongType, match=r"expected a path, or a mapping of tensors; got int"):
        load(make(), 3)


def test_a_model_can_be_filled_with_its_own_tensors_swapped():
    pair = parts(a=nn.Linear(1, 1, bias=False), b=nn.Linear(1, 1, bias=False))
    before = (pair["a"].weight.item(), pair["b"].weight.item())
    load(pair, pair.state_dict(), rename={"a": "b", "b": "a"})
    assert (pair["b"].weight.item(), pair["a"].weight.item()) == before


def test_a_model_that_cannot_be_filled_is_refused(tmp_path):
    path = save(nn.Linear(2, 2), tmp_path / "m")
    with pytest.raises(InvalidArgument, match=r"'weight' is on the meta device"):
        load(nn.Linear(2, 2, device="meta"), path)
    with pytest.raises(InvalidArgument, match=r"'weight' has no shape yet"):
        load(nn.LazyLinear(2), path)
    with pytest.raises(InvalidArgument, match=r"'t' is an expanded tensor"):
        load(Holder(t=torch.zeros(1).expand(3)), path)


# Names that differ


def test_everything_that_does_not_match_is_listed_with_similar_names(tmp_path):
    path = save(parts(body=nn.Linear(3, 4), classifier=nn.Linear(4, 2), old=nn.Linear(1, 1)), tmp_path / "m")
    with pytest.raises(StateMismatch) as caught:
        load(parts(body=nn.Linear(3, 5), clasifier=nn.Linear(4, 2)), path)
    text = str(caught.value)
    assert "m.safetensors does not match the model" in text
    assert "not in the file: 'clasifier.weight' (did you mean 'classifier.weight'" in text
    assert "not in the model: 'classifier.weight', 'classifier.bias', 'old.weight', 'old.bias'" in text
    assert "different shape: 'body.weight' is [4, 3] in the file, [5, 3] in the model" in text
    assert "strict=False ignores missing and unexpected names" in text


def test_a_prefix_of_all_names_is_suggested():
    given = {f"module.{name}": tensor for name, tensor in nn.Linear(2, 2).state_dict().items()}
    with pytest.raises(StateMismatch, match=r"the names match with rename=\{'module': ''\}"):
        load(nn.Linear(2, 2), given)
    load(nn.Linear(2, 2), given, rename={"module": ""})


def test_strict_false_allows_missing_and_unexpected_names_but_not_other_shapes():
    linear = nn.Linear(2, 2)
    before = linear.bias.clone()
    load(linear, {"weight": torch.ones(2, 2), "more": torch.ones(1)}, strict=False)
    assert linear.weight.sum() == 4
    assert torch.equal(linear.bias, before)
    with pytest.raises(StateMismatch) as caught:
        load(linear, {"weight": torch.ones(3), "more": torch.ones(1)}, strict=False)
    assert str(caught.value).splitlines() == [  # without the names, which are allowed
        "the mapping does not match the model",
        "  different shape: 'weight' is [3] in the file, [2, 2] in the model",
        "  strict=False allows missing and unexpected names, but not other shapes; only= loads a part",
    ]
    with pytest.raises(StateMismatch, match=r"(?s)not in the file: 'weight'.*there is nothing to load; rename= maps"):
        load(linear, {"wait": torch.ones(3)}, strict=False)


# Parts of a model


def test_only_selects_a_part_by_name_glob_module_or_parameter(tmp_path):
    given = make()
    for tensor in given.state_dict().values():
        tensor.fill_(5)
    path = save(given, tmp_path / "m")

    def loaded(select) -> list[str]:
        blank = make()
        load(blank, path, only=select(blank))
        return [name for name, tensor in blank.state_dict().items() if bool((tensor == 5).all())]

    norm = ["1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert loaded(lambda blank: "1") == loaded(lambda blank: blank[1]) == norm
    assert loaded(lambda blank: "*.weight") == ["0.weight", "1.weight", "2.weight"]
    assert loaded(lambda blank: [blank[2].bias, "1.running_mean"]) == ["1.running_mean", "2.bias"]


def test_the_selected_part_must_be_in_the_file_and_the_rest_is_ignored(tmp_path):
    path = save(parts(body=nn.Linear(3, 4), head=nn.Linear(4, 2)), tmp_path / "m")
    blank = parts(body=nn.Linear(3, 4), head=nn.Linear(4, 10), extra=nn.Linear(1, 1))
    load(blank, path, only="body")
    with pytest.raises(StateMismatch, match=r"'head.weight' is \[2, 4\] in the file, \[10, 4\]"):
        load(blank, path, only=["body", "head"])
    with pytest.raises(StateMismatch, match=r"not in the file: 'extra.weight', 'extra.bias'"):
        load(blank, path, only="extra")
    with pytest.raises(NoSuchParameter, match=r"'bodi' .*; did you mean 'body'"):
        load(blank, path, only="bodi")
    with pytest.raises(NoSuchParameter, match=r"the module Linear"):
        load(blank, path, only=nn.Linear(1, 1))


# Renaming


@pytest.mark.parametrize(("rules", "expected"), [
    ({"a": "b"}, ["b.0.w", "b.0.v", "ab.w"]),
    ({"a": ""}, ["0.w", "0.v", "ab.w"]),
    ({"*.w": "*.weight"}, ["a.0.weight", "a.0.v", "ab.weight"]),
    ({"a.*.w": "x.*.y"}, ["x.0.y", "a.0.v", "ab.w"]),
    ({"a.0.w": "first", "a": "rest"}, ["first", "rest.0.v", "ab.w"]),
    ({"ab": None}, ["a.0.w", "a.0.v"]),
    (str.upper, ["A.0.W", "A.0.V", "AB.W"]),
    (lambda name: name if name.startswith("ab") else None, ["ab.w"]),
])  # fmt: skip
def test_names_are_changed_by_mapping_glob_or_function(rules, expected):
    blank = Holder(other=torch.zeros(1))
    with pytest.raises(StateMismatch) as caught:  # which lists the new names
        load(blank, dict.fromkeys(["a.0.w", "a.0.v", "ab.w"], torch.zeros(1)), rename=rules)
    assert f"not in the model: {', '.join(map(repr, expected))}\n" in str(caught.value)


@pytest.mark.parametrize(("rules", "error", "text"), [
    ({"bodi": "x"}, NoSuchParameter, r"rename: 'bodi' matches no name in the file; did you mean 'body'"),
    (lambda name: "x", InvalidArgument, r"gives both 'body.weight' and 'body.bias' the name 'x'"),
    ({"body.*": "*.x.*"}, InvalidArgument, r"'\*\.x\.\*' has more '\*' than 'body\.\*'"),
    (3, WrongType, r"rename is a mapping of names or globs, or a function; got int"),
    ({"body": 3}, WrongType, r"rename gives 'body.weight' the name 3; expected a string"),
])  # fmt: skip
def test_wrong_rules_are_explained(rules, error, text):
    with pytest.raises(error, match=text):
        load(parts(body=nn.Linear(1, 1)), parts(body=nn.Linear(1, 1)).state_dict(), rename=rules)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_model_on_a_gpu_is_saved_and_filled_there(tmp_path):
    given, blank = make(device="cuda"), make(device="cuda", dtype=torch.bfloat16)
    path = save(given, tmp_path / "m", precision="half")
    load(blank, path)
    assert blank[0].weight.is_cuda
    assert torch.equal(blank[0].weight, given[0].weight.half().bfloat16())
