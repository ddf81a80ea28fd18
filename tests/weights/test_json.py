import json

import pytest
import torch
from torch import nn

from stoker.errors import BadFile
from stoker.weights import inspect, load, save


class Holder(nn.Module):
    def __init__(self, **tensors: torch.Tensor):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def refuse(word: str):
    raise AssertionError(f"{word} is no JSON")


def test_it_is_json_that_a_person_can_read(tmp_path):
    model = Holder(
        w=torch.tensor([[1.5, -2.0], [0.25, float("nan")]]),
        ends=torch.tensor([float("inf"), -float("inf")], dtype=torch.float16),
        odd=torch.tensor([-0x3FFFFF], dtype=torch.int32).view(torch.float32),
        on=torch.tensor([True, False]),
        z=torch.tensor([1 + 2j]),
        n=torch.tensor(7),
    )
    path = save(model, tmp_path / "m", format="json")
    found = json.loads(path.read_text(), parse_constant=refuse)
    assert {name: each["values"] for name, each in found["tensors"].items()} == {
        "w": [[1.5, -2.0], [0.25, "NaN"]],
        "ends": ["Infinity", "-Infinity"],
        "odd": ["NaN:0xffc00001"],
        "on": [True, False],
        "z": [[1.0, 2.0]],
        "n": 7,
    }
    assert any(line.startswith('"w": {"dtype": "float32", "shape": [2, 2], ') for line in path.read_text().splitlines())


def test_large_tensors_are_written_in_pieces(tmp_path):
    given = torch.randn(3, 200, 200)
    path = save(Holder(t=given), tmp_path / "m", format="json")
    assert torch.equal(load(Holder(t=torch.zeros(3, 200, 200)), path).t, given)


def test_a_file_laid_out_anew_loads_and_one_written_by_hand_does_too(tmp_path):
    model = nn.Linear(2, 1)
    path = save(model, tmp_path / "m", format="json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert torch.equal(load(nn.Linear(2, 1), path).weight, model.weight)
    path.write_text("""
        {"tensors": {"weight": {"dtype": "float32", "shape": [1, 2], "values": [[0.1, 2]]},
                     "bias": {"dtype": "int64", "shape": [1], "values": [3]}}}
    """)
    restored = load(nn.Linear(2, 1), path)
    assert restored.weight.tolist() == torch.tensor([[0.1, 2]]).tolist()
    assert restored.bias.item() == 3
    assert inspect(path).precision is None


def test_a_number_changed_by_hand_is_noticed(tmp_path):
    path = save(Holder(t=torch.tensor([0.5])), tmp_path / "m", format="json")
    path.write_text(path.read_text().replace("[0.5]", "[0.75]"))
    with pytest.raises(BadFile, match=r"the numbers of 't' are not those that were written"):
        load(Holder(t=torch.zeros(1)), path)


@pytest.mark.parametrize(("dtype", "shape", "values", "text"), [
    ("float32", [2], [1.0], r"not nested as its shape \[2\] says"),
    ("float32", [2], [[1.0, 2.0]], r"not nested"),
    ("float32", [2], [1.0, [2.0]], r"\[2.0\] is no number"),
    ("float32", [2], 1.0, r"not nested"),
    ("float32", [2], [1.0, None], r"None is no number"),
    ("float32", [2], [1.0, True], r"True is no number"),
    ("float32", [2], [1.0, "two"], r"'two' is no number"),
    ("float32", [2], [1.0, "NaN:0x3f800000"], r"is not the bits of a NaN"),
    ("float32", [2], [1.0, "NaN:0xzzzzzzzz"], r"don't fit its dtype"),
    ("float32", [2], [1.0, 1e300], r"a number is too large"),
    ("float32", [2], [1.0, 10**400], r"don't fit its dtype"),
    ("float16", [2], [1.0, 1e6], r"a number is too large"),
    ("uint8", [2], [1, 256], r"256 is too large"),
    ("uint8", [2], [1, -1], r"-1 is too large"),
    ("int64", [2], [1, 2**63], r"too large"),
    ("int64", [2], [1, 1.0], r"1.0 is no int"),
    ("int64", [2], [1, None], r"None is no int"),
    ("bool", [2], [True, 1], r"1 is no bool"),
    ("complex64", [2], [1.0, 2.0], r"not nested"),
    ("float3", [2], [1.0, 2.0], r"dtype 'float3'"),
    ("float32", [-2], [1.0, 2.0], r"not negative"),
])  # fmt: skip
def test_values_that_are_not_what_they_should_be_are_refused(tmp_path, dtype, shape, values, text):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"tensors": {"t": {"dtype": dtype, "shape": shape, "values": values}}}))
    with pytest.raises(BadFile, match=text):
        load(Holder(t=torch.zeros(2, dtype=torch.complex64)), path)


@pytest.mark.parametrize(("content", "text"), [
    ('{"tensors": {}, "tensors": {}}', r"'tensors' comes twice"),
    ('{"tensors": {"t": {"dtype": "float32", "shape": [1], "values": [NaN]}}}', r"NaN is no JSON; write it as a"),
    ('{"tensors": ' + "[" * 100_000, r"not the JSON"),
    ('{"tensors": []}', r"list of tensors is \[\]"),
    ('{"tensors": {"t": 3}}', r"the tensor 't' is 3; expected dtype, shape and values"),
    ('{"tensors": {}, "stoked": {}}', r"is JSON, but no weights"),
    ('{"tensors": {}, "stoker": {}}', r"noted in it is damaged"),
    ('{"tensors": {}, "metadata": []}', r"no mapping of strings"),
    ('{"tensors": {"t": {"dtype": "int64", "shape": [1], "values": [' + "1" * 5000 + "]}}}", r"not the JSON"),
])  # fmt: skip
def test_text_that_is_no_weights_is_refused(tmp_path, content, text):
    path = tmp_path / "m.json"
    path.write_text(content)
    with pytest.raises(BadFile, match=text):
        load(Holder(t=torch.zeros(1)), path)
