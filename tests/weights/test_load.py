import pytest
import torch
from torch import nn

from stoker.errors import BadFile, InvalidArgument, StateMismatch, WrongType
from stoker.weights import load, save


def model(**kwargs) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4, **kwargs), nn.BatchNorm1d(4, **kwargs), nn.Linear(4, 2, **kwargs))


def equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(one, other.to(one.dtype)) for one, other in pairs)


def test_parameters_are_filled_in_place_and_keep_what_they_are(tmp_path):
    given, blank = model(), model()
    blank[0].weight.requires_grad_(False)
    parameters = list(blank.parameters())
    optimizer = torch.optim.SGD(blank.parameters(), lr=0.1)
    assert load(blank, save(given, tmp_path / "m")) is blank
    assert all(one is other for one, other in zip(blank.parameters(), parameters, strict=True))
    assert [parameter.requires_grad for parameter in blank.parameters()] == [False, *[True] * 5]
    assert optimizer.param_groups[0]["params"][0] is blank[0].weight
    assert all(parameter.is_leaf and parameter.grad is None for parameter in blank.parameters())
    assert equal(given, blank)


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_cast_to_the_dtype_of_the_model(tmp_path, stored, wanted):
    given, blank = model(dtype=stored), model(dtype=wanted)
    load(blank, save(given, tmp_path / "m"))
    assert blank[0].weight.dtype == wanted
    assert torch.equal(blank[0].weight, given[0].weight.to(wanted))


def test_buffers_come_back_too(tmp_path):
    given, blank = model(), model()
    given(torch.randn(8, 3))
    load(blank, save(given, tmp_path / "m", precision="half"))
    assert blank[1].num_batches_tracked.item() == 1
    assert blank[1].num_batches_tracked.dtype == torch.int64
    assert torch.allclose(blank[1].running_mean, given[1].running_mean, atol=1e-3)


class Counter(nn.Module):
    def __init__(self, count: torch.Tensor):
        super().__init__()
        self.register_buffer("first", torch.zeros(1))
        self.register_buffer("count", count)


def test_a_number_that_the_model_cannot_hold_is_an_error_and_changes_nothing(tmp_path):
    given = Counter(torch.tensor([300]))
    given.first.fill_(1)
    path = save(given, tmp_path / "m")
    for blank, text in [
        (
            Counter(torch.zeros(1, dtype=torch.uint8)),
            r"'count' is int64, 'count' in the model is uint8, and 300 is no uint8",
        ),
        (Counter(torch.zeros(1, dtype=torch.bfloat16)), None),
        (Counter(torch.zeros(1, dtype=torch.bool)), r"300 is no bool"),
    ]:
        if text is None:
            assert load(blank, path).count.item() == 300
            continue
        with pytest.raises(StateMismatch, match=text):
            load(blank, path)
        assert blank.first.item() == 0
    huge = save(Counter(torch.tensor([1e6])), tmp_path / "huge")
    with pytest.raises(StateMismatch, match=r"1000000.0 is too large for float16"):
        load(Counter(torch.zeros(1, dtype=torch.float16)), huge)


@pytest.mark.parametrize("format", ["safetensors", "msgpack", "json"])
def test_nothing_changes_when_the_last_tensor_is_damaged(tmp_path, format):
    given, blank = model(), model()
    before = {name: tensor.clone() for name, tensor in blank.state_dict().items()}
    path = save(given, tmp_path / "m", format=format)
    content = bytearray(path.read_bytes())
    if format == "json":
        place = content.rindex(b".") + 1  # the first digit of the last number
        content[place] = ord("7") if content[place] != ord("7") else ord("8")
    else:
        content[{"safetensors": -9, "msgpack": -1}[format]] ^= 1  # a count at the end of one, numbers of the other
    path.write_bytes(content)
    with pytest.raises(BadFile, match=r"is damaged"):
        load(blank, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in blank.state_dict().items())


def test_tied_weights_survive_and_are_understood_either_way(tmp_path):
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


def test_wrappers_leave_no_trace_in_the_names(tmp_path):
    given = model()
    compiled = torch.compile(given, backend="eager")
    path = save(compiled, tmp_path / "m")
    assert equal(load(model(), path), given)
    blank = model()
    load(torch.compile(blank, backend="eager"), path)
    assert equal(blank, given)


def test_part_of_a_model_is_chosen_by_name_glob_module_or_parameter(tmp_path):
    given = model()
    given[1].running_mean.fill_(5)
    path = save(given, tmp_path / "m")

    def loaded(select) -> list[str]:
        blank = model()
        before = {name: tensor.clone() for name, tensor in blank.state_dict().items()}
        with torch.no_grad():
            blank[1].weight.fill_(2)
            blank[1].bias.fill_(2)
        load(blank, path, only=select(blank))
        after = blank.state_dict()
        assert not torch.equal(after["0.weight"], before["0.weight"]) or not torch.equal(
            after["0.weight"], given[0].weight
        )
        return [name for name, tensor in given.state_dict().items() if torch.equal(tensor, after[name])]

    norm = ["1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert loaded(lambda blank: "1") == norm
    assert loaded(lambda blank: blank[1]) == norm
    assert "0.weight" in loaded(lambda blank: "*.weight")
    assert "0.bias" not in loaded(lambda blank: "*.weight")
    assert "2.bias" in loaded(lambda blank: [blank[2].bias, "1.running_mean"])
    assert "1.running_mean" in loaded(lambda blank: [blank[2].bias, "1.running_mean"])


def test_a_mapping_of_tensors_is_a_source_as_well():
    given, blank = model(), model()
    assert equal(load(blank, given.state_dict()), given)
    with pytest.raises(WrongType, match=r"expected tensors by name; got 'epoch': a int"):
        load(model(), {"epoch": 3})
    with pytest.raises(WrongType, match=r"expected a path, or a mapping of tensors; got int"):
        load(model(), 3)
    with pytest.raises(StateMismatch, match=r"the mapping doesn't fit the model\n  not in the file: '0.weight'"):
        load(model(), {"bias": torch.zeros(2)})


def test_a_model_can_be_filled_with_its_own_tensors_the_other_way_round():
    pair = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    before = (pair["a"].weight.item(), pair["b"].weight.item())
    load(pair, pair.state_dict(), rename={"a": "b", "b": "a"})
    assert (pair["b"].weight.item(), pair["a"].weight.item()) == before


def testnamed_models_models_in_one_file(tmp_path):
    models = {"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}
    path = save(models, tmp_path / "m")
    again = load({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}, path)
    assert torch.equal(again["two"].weight, models["two"].weight)


def test_what_cannot_be_filled_is_refused(tmp_path):
    path = save(nn.Linear(2, 2), tmp_path / "m")
    with pytest.raises(InvalidArgument, match=r"'weight' is on the meta device"):
        load(nn.Linear(2, 2, device="meta"), path)
    with pytest.raises(InvalidArgument, match=r"'weight' has no shape yet"):
        load(nn.LazyLinear(2), path)
    blank = Counter(torch.zeros(1).expand(3))
    with pytest.raises(InvalidArgument, match=r"'count' holds one number in many places"):
        load(blank, path)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_model_on_a_gpu_is_saved_and_filled_there(tmp_path):
    given, blank = model(device="cuda"), model(device="cuda", dtype=torch.bfloat16)
    path = save(given, tmp_path / "m", precision="half")
    load(blank, path)
    assert blank[0].weight.is_cuda
    assert torch.equal(blank[0].weight, given[0].weight.half().bfloat16())
