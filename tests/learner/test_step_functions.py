"""`Learner(step=fn)`: a step without a subclass; and what steps may return."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import InvalidArgument, Objective, StateMismatch, WrongType, callbacks, data, optim
from tests.learner.fits import line, same


def loss_step(model, batch):
    x, y = batch
    return F.mse_loss(model(x), y)


def mapping_step(model, batch):
    x, y = batch
    error = (model(x) - y).abs().mean()
    return {"loss": F.mse_loss(model(x), y), "error": error, "factor": 2.0, "codes": x}


def yielding_step(model, batch):
    x, y = batch
    yield Objective("weight", F.mse_loss(model(x), y))
    yield Objective("bias", F.mse_loss(model(x), y))
    return {"error": (model(x) - y).abs().mean()}


def learner(model=None, **settings):
    model = nn.Linear(3, 1) if model is None else model
    return stoker.Learner(model, **{"optimizer": optim.SGD(), "lr": 0.05, "seed": 0, **settings})


def fit(of, **arguments):
    return of.fit(line(50), **{"valid": line(30), "epochs": 3, "batch_size": 16, "show": False, **arguments})


@pytest.mark.parametrize(
    "step",
    [
        loss_step,
        mapping_step,
        partial(lambda model, batch, power: {"loss": (model(batch[0]) - batch[1]).pow(power).mean()}, power=2),
        lambda model, batch: SimpleNamespace(loss=loss_step(model, batch)),
    ],
)
def test_a_step_function_trains_as_a_loss_function_does(step):
    class Plain(nn.Linear):
        def __init__(self):
            super().__init__(3, 1)

    expected = fit(learner(Plain, loss=nn.MSELoss(), ema=0.9))
    fitted = fit(learner(Plain, step=step, ema=0.9))
    assert same(fitted.model, expected.model)
    for name in ("train/loss", "valid/loss"):
        assert fitted.history[name] == pytest.approx(expected.history[name], rel=1e-6)
    assert torch.equal(fitted.predict(line(20)), expected.predict(line(20)))  # of the inputs alone
    assert not fitted.record.events_of("warning")


@pytest.mark.parametrize("size", [7, 64])
@pytest.mark.parametrize("step", [mapping_step, yielding_step])
def test_numbers_of_a_mapping_are_means_over_samples(step, size):
    model, (x, y) = nn.Linear(3, 1), line(50)
    fitted = fit(learner(model, step=step, lr=0.0), valid=line(50), batch_size=size, epochs=1)
    expected = (model(x) - y).abs().mean().item()
    for name in ("train/error", "valid/error"):
        assert fitted.history[name] == pytest.approx([expected], rel=1e-6)
    assert fitted.evaluate((x, y), batch_size=11)["error"] == pytest.approx(expected, rel=1e-6)
    if step is mapping_step:
        assert fitted.history["train/factor"] == [2.0] and "train/codes" not in fitted.history.columns
    else:
        assert {"train/weight", "train/bias", "valid/bias"} <= set(fitted.history.columns)


@pytest.mark.soak
def test_numbers_are_weighed_in_windows_and_compiled_steps_as_in_others(monkeypatch):
    from tests.executors.fits import interpret_graphs, plan_of

    interpret_graphs(monkeypatch)
    torch.manual_seed(0)
    state = nn.Linear(3, 1).state_dict()
    found = []
    for settings in ({}, {"accumulate": 3}, {"compile": True}):
        model = nn.Linear(3, 1)
        model.load_state_dict(state)
        fitted = fit(learner(model, step=mapping_step, lr=0.0, **settings), batch_size=7, epochs=2)
        assert plan_of(fitted).mode == ("compiled" if "compile" in settings else "eager")
        found.append(
            [fitted.history[name][-1] for name in ("train/loss", "train/error", "train/factor", "valid/error")]
        )
    assert found[1] == pytest.approx(found[0]) and found[2] == pytest.approx(found[0])


def test_a_valid_step_and_a_predict_step_replace_the_step():
    calls = set()

    def valid_step(model, batch):
        assert not model.training
        calls.add("valid")
        return {"loss": torch.tensor(123.0), "seven": 7}

    def predict_step(model, batch):
        return {"double": 2 * model(batch[0])}

    for training in ({"step": loss_step}, {"loss": nn.MSELoss()}):
        fitted = fit(learner(valid_step=valid_step, predict_step=predict_step, **training))
        assert fitted.history["valid/loss"] == [123.0] * 3 and fitted.history["valid/seven"] == [7.0] * 3
        assert "train/seven" not in fitted.history.columns and calls == {"valid"}
        assert torch.equal(fitted.predict(line(9))["double"], 2 * fitted.model(line(9)[0]))


class Steps(nn.Linear):
    def train_step(self, batch):
        return F.mse_loss(self(batch[0]), batch[1]) * 100

    def valid_step(self, batch):
        return torch.tensor(5.0)


def test_arguments_take_precedence_over_methods_of_the_model():
    fitted = fit(learner(Steps(3, 1), step=loss_step))
    assert fitted.history["train/loss"][0] < 20 and fitted.history["valid/loss"] == [5.0] * 3
    assert fit(learner(Steps(3, 1), valid_step=loss_step)).history["valid/loss"][0] != 5.0


def test_the_step_sees_the_average_in_validation():
    own, seen, trained = nn.Linear(3, 1), [], []

    def step(model, batch):
        seen.append((model.training, model is own, not trained or torch.equal(model.weight, trained[-1])))
        return loss_step(model, batch)

    keep = callbacks.on(train_end=lambda ctx: trained.append(own.weight.clone()))
    fit(learner(own, step=step, ema=0.5), epochs=1, callbacks=[keep])
    assert seen == [(True, True, True)] * 4 + [(False, True, False)] * 2


def test_a_changed_step_is_found_when_a_run_is_resumed(tmp_path):
    def train(step, **arguments):
        return fit(learner(step=step), run=tmp_path / "run", resume=True, **arguments)

    train(loss_step, epochs=1)
    with pytest.raises(StateMismatch, match="train_step: loss_step before, mapping_step now"):
        train(mapping_step, epochs=2)

    def changed(model, batch):
        return 2 * loss_step(model, batch)

    changed.__qualname__ = "loss_step"
    fitted = train(changed, epochs=2)
    assert any("the code of the step has changed" in each.text for each in fitted.record.events_of("warning"))


def test_a_resumed_run_has_the_same_bits(tmp_path):
    class Stop(callbacks.Callback):
        def on_update(self, ctx):
            if ctx.update == 5:
                raise RuntimeError

    def train(name, **arguments):
        torch.manual_seed(1)
        of = learner(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1)), step=mapping_step)
        return fit(of, run=tmp_path / name, checkpoint=stoker.Checkpoint(every=2), **arguments)

    whole = train("whole")
    with pytest.raises(RuntimeError):
        train("cut", callbacks=[Stop()])
    cut = train("cut", resume=True)
    assert same(cut.model, whole.model)
    assert all(cut.history[name] == whole.history[name] for name in ("train/error", "valid/error", "valid/loss"))


def test_a_learning_rate_is_found_for_a_step():
    torch.manual_seed(0)
    curve = stoker.lr_find(learner(step=mapping_step), line(64), steps=20)
    assert 1e-4 < curve.suggestion < 10


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"step": lambda model: 0}, WrongType, r"step is a function of \(model, batch\), got"),
        ({"predict_step": 3}, WrongType, r"predict_step is a function of \(model, batch\), got 3"),
        (
            {"step": Steps(3, 1).train_step},
            WrongType,
            "step is the method train_step of a Steps.*step=Steps.train_step",
        ),
    ],
)
def test_wrong_steps_are_rejected_at_once(settings, error, text):
    with pytest.raises(error, match=text):
        learner(**settings)


class Lightning(nn.Linear):
    def training_step(self, batch, batch_idx):
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        return F.mse_loss(self(batch[0]), batch[1])


class Half(Steps):
    valid_step = None

    def validation_step(self, batch, batch_idx):
        return F.mse_loss(self(batch[0]), batch[1])


class Keras(Steps):
    valid_step = None

    def test_step(self, data):
        return {}


class Indexed(nn.Linear):
    def train_step(self, batch, batch_idx):
        return F.mse_loss(self(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("model", "settings", "text"),
    [
        (Lightning, {}, r"Lightning has a training_step, and stoker calls train_step\(batch\).*Learner\(step=fn\)"),
        (Lightning, {"loss": nn.MSELoss()}, "Lightning has a training_step"),
        (
            Lightning,
            {"step": loss_step},
            r"has a validation_step, and stoker calls valid_step.*Learner\(valid_step=fn\)",
        ),
        (type("LightningModule", (Lightning,), {}), {}, r"as it is: stoker.lightning.make_learner\(module\)"),
        (Half, {}, r"Half has a validation_step, and stoker calls valid_step\(batch\): rename it"),
        (Keras, {}, "Keras has a test_step, and stoker calls valid_step"),
        (Indexed, {}, r"Indexed.train_step is called with the batch only: .*missing a required argument: 'batch_idx'"),
        (Steps, {"loss": nn.MSELoss()}, "Steps.train_step computes the loss, so loss= would not be used"),
        (nn.Linear, {"loss": nn.MSELoss(), "step": loss_step}, "step= computes the loss, so loss= would not be used"),
        (nn.Linear, {"step": loss_step, "target": 1}, "columns for a loss function, but step= computes the loss"),
    ],
)
def test_steps_of_other_libraries_and_losses_that_are_not_used_are_errors(model, settings, text):
    with pytest.raises(InvalidArgument, match=text):
        fit(learner(model(3, 1), **settings))


def test_steps_of_lightning_are_not_in_the_way_of_functions():
    fitted = fit(learner(Lightning(3, 1), step=loss_step, valid_step=loss_step))
    assert fitted.history["valid/loss"][-1] < fitted.history["valid/loss"][0]
    assert fit(learner(Half(3, 1)), valid=None).epochs == 3  # without validation


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            lambda model, batch: {"los": model(batch[0]).mean()},
            r"<lambda> returned dict with 'los'; .*mapping with .loss.",
        ),
        (lambda model, batch: None, "<lambda> returned NoneType"),
        (
            lambda model, batch: {"a": model(batch[0]).mean(), "b": model(batch[0]).mean()},
            "returned dict with 'a', 'b'",
        ),
        (lambda model, batch: (value for value in [1]), "<lambda> yielded int; expected stoker.Objective"),
    ],
)
def test_what_a_step_must_not_return_is_an_error(step, text):
    with pytest.raises(WrongType, match=text):
        fit(learner(step=step))


def test_batches_of_graphs_and_packed_sequences_count_their_samples():
    from torch.nn.utils.rnn import pack_sequence

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.GRU(2, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.body(x)[1][0])

    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(1 + i % 4, 2, generator=generator), torch.tensor([float(i)])) for i in range(10)]

    def collate(batch):
        xs, ys = zip(*batch, strict=True)
        return pack_sequence(xs, enforce_sorted=False), torch.stack(ys)

    torch.manual_seed(0)
    model = Recurrent()
    loader = data.Loader(samples, batch_size=4, collate_fn=collate)
    fitted = stoker.Learner(model, step=loss_step, lr=0.0, seed=0).fit(loader, epochs=1, show=False)
    assert fitted.history["train/loss"] == pytest.approx([loss_step(model, collate(samples)).item()], rel=1e-6)
    fitted = stoker.Learner(model, loss=nn.MSELoss(), lr=0.0, seed=0).fit(loader, epochs=1, show=False)
    assert fitted.history["train/loss"] == pytest.approx([loss_step(model, collate(samples)).item()], rel=1e-6)


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_tokens_of_every_source_of_a_mix_count_alike(compiles):
    class Bigrams(nn.Embedding):
        def __init__(self):
            super().__init__(5, 5)

    def tokens(model, batch):
        ((x, y),) = batch.values()
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    x = torch.arange(8 * 6).reshape(8, 6) % 5
    one, two = x.clone(), (x + 1) % 5
    one[:, 1:], two[4:, 2:] = -100, -100
    mixed = data.mix(**{name: data.Loader((x, y), batch_size=4) for name, y in (("one", one), ("two", two))})
    model = Bigrams()
    expected = tokens(model, {"all": (torch.cat([x, x]), torch.cat([one, two]))})
    expected.backward()
    moved = model.weight.detach() - model.weight.grad
    fitted = learner(model, step=tokens, lr=1.0, accumulate=4).fit(mixed, valid=mixed, epochs=1, show=False)
    assert fitted.updates == 1 and fitted.history["train/loss"] == pytest.approx([expected.item()])
    assert torch.allclose(model.weight, moved, atol=1e-6)
    after = tokens(model, {"all": (torch.cat([x, x]), torch.cat([one, two]))}).item()
    assert fitted.history["valid/loss"] == pytest.approx([after])
    if compiles:
        fitted = learner(model, step=tokens, lr=0.0, compile=True).fit(mixed, epochs=2, show=False)
        assert fitted.history["train/loss"] == pytest.approx([after] * 2) and "compiled" in str(fitted.plan)
