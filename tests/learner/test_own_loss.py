"""A model whose `forward` computes the loss trains as it is: batches go in, and the loss is found in what comes out."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stoker
from stoker import BadData, InvalidArgument, WrongType, data, optim
from tests.hooks import Crash, crash_at
from tests.learner.fits import line, same


@dataclass
class Result:
    loss: Tensor
    error: Tensor
    predictions: Tensor


RESULTS = {
    "scalar": lambda loss, error, pred: loss,
    "mapping": lambda loss, error, pred: {"loss": loss, "error": error, "logits": pred},
    "dataclass": Result,
    "namespace": lambda loss, error, pred: SimpleNamespace(loss=loss, error=error),
    "loss first": lambda loss, error, pred: (loss, pred),
    "loss second": lambda loss, error, pred: (pred, loss),
    "loss and another number": lambda loss, error, pred: (loss, error.detach(), pred),
    "dict of losses": lambda loss, error, pred: {"half": loss / 2, "rest": loss / 2},
}


class Own(nn.Linear):
    def __init__(self, result="scalar"):
        super().__init__(3, 1)
        self.result = RESULTS[result]

    def forward(self, x, y):
        pred = super().forward(x)
        return self.result(F.mse_loss(pred, y), (pred - y).abs().mean(), pred)


class Any_(Own):
    """Takes anything, as wrappers do."""

    def forward(self, *args: Any, **kwargs: Any):
        return super().forward(*args, **kwargs)


class Whole(Own):
    def forward(self, batch):
        return super().forward(batch["x"], batch["y"])


def fit(model, source, **settings):
    learner = stoker.Learner(model, **{"optimizer": optim.SGD(), "lr": 0.05, "seed": 0, **settings})
    return learner.fit(source, valid=line(30) if isinstance(source, tuple) else None, epochs=3, show=False)


def named(*names):
    return dict(zip(names, line(50), strict=True))


@pytest.fixture(scope="module")
def supervised():
    class Plain(nn.Linear):
        def __init__(self):
            super().__init__(3, 1)

    return fit(Plain, line(50), loss=nn.MSELoss())


@pytest.mark.parametrize("result", RESULTS)
def test_every_kind_of_result_trains_to_the_bits_of_a_loss_function(result, supervised):
    fitted = fit(lambda: Own(result), line(50))
    assert same(fitted.model, supervised.model)
    assert fitted.history["train/loss"] == supervised.history["train/loss"]
    assert fitted.history["valid/loss"] == supervised.history["valid/loss"]
    assert fitted.evaluate(line(20))["loss"] == supervised.evaluate(line(20))["loss"]
    assert not fitted.record.events_of("warning")
    if result in ("mapping", "dataclass", "namespace"):
        x, y = line(20)
        pred = F.linear(x, fitted.model.weight, fitted.model.bias)
        assert fitted.evaluate(line(20), batch_size=7)["error"] == pytest.approx((pred - y).abs().mean().item())
        assert {"train/error", "valid/error"} <= set(fitted.history.columns)
    if result == "dict of losses":
        assert fitted.history["train/half"] == pytest.approx([each / 2 for each in fitted.history["train/loss"]])


def test_numbers_of_a_validation_are_not_added_up_to_a_loss():
    class Net(nn.Linear):
        def forward(self, x, y):
            loss = F.mse_loss(super().forward(x), y)
            return {"near": loss / 2, "far": loss / 2} if self.training else {"score": loss, "hits": loss}

    learner = stoker.Learner(Net(3, 1), seed=0)
    with pytest.raises(InvalidArgument, match="monitor"):
        learner.fit(line(), valid=line(), epochs=1, batch_size=8, show=False)


@pytest.mark.parametrize(
    ("model", "source"),
    [
        (Own, named("x", "y")),
        (Any_, line(50)),
        (Any_, named("x", "y")),
        (Whole, named("x", "y")),
        (Own, torch.utils.data.DataLoader(list(zip(*line(50), strict=True)), batch_size=32)),
    ],
)
def test_batches_go_in_by_name_by_place_or_as_one(model, source, supervised):
    fitted = fit(model, source)
    plain = stoker.Learner(Own, optimizer=optim.SGD(), lr=0.05, seed=0)
    if isinstance(source, torch.utils.data.DataLoader):
        expected = plain.fit(data.Loader(line(50), batch_size=32), epochs=3, show=False)
    else:
        expected = supervised
    assert same(fitted.model, expected.model) and not fitted.record.events_of("warning")


def test_columns_that_forward_does_not_take_are_reported_once():
    fitted = fit(Own, {**named("x", "y"), "index": torch.arange(50)})
    (warning,) = fitted.record.events_of("warning")
    assert "Own.forward does not take 'index' of the batch, which is not used" in warning.text


class Detector(nn.Linear):
    """As the detectors of torchvision: lists go in, and a dict of losses comes out."""

    def __init__(self):
        super().__init__(3, 1)

    def forward(self, images, targets=None):
        preds = [super(Detector, self).forward(image) for image in images]
        if not self.training:
            return [{"score": pred.mean()} for pred in preds]
        losses = [F.mse_loss(pred, target["y"]) for pred, target in zip(preds, targets, strict=True)]
        return {"one": sum(losses) / len(losses), "two": 0.1 * preds[0].square().mean()}


def test_lists_of_images_and_targets_are_counted_and_each_loss_is_recorded():
    samples = [(torch.ones(2 + i % 3, 3), {"y": torch.full((2 + i % 3, 1), float(i))}) for i in range(10)]
    loader = data.Loader(samples, batch_size=4, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
    model = Detector()
    with torch.no_grad():
        expected = [model(*batch)["one"].item() for batch in loader]
    learner = stoker.Learner(model, lr=0.0, seed=0)
    fitted = learner.fit(loader, epochs=1, show=False)
    one, two, loss = (fitted.history[f"train/{name}"][0] for name in ("one", "two", "loss"))
    assert one == pytest.approx((4 * expected[0] + 4 * expected[1] + 2 * expected[2]) / 10)
    assert loss == pytest.approx(one + two)


class Samples(nn.Linear):
    """As the models of detectron2: a list of samples goes in."""

    def __init__(self):
        super().__init__(3, 1)
        self.seen: list[int] = []

    def forward(self, samples, others=None):
        assert isinstance(samples, list) and others is None
        self.seen.append(len(samples))
        rows = [sample["x"] if isinstance(sample, dict) else sample for sample in samples]
        return torch.stack([super(Samples, self).forward(row).square().mean() for row in rows]).sum() / len(rows)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("make", [lambda i: {"x": torch.ones(3)}, lambda i: torch.ones(2 + i % 2, 3)])
def test_a_list_of_samples_is_one_argument_whatever_its_length(make, size):
    loader = data.Loader([make(i) for i in range(7)], batch_size=size, collate_fn=list)
    fitted = stoker.Learner(Samples(), lr=0.0, seed=0).fit(loader, valid=loader, epochs=1, show=False)
    assert {*fitted.model.seen} == {size, 7 % size or size}


def test_a_list_of_columns_goes_in_by_place():
    class Optional(Own):
        def forward(self, x, y=None):
            return super().forward(x, y)

    for size in (2, 7):
        columns = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*line(9)), batch_size=size)
        expected = fit(Optional, data.Loader(line(9), batch_size=size)).history["train/loss"]
        assert fit(Optional, columns).history["train/loss"] == expected
    one = data.Loader(torch.ones(3, 1, 3), batch_size=1, collate_fn=lambda rows: [torch.stack(rows)[0]])
    with pytest.raises(BadData, match="may hold one sample, or a column of one row"):
        fit(Samples(), one)


class LanguageModel(nn.Module):
    """Predicts the next token; nothing but its loss says so."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, input_ids, labels):
        logits = self.head(self.embed(input_ids))
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}


def tokens():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 9, (11, 6), generator=generator)
    lengths = torch.tensor([6, 1, 2, 6, 3, 0, 0, 5, 1, 4, 2])  # uneven; two samples in a row have no target
    return {"input_ids": ids, "labels": ids.where(torch.arange(6) < lengths[:, None], -100)}


SPLITS = {
    "batches": ({"accumulate": 6}, 2, {}),
    "micro-batches": ({}, 11, {"micro_batch": 2}),
    "both": ({"accumulate": 2}, 7, {"micro_batch": 3}),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("step", [None, lambda model, batch: model(**batch)["loss"]])
def test_any_split_of_a_batch_of_tokens_gives_its_gradient(step, split):
    settings, size, arguments = SPLITS[split]
    torch.manual_seed(0)
    model, plain = LanguageModel(), LanguageModel()
    plain.load_state_dict(model.state_dict())
    expected = plain(**tokens())["loss"]
    expected.backward()
    learner = stoker.Learner(model, optimizer=optim.SGD(), lr=1.0, seed=0, step=step, **settings)
    fitted = learner.fit(data.Loader(tokens(), batch_size=size), epochs=1, show=False, **arguments)
    assert fitted.updates == 1 and fitted.history["train/loss"] == pytest.approx([expected.item()], rel=1e-6)
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(own, other - other.grad, atol=1e-6)
    loss = model.eval()(**tokens())["loss"].item()
    for size in (1, 3, 11):
        assert fitted.evaluate(data.Loader(tokens(), batch_size=size))["loss"] == pytest.approx(loss, rel=1e-6)


def test_a_loaded_model_is_evaluated_with_the_right_weights(tmp_path):
    learner = stoker.Learner(LanguageModel, lr=0.1, seed=0)
    fitted = learner.fit(tokens(), valid=tokens(), epochs=2, batch_size=4, run=tmp_path / "run", show=False)
    loaded = stoker.Fitted.load(tmp_path / "run", learner)
    expected = loaded.model(**tokens())["loss"].item()
    before = torch.get_rng_state()
    assert loaded.evaluate(data.Loader(tokens(), batch_size=3))["loss"] == pytest.approx(expected, rel=1e-6)
    assert torch.equal(torch.get_rng_state(), before) and fitted.history["valid/loss"][-1] == pytest.approx(expected)


def test_a_loss_whose_weight_is_not_clear_is_reported_with_what_to_do():
    class Masked(Own):
        def forward(self, x, y):
            return (nn.Linear.forward(self, x).square() * (x[:, :1] > 0)).sum() / (x[:, 0] > 0).sum()

    fitted = fit(Masked, line(50))
    (warning,) = fitted.record.events_of("warning")
    assert "not clear what the loss of Masked.forward is a mean over" in warning.text
    assert "return an output with .loss and .count" in warning.text and "Learner(step=fn)" in warning.text

    def counted(model, batch):
        return {"loss": model(*batch), "count": (batch[0][:, 0] > 0).sum()}

    x, y = line(50)
    fitted = stoker.Learner(Masked(), step=counted, lr=0.0).fit(data.Loader((x, y), batch_size=7), epochs=1, show=False)
    assert (
        fitted.history["train/loss"] == pytest.approx([fitted.model(x, y).item()])
        and "train/count" not in fitted.history
    )
    assert not fitted.record.events_of("warning")


# --- errors, before the first update


class Net(nn.Linear):
    def forward(self, x, y=None):
        return self.result(super().forward(x))


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (lambda pred: pred, WrongType, r"Net.forward returned a tensor of shape \[32, 1\], which has no loss"),
        (lambda pred: {"logits": pred}, WrongType, r"Net.forward returned dict with 'logits', .* Give Learner\(loss="),
        (lambda pred: (pred, pred), WrongType, r"a tuple of Tensor, Tensor, which .*Learner\(step=fn\)"),
        (lambda pred: (pred.mean(), pred.sum()), WrongType, "which has no loss"),
        (lambda pred: (pred.mean().detach(), pred.sum()), WrongType, "a tuple whose first number is the loss"),
        (lambda pred: {"a": pred.mean(), "accuracy": pred.mean().detach()}, WrongType, "dict with 'a', 'accuracy'"),
        (lambda pred: SimpleNamespace(loss=None), BadData, "whose loss is None: .* if the batch has labels"),
        (lambda pred: None, WrongType, "returned NoneType"),
    ],
)
def test_a_result_without_a_loss_is_an_error_before_the_first_update(result, error, text):
    model = Net(3, 1)
    model.result = result
    before = model.weight.clone()
    with pytest.raises(error, match=text):
        fit(model, data.Loader(line(50), batch_size=32))
    assert torch.equal(model.weight, before)


def test_a_batch_that_forward_cannot_take_is_an_error_that_asks_for_a_loss(tmp_path):
    for source in (line(50), data.Loader(line(50), batch_size=8)):
        with pytest.raises(
            InvalidArgument, match=r"a batch of 2 parts can't be passed to Linear.forward.* Learner\(loss="
        ):
            fit(nn.Linear(3, 1), source)
    with pytest.raises(InvalidArgument, match="a batch with 'a', 'b' can't be passed to Own.forward"):
        fit(Own, named("a", "b"))
    with pytest.raises(InvalidArgument, match=r"columns for a loss function, but Own.forward computes the loss"):
        fit(Own, line(50), target=1)


# --- with everything else


def test_a_resumed_run_has_the_same_bits(tmp_path):
    def train(name, *stops, resume=False):
        learner = stoker.Learner(LanguageModel, lr=0.1, seed=0, ema=0.9, accumulate=2)
        return learner.fit(
            data.Loader(tokens(), batch_size=2, shuffle=1), valid=tokens(), epochs=3, run=tmp_path / name,
            checkpoint=stoker.Checkpoint(every=1), resume=resume, callbacks=stops, show=False,
        )  # fmt: skip

    whole = train("whole")
    with pytest.raises(Crash):
        train("cut", crash_at(update=4))
    cut = train("cut", resume=True)
    assert same(cut.model, whole.model) and cut.history["valid/loss"] == whole.history["valid/loss"]
    assert cut.history["train/loss"] == whole.history["train/loss"]


def test_explain_names_what_computes_the_loss():
    assert "Own.forward(batch)" in stoker.Learner(Own).explain(line(50), epochs=1)
    text = stoker.Learner(Own, step=lambda model, batch: model(*batch)).explain(line(50), epochs=1)
    assert "<lambda>(model, batch)" in text


@pytest.mark.parametrize(
    "how", [{"loss": nn.MSELoss()}, {"step": lambda model, batch: model(batch[0]).square().mean()}]
)
def test_predictions_of_a_loaded_model_need_neither_its_loss_nor_its_step(how, tmp_path):
    learner = stoker.Learner(nn.Linear(3, 1), seed=0, **how)
    fitted = learner.fit(line(50), epochs=1, run=tmp_path / "run", show=False)
    loaded = stoker.Fitted.load(tmp_path / "run", nn.Linear(3, 1))
    assert torch.equal(loaded.predict(line(50)), fitted.predict(line(50)))
