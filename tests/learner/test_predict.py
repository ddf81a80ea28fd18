"""Predictions: one per sample, in the order of the data, from the inputs that the fit had; or an error."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import stoker
from stoker import BadData, InvalidArgument, data, metrics

X = torch.arange(30.0).view(10, 3) / 30
Y = X.sum(1, keepdim=True)
DATASET = TensorDataset(X, Y)


def fit(model=None, source=(X, Y), **learner):
    settings = {"loss": nn.MSELoss(), "lr": 0.01, "seed": 0, **learner}
    model = model or nn.Linear(3, 1)
    torch.manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return stoker.Learner(model, **settings).fit(source, epochs=1, batch_size=4, show=False)


@pytest.fixture(scope="module")
def fitted():
    return fit()


# --- the order of the data, and all of them


class Odd(Sampler):
    def __iter__(self):
        return iter([1, 3, 5])

    def __len__(self):
        return 3


SHUFFLED = {
    "shuffle": DataLoader(DATASET, batch_size=4, shuffle=True),
    "batch sampler": DataLoader(DATASET, batch_sampler=BatchSampler(RandomSampler(DATASET), 4, False)),
    "subset": DataLoader(DATASET, batch_size=4, sampler=SubsetRandomSampler([1, 2, 3])),
    "weighted": DataLoader(DATASET, batch_size=4, sampler=WeightedRandomSampler([1.0] * 10, 10)),
    "own sampler": DataLoader(DATASET, batch_size=4, sampler=Odd()),
    "own batches": DataLoader(DATASET, batch_sampler=[[3, 1], [0, 2]]),
    "without batches": DataLoader(DATASET, batch_size=None, sampler=RandomSampler(DATASET)),
}


@pytest.mark.parametrize("wrap", [lambda loader: loader, data.Loader])
@pytest.mark.parametrize("loader", SHUFFLED.values(), ids=SHUFFLED)
def test_a_dataloader_in_another_order_is_refused(fitted, loader, wrap):
    with pytest.raises(
        InvalidArgument, match=r"this DataLoader .*could not be matched with its data: give its dataset"
    ):
        fitted.predict(wrap(loader))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATASET)


COMPLETE = {
    "plain": DataLoader(DATASET, batch_size=4),
    "drop_last": DataLoader(DATASET, batch_size=4, drop_last=True),
    "drop_last of a batch sampler": DataLoader(DATASET, batch_sampler=BatchSampler(range(10), 4, True)),
    "drop_last and workers": DataLoader(DATASET, batch_size=4, drop_last=True, num_workers=1, persistent_workers=True),
    "drop_last of a stream": DataLoader(Stream(), batch_size=4, drop_last=True),
    "loader": data.Loader((X, Y), batch_size=4, shuffle=3, drop_last=True),
    "stream": data.Loader(Stream(), batch_size=4, drop_last=True),
    "wrapped": data.Loader(DataLoader(DATASET, batch_size=4, drop_last=True)),
    "subset": Subset(DATASET, range(10)),
}


@pytest.mark.parametrize("name", COMPLETE)
def test_no_sample_is_left_out_of_a_prediction_or_an_evaluation(fitted, name):
    source = COMPLETE[name]
    exact = fitted.model(X).detach()
    if name != "drop_last of a batch sampler":  # whose order is that of a range, which is not known to be complete
        torch.testing.assert_close(fitted.predict(source), exact)
    assert fitted.evaluate(source)["loss"] == pytest.approx(nn.functional.mse_loss(exact, Y).item(), rel=1e-5)
    if isinstance(source, DataLoader):
        assert source.drop_last == ("drop_last" in name and "sampler" not in name)  # the user's is not changed


# --- one prediction per sample


class Answers(nn.Linear):
    """A model whose answer is a function of its output [batch, 1] and its input."""

    def __init__(self, answer):
        super().__init__(3, 1)
        self.answer = answer

    def predict_step(self, batch):
        x = batch[0] if isinstance(batch, tuple | list) else batch
        return self.answer(self(x), x)


def predict(answer, source=X, batch_size=4):
    return fit(Answers(answer)).predict(source, batch_size=batch_size)


def boxes(y, x):
    """One dict per image, with as many rows as there are objects in it."""
    return [
        {"boxes": row.expand(round(float(row[0]) * 10) % 4, 3), "score": score} for row, score in zip(x, y, strict=True)
    ]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 10])
def test_a_list_with_an_answer_for_each_sample_is_joined_sample_by_sample(batch_size):
    found, whole = predict(boxes, batch_size=batch_size), predict(boxes, batch_size=10)
    assert len(found) == len(whole) == 10
    for row, one, other in zip(X, found, whole, strict=True):
        assert (
            torch.equal(one["boxes"], row.expand(len(one["boxes"]), 3)) and one["boxes"].shape == other["boxes"].shape
        )
    for answer in (lambda y, x: [row.repeat(1 + n) for n, row in enumerate(x)], lambda y, x: [str(r) for r in x]):
        assert len(predict(answer, batch_size=batch_size)) == 10


@dataclass
class Scores:
    mean: torch.Tensor
    extra: torch.Tensor | None = None


def test_answers_may_be_dataclasses_arrays_and_parts_that_are_none():
    y = predict(lambda y, x: y)
    found = predict(lambda y, x: Scores(y))
    assert isinstance(found, Scores) and torch.equal(found.mean, y) and found.extra is None
    assert torch.equal(predict(lambda y, x: (y, None))[0], y)
    assert torch.equal(predict(lambda y, x: {"y": y.numpy()})["y"], y)
    assert predict(lambda y, x: np.array([f"{v:.2f}" for v in y.flatten()])) == [f"{v:.2f}" for v in y.flatten()]
    listed = predict(lambda y, x: [Scores(row) for row in y])
    assert [type(each) for each in listed] == [Scores] * 10 and torch.equal(torch.stack([s.mean for s in listed]), y)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_losses_of_a_batch_are_left_out(batch_size):
    y = predict(lambda y, x: y)
    found = predict(
        lambda y, x: {"loss": y.mean(), "aux_loss": y.sum(), "loss_dict": {"l1": y.abs().mean()}, "logits": y},
        batch_size=batch_size,
    )
    assert list(found) == ["logits"] and torch.equal(found["logits"], y)
    losses = torch.arange(10.0)
    whole = predict(lambda y, x: Regression(y.mean(), y, losses[: len(y)]), batch_size=batch_size)
    assert whole.loss is None and torch.equal(whole.predictions, y)
    each = predict(lambda y, x: {"loss": y.squeeze(1)}, batch_size=batch_size)  # of every sample
    assert torch.equal(each["loss"], y.squeeze(1))


@dataclass
class Regression:
    loss: torch.Tensor
    predictions: torch.Tensor
    targets: torch.Tensor


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_answers_may_be_nested_or_sparse_tensors():
    """Rows of different lengths are a list, as those of a list are."""
    y = predict(lambda y, x: y)
    ragged = predict(
        lambda y, x: torch.nested.nested_tensor([row.repeat(n + 1) for n, row in enumerate(y)], layout=torch.jagged)
    )
    assert [len(row) for row in ragged] == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert torch.equal(torch.stack([row[0] for row in ragged]), y.squeeze(1))
    assert torch.equal(predict(lambda y, x: y.to_sparse()).to_dense(), y)
    assert torch.equal(predict(lambda y, x: y.to_sparse_csr()), y)


def test_a_single_sample_may_be_squeezed():
    assert predict(lambda y, x: y.squeeze(), batch_size=3).shape == (10,)  # the last batch has one sample


def test_a_model_may_reuse_the_memory_of_its_output():
    class Reuses(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.memory = nn.Linear(3, 1), torch.zeros(5, 1)

        def forward(self, x):
            return self.layer(x) if torch.is_grad_enabled() else torch.add(self.layer(x), 0, out=self.memory)

    labels = (torch.arange(10) % 3 == 0).float()[:, None]
    result = fit(Reuses(), (X, labels), loss=nn.BCEWithLogitsLoss())
    exact = result.model.layer(X).detach()
    torch.testing.assert_close(result.predict(X, batch_size=5), exact)
    found = result.evaluate((X, labels), metrics=[metrics.AUROC()], batch_size=5)
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, exact))


WRONG = {
    "sequence first": (lambda y, x: x.T[:, :, None].expand(3, len(x), 2), r"batch of 4 samples .* shape \[3, 4, 2\]"),
    "a number": (lambda y, x: y.sum(), r"batch of 4 samples the output is a tensor of shape \[\]"),
    "a number inside": (lambda y, x: {"y": y, "mean": y.mean()}, r"the output\['mean'\] is a tensor of shape \[\]"),
    "too many": (lambda y, x: torch.cat([y, y]), r"a tensor of shape \[8, 1\]"),
    "a short list": (lambda y, x: [str(row) for row in y][1:], "the output is a list of 3"),
    "a text": (lambda y, x: "seven", "the output is str"),
    "ragged": (lambda y, x: x[:, : 1 + len(x) // 4], r"other shapes in other batches \(\[2, 1\] and \[4, 2\]\).*pad"),
    "some parts": (lambda y, x: {"y": y} | ({"z": y} if len(x) == 4 else {}), "the output has 'z' for some batches"),
}


@pytest.mark.parametrize(("answer", "text"), WRONG.values(), ids=WRONG)
def test_anything_but_one_answer_per_sample_is_an_error(answer, text):
    with pytest.raises(BadData, match=text):
        predict(answer)


def test_a_list_of_as_many_parts_as_samples_is_ambiguous():
    def square(y, x):
        return [x.new_ones(len(x), 2)] * len(x)

    assert len(predict(square)) == 10  # in the last batch there are other samples than in the first
    assert len(predict(square, X[:4])) == 4
    assert len(predict(lambda y, x: tuple(square(y, x)), X[:8])) == 4
    with pytest.raises(
        BadData, match="not clear whether an entry is the prediction for a sample; return a tuple of parts"
    ):
        predict(square, X[:8])


def test_the_number_of_samples_is_that_of_the_data_and_not_of_a_time_first_batch():
    def time_first(samples):
        return torch.stack([x for x, _ in samples], 1)  # [time, batch]

    class Averages(nn.Linear):
        def predict_step(self, batch):
            return batch.mean(0)

    class Passes(nn.Linear):
        def predict_step(self, batch):
            return batch

    for loader in (
        data.Loader(DATASET, batch_size=4, batcher=time_first),
        DataLoader(DATASET, batch_size=4, collate_fn=time_first),
    ):
        torch.testing.assert_close(fit(Averages(3, 1)).predict(loader), X.mean(1))
        with pytest.raises(BadData, match=r"batch of 4 samples the output is a tensor of shape \[3, 4\]"):
            fit(Passes(3, 1)).predict(loader)


# --- the inputs of the fit


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x, mask=None):
        return self.layer(x if mask is None else x * mask)


class Any(Masked):
    def forward(self, *xs):
        return self.layer(sum(xs))


MASK = (torch.arange(30).view(10, 3) % 2).float()


@pytest.mark.parametrize("model", [Masked, Any])
def test_a_prediction_has_the_inputs_that_the_fit_had(model):
    result = fit(model(), (X, MASK, Y))
    with torch.no_grad():
        exact = result.model(X, MASK)
    for source in ((X, MASK), (X, MASK, Y), TensorDataset(X, MASK), DataLoader(TensorDataset(X, MASK), batch_size=3)):
        torch.testing.assert_close(result.predict(source), exact)
    for source in (X, (X, MASK, MASK, Y)):
        with pytest.raises(BadData, match="the batches of the fit had 2 inputs and a target; pass exactly the inputs"):
            result.predict(source)
    with pytest.raises(BadData, match="a batch has 1 input and a target, but those before had 2 inputs and a target"):
        result.evaluate((X, MASK))  # the mask is not a target


def test_one_optional_input_less_than_the_arguments():
    result = fit(Masked(), (X, Y))
    with torch.no_grad():
        exact = result.model(X)
    for source in (X, (X, Y)):
        torch.testing.assert_close(result.predict(source), exact)


def test_a_loaded_run_does_not_guess(tmp_path):
    learner = stoker.Learner(Masked, loss=nn.MSELoss(), seed=0)
    learner.fit((X, MASK, Y), epochs=1, run=tmp_path / "run", show=False)
    loaded = stoker.Fitted.load(tmp_path / "run", learner)
    with pytest.raises(BadData, match=r"not clear which of the 2 parts .*forward\(x, mask\) may take all of them"):
        loaded.predict((X, MASK))
    with torch.no_grad():
        exact = loaded.model(X, MASK)
    torch.testing.assert_close(loaded.predict({"x": X, "mask": MASK}), exact)


def test_columns_that_the_learner_names():
    table = {"image": X, "label": Y, "id": torch.arange(10), "importance": torch.arange(10.0)}
    named = fit(Masked(), table, inputs="image", target="label", weight="importance")
    plain = fit(Masked(), {"x": X, "y": Y, "weight": torch.arange(10.0)})
    assert torch.equal(named.model.layer.weight, plain.model.layer.weight)
    assert named.evaluate(table) == plain.evaluate({"x": X, "y": Y, "weight": torch.arange(10.0)})
    assert torch.equal(named.predict({"image": X}), plain.predict(X))
    places = fit(Masked(), (Y, X), target=0)
    assert torch.equal(places.model.layer.weight, fit(Masked(), (X, Y)).model.layer.weight)


def test_columns_that_something_else_does_not_know_are_refused():
    class Steps(nn.Linear):
        def train_step(self, batch):
            return self(batch[0]).mean()

    with pytest.raises(InvalidArgument, match="columns for a loss function, but Steps.train_step computes the loss"):
        fit(Steps(3, 1), loss=None, target=1)


def test_a_run_that_named_other_columns_is_not_resumed(tmp_path):
    def run(**names):
        learner = stoker.Learner(nn.Linear(3, 3), loss=nn.MSELoss(), seed=0, **names)
        return learner.fit((X, X + 1), epochs=1, run=tmp_path / "run", resume=True, show=False)

    run(target=1)
    with pytest.raises(stoker.StokerError, match="columns: target=1 before, target=0 now"):
        run(target=0)
