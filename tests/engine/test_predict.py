"""Predictions: in the data's order, in the model's structure, on the CPU, without dropout."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

import stoker
from tests.engine.fits import Net, learner, line, linear, samples


@pytest.fixture(scope="module")
def fitted():
    return learner().fit(samples(), epochs=1, batch_size=16, show=False)


def test_in_order_on_the_cpu_and_without_dropout(fitted):
    x, y = samples()
    with torch.no_grad():
        exact = stoker.valid(fitted.model)(x)
    for source in ((x, y), x, (x,), {"x": x, "y": y}, {"x": x}, torch.utils.data.TensorDataset(x, y)):
        found = fitted.predict(source, batch_size=13)
        torch.testing.assert_close(found, exact)
        assert found.device.type == "cpu" and not found.requires_grad
    assert torch.equal(fitted.predict(x), fitted.predict(x))
    assert fitted.model.training


class Point(NamedTuple):
    mean: torch.Tensor
    parts: dict


def test_structures_are_kept():
    class Many(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return Point(
                y, {"pair": (y, [y + 1]), "total": y.sum(), "names": [f"{float(each):.3f}" for each in y.detach()]}
            )

    def loss(predictions, targets):
        return (predictions.mean - targets).square().mean()

    x, y = line(10)
    result = stoker.Learner(Many(3, 1), loss=loss, seed=0).fit((x, y), epochs=1, show=False)
    found = result.predict((x, y), batch_size=4)
    assert isinstance(found, Point) and found.mean.shape == (10, 1)
    assert isinstance(found.parts["pair"], tuple) and isinstance(found.parts["pair"][1], list)
    assert torch.equal(found.parts["pair"][1][0], found.mean + 1)
    assert found.parts["total"].shape == (3,)  # one for each batch: it has no samples to join
    assert found.parts["names"] == [f"{float(each):.3f}" for each in found.mean]


def test_several_inputs_with_and_without_a_target():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, a, b):
            return self.layer(a) + b

    x, y = line()
    result = stoker.Learner(Two(), loss=nn.MSELoss(), seed=0).fit((x, y, y), epochs=1, show=False)
    exact = result.model(x, y).detach()
    for source in ((x, y, y), (x, y), {"b": y, "a": x}, {"a": x, "b": y, "target": y}):
        torch.testing.assert_close(result.predict(source), exact)


def test_a_predict_step_is_asked_instead():
    class Own(nn.Linear):
        def predict_step(self, batch):
            assert not self.training
            return batch[0].sum(1)

    x, y = line()
    result = linear(model=Own(3, 1)).fit((x, y), epochs=1, show=False)
    torch.testing.assert_close(result.predict((x, y)), x.sum(1))


def test_a_model_with_its_own_train_step_predicts_by_its_forward():
    class Own(Net):
        def train_step(self, batch):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

    result = learner(Own, loss=None).fit(samples(), epochs=1, show=False)
    assert result.predict(samples()).shape == (150, 4)


def test_nothing_to_predict():
    class Nothing(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    result = linear().fit(line(), epochs=1, show=False)
    with pytest.raises(stoker.BadData, match="there is nothing to predict: the data gave no batches"):
        result.predict(torch.utils.data.DataLoader(Nothing()))
