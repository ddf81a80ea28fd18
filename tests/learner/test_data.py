"""The data that fit accepts."""

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import stoker
from stoker import BadData, InvalidArgument, WrongType, data, metrics
from tests.learner.fits import copy_state, line, linear, same


class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)

    def forward(self, x):
        return super().forward(x)


def learner(**settings):
    return stoker.Learner(Net, **{"loss": nn.MSELoss(), "lr": 0.05, "seed": 0, **settings})


def sources():
    x, y = line()
    return {
        "tensors": (x, y),
        "arrays": (x.numpy(), y.numpy()),
        "mapping": {"x": x, "y": y},
        "target first": {"y": y, "x": x},
        "data set": TensorDataset(x, y),
        "list of pairs": [(numpy.asarray(a), numpy.asarray(b)) for a, b in zip(x, y, strict=True)],
        "list of mappings": [{"x": a, "y": b} for a, b in zip(x, y, strict=True)],
        "loader": data.Loader((x, y), batch_size=16, shuffle=0),
    }


@pytest.mark.parametrize("source", sources())
def test_the_same_data_in_any_container_give_the_same_bits(source):
    given = sources()[source]
    size = {} if source == "loader" else {"batch_size": 16}
    reference = learner().fit(line(), epochs=2, batch_size=16, show=False)
    result = learner().fit(given, epochs=2, show=False, **size)
    assert same(result.model, reference.model)
    assert result.history["train/loss"] == reference.history["train/loss"]


def test_the_columns_of_a_table_have_names():
    import pandas
    import polars

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, a, b):
            return self.layer(torch.stack([a, b], 1)).squeeze(1)

    x, y = line()
    columns = {"a": x[:, 0].numpy(), "b": x[:, 1].numpy(), "y": y[:, 0].numpy()}
    given = stoker.Learner(Table, loss=nn.MSELoss(), seed=0)
    reference = given.fit(columns, epochs=2, show=False).model
    for table in (pandas.DataFrame(columns), polars.DataFrame(columns)):
        assert same(
            given.fit(table, valid=0.1, epochs=2, keep="last", show=False).model,
            given.fit(columns, valid=0.1, epochs=2, keep="last", show=False).model,
        )
        assert same(given.fit(table, epochs=2, show=False).model, reference)


def test_a_dataloader_is_used_unchanged():
    def loop():
        torch.manual_seed(0)
        model, loader = Net(), DataLoader(TensorDataset(*line()), batch_size=16, shuffle=True)
        optimizer = stoker.optim.AdamW(fused=True).init(model)
        for _ in range(3):
            for x, y in loader:
                optimizer.step(stoker.backward(nn.functional.mse_loss(model(x), y), model), lr=0.05)
        return model

    loader = DataLoader(TensorDataset(*line()), batch_size=16, shuffle=True)
    assert same(learner().fit(loader, epochs=3, show=False).model, loop())


def test_models_may_have_several_inputs_and_structured_targets():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a, b):
            out = self.layer(a) + b
            return {"left": out[:, :1], "right": out[:, 1:]}

    def loss(predictions, targets):
        return sum(nn.functional.mse_loss(predictions[name], targets[name]) for name in ("left", "right"))

    x, y = line()
    model = stoker.Learner(Two, loss=loss, lr=0.05, seed=0)
    result = model.fit({"a": x, "b": y, "left": y, "right": -y}, epochs=2, show=False)
    assert result.history["train/loss"][1] < result.history["train/loss"][0]
    assert set(result.predict({"a": x, "b": y})) == {"left", "right"}


def test_sample_weights_count_in_loss_and_metrics():
    """A weight of 2 equals the sample twice, and a weight of 0 equals no sample."""
    x, y = line(8)
    weight = torch.tensor([2.0, 0, 1, 1, 2, 0, 0, 1])
    repeated = weight.long()
    twice = (x.repeat_interleave(repeated, 0), y.repeat_interleave(repeated, 0))
    given = learner(metrics=[metrics.MAE()])
    weighted = given.fit({"x": x, "y": y, "weight": weight}, epochs=3, batch_size=8, show=False)
    plain = given.fit(twice, epochs=3, batch_size=8, show=False)
    torch.testing.assert_close(weighted.model.weight, plain.model.weight, rtol=1e-5, atol=1e-6)
    for name in ("train/loss", "train/mae"):
        assert weighted.history[name] == pytest.approx(plain.history[name], rel=1e-4)


def test_a_fraction_is_held_out_by_the_seed_and_recorded():
    given = learner(seed=5)
    result = given.fit(line(), valid=0.25, epochs=1, show=False)
    train, valid = data.split(line(), [0.75, 0.25], seed=5)
    explicit = given.fit(train, valid=valid, epochs=1, show=False)
    assert same(result.model, explicit.model)
    assert result.history["valid/loss"] == explicit.history["valid/loss"]
    plan = result.record.events_of("begin")[0].extra["plan"]
    assert "0.25 of the data, 16 samples, held out for validation (seed 5)" in plan


def test_a_mapping_is_one_set_with_columns_or_several_sets():
    x, y = line()
    for train, valid in (((x, y), {"x": x, "y": y}), ({"x": x, "y": y}, {"x": x, "y": y})):
        assert "valid/loss" in learner().fit(train, valid=valid, epochs=1, show=False).history.columns
    several = {"a": (x, y), "b": TensorDataset(x, y), "c": {"x": x, "y": y}, "d": data.Loader((x, y), batch_size=9)}
    result = learner().fit((x, y), valid=several, epochs=1, show=False)
    assert {f"{name}/loss" for name in several} <= set(result.history.columns)


@pytest.mark.parametrize(
    ("valid", "error", "text"),
    [
        (0, InvalidArgument, "valid is data, or a fraction of the training data between 0 and 1; got 0"),
        (1.0, InvalidArgument, "a fraction of the training data between 0 and 1"),
        (True, InvalidArgument, "a fraction of the training data between 0 and 1"),
        (0.001, BadData, "part 2 of the split would be empty"),
        ({}, InvalidArgument, "valid is an empty mapping"),
        ({"train": line()}, InvalidArgument, "a validation set cannot be called 'train'"),
        ("data.csv", stoker.StokerError, "str"),
    ],
)
def test_wrong_validation_data_are_rejected(valid, error, text):
    with pytest.raises(error, match=text):
        learner().fit(line(), valid=valid, epochs=1, show=False)


@pytest.mark.parametrize(
    ("train", "error", "text"),
    [
        ((torch.zeros(0, 3), torch.zeros(0, 1)), BadData, "no samples"),
        ((torch.zeros(4, 3), torch.zeros(5, 1)), BadData, "4|5"),
        (None, WrongType, "None"),
        (torch.zeros(8, 3), BadData, "the batch has no target for the loss"),
        ({"z": torch.zeros(8, 3), "y": torch.zeros(8, 1)}, BadData, r"none of the batch's keys \('z', 'y'\)"),
    ],
)
def test_wrong_training_data_are_rejected_and_the_model_does_not_change(train, error, text):
    model = Net()
    before = copy_state(model)
    with pytest.raises(error, match=text):
        linear(model=model).fit(train, epochs=1, show=False)
    assert same(model, before)


def test_a_loader_cannot_be_split_and_has_its_own_batch_size():
    loader = data.Loader(line(), batch_size=8)
    with pytest.raises(InvalidArgument, match="valid=0.2 is a fraction, but a Loader cannot be split"):
        learner().fit(loader, valid=0.2, epochs=1, show=False)
    with pytest.raises(InvalidArgument, match="batch_size=16 has no effect on a Loader"):
        learner().fit(loader, batch_size=16, epochs=1, show=False)
    assert learner().fit(loader, valid=line(), batch_size=16, epochs=1, show=False).updates == 8


def test_predictions_in_the_order_of_a_distributed_sampler_are_rejected():
    fitted, dataset = learner().fit(line(), epochs=1, show=False), TensorDataset(*line())
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    plain = DataLoader(dataset, batch_size=8, sampler=sampler)
    for given in (plain, data.Loader(plain), DataLoader(dataset, batch_sampler=BatchSampler(sampler, 8, False))):
        with pytest.raises(InvalidArgument, match="has a DistributedSampler.*: give its dataset"):
            fitted.predict(given)
