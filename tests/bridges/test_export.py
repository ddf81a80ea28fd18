"""`stoker.export`: ONNX and torch.export files that give the model's predictions."""

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import stoker
from stoker.errors import InvalidArgument, MissingExtra, StateMismatch, WrongType


class TwoInputs(nn.Module):
    """Batch norm, dropout and two inputs, one of them integers."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def forward(self, numbers, words):
        hidden = self.body(numbers) + self.words(words).mean(1)
        return {"hidden": hidden, "best": hidden.argmax(1)}


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    data = torch.randn(32, 3), torch.randint(7, (32, 5)), torch.randint(4, (32,))
    loss = lambda output, target: nn.functional.cross_entropy(output["hidden"], target)  # noqa: E731
    return stoker.Learner(TwoInputs(), loss=loss, seed=0).fit(data, epochs=2, show=False)


def expected(fitted, numbers, words):
    with torch.no_grad():
        return fitted.model(numbers, words)


def test_an_onnx_file_gives_the_models_predictions_for_any_batch(fitted, tmp_path):
    training_before = fitted.model.training
    sample = torch.randn(1, 3), torch.randint(7, (1, 5))  # one row: the size of the batch is still free
    path = stoker.export(fitted.model, sample, tmp_path / "new" / "model.onnx")
    onnx.checker.check_model(onnx.load(path))
    session = onnxruntime.InferenceSession(path)
    assert [each.name for each in session.get_inputs()] == ["numbers", "words"]
    for rows in (1, 9):
        numbers, words = torch.randn(rows, 3), torch.randint(7, (rows, 5))
        hidden, best = session.run(None, {"numbers": numbers.numpy(), "words": words.numpy()})
        wanted = expected(fitted, numbers, words)
        torch.testing.assert_close(torch.from_numpy(hidden), wanted["hidden"], rtol=1e-4, atol=1e-5)
        assert best.tolist() == wanted["best"].tolist()
    assert [each.name for each in path.parent.iterdir()] == ["model.onnx"]
    assert fitted.model.training is training_before


def test_a_pt2_file_gives_the_models_predictions_for_any_batch(fitted, tmp_path):
    sample = {"words": torch.randint(7, (2, 5)), "numbers": torch.randn(2, 3)}
    path = stoker.export(fitted.model, sample, tmp_path / "model.pt2")
    numbers, words = torch.randn(6, 3), torch.randint(7, (6, 5))
    answer = torch.export.load(path).module()(words=words, numbers=numbers)
    torch.testing.assert_close(answer, expected(fitted, numbers, words))


class FixedSize(nn.Linear):
    def forward(self, input):
        return super().forward(input).reshape(2, -1)


class Branches(nn.Linear):
    def forward(self, input):
        return super().forward(input) if float(input.sum()) > 0 else input


class Noise(nn.Linear):
    def forward(self, input):
        return super().forward(input) + torch.randn_like(input[:, :1])


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        (FixedSize(3, 1), InvalidArgument, "FixedSize cannot be exported(.|\n)*dynamic_batch=False"),
        (Branches(3, 3), InvalidArgument, "Branches cannot be exported(.|\n)*control flow that depends on values"),
        (Noise(3, 1), StateMismatch, "differs from the model by .*Random numbers in forward are one cause"),
    ],
)
def test_models_that_do_not_export_are_errors_and_write_nothing(model, error, text, tmp_path):
    with pytest.raises(error, match=text):
        stoker.export(model, torch.randn(2, 3), tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_say_what_is_expected(fitted, tmp_path, monkeypatch):
    x = torch.randn(2, 3)
    with pytest.raises(WrongType, match="takes a module, got Fitted; pass fitted.model"):
        stoker.export(fitted, x, tmp_path / "model.onnx")
    with pytest.raises(InvalidArgument, match=r"ends in .onnx \(ONNX\) or .pt2"):
        stoker.export(nn.Linear(3, 1), x, tmp_path / "model.h5")
    with pytest.raises(InvalidArgument, match="the sample does not fit TwoInputs.forward.*missing a required argument"):
        stoker.export(fitted.model, x, tmp_path / "model.pt2")
    with pytest.raises(InvalidArgument, match=r"have \[2, 5\] rows; expected one batch"):
        stoker.export(fitted.model, (x, torch.zeros(5, 5, dtype=torch.long)), tmp_path / "model.pt2")
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(MissingExtra, match=r'pip install "stoker\[onnx\]"'):
        stoker.export(nn.Linear(3, 1), x, tmp_path / "model.onnx")
