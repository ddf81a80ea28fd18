"""The seed "Training" (Burn's guide to its Learner), feature by feature, on drawn digits."""

import json
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stoker
from stoker import ClassificationOutput, Record, data, metrics, optim, schedule


class ModelConfig(stoker.Config):
    num_classes: int
    hidden_size: int
    dropout: float = 0.1

    def init(self):
        return Model(self)


class TrainingConfig(stoker.Config):
    model: ModelConfig
    optimizer: optim.Adam
    epochs: int = 2
    batch_size: int = 64
    workers: int = 0
    seed: int = 42
    lr: float = 1e-3


@dataclass
class DigitBatch:
    images: Tensor
    targets: Tensor


def batcher(items):
    images = torch.stack([image for image, _ in items]).float() / 255
    return DigitBatch((images - 0.1307) / 0.3081, torch.tensor([label for _, label in items]))


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear1 = nn.Linear(784, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.linear2 = nn.Linear(config.hidden_size, config.num_classes)
        self.asked = []  # the step, whether the module trains, whether autograd records

    def forward(self, images):
        return self.linear2(self.dropout(self.linear1(images.flatten(1)).relu()))

    def forward_classification(self, images, targets):
        logits = self(images)
        return ClassificationOutput(F.cross_entropy(logits, targets), logits, targets)

    def train_step(self, batch: DigitBatch) -> ClassificationOutput:
        self.asked.append(("train", self.training, torch.is_grad_enabled()))
        return self.forward_classification(batch.images, batch.targets)

    def valid_step(self, batch: DigitBatch) -> ClassificationOutput:
        self.asked.append(("valid", self.training, torch.is_grad_enabled()))
        return self.forward_classification(batch.images, batch.targets)


CONFIG = TrainingConfig(ModelConfig(num_classes=10, hidden_size=32), optim.Adam())
TRAIN, TEST = data.digits("train", size=640), data.digits("test", size=160)


def loader(dataset, config=CONFIG):
    return data.Loader(
        dataset, batch_size=config.batch_size, shuffle=config.seed, workers=config.workers, batcher=batcher
    )


def learner_of(config=CONFIG, **settings):
    torch.manual_seed(config.seed)
    given = {"optimizer": config.optimizer, "lr": config.lr, "seed": config.seed, "metrics": [metrics.Accuracy()]}
    return stoker.Learner(config.model.init(), **{**given, **settings})


def fit(config=CONFIG, learner=None, **settings):
    learner = learner or learner_of(config)
    given = {
        "config": config if "run" in settings else None,
        "valid": loader(TEST, config),
        "epochs": config.epochs,
        "show": False,
    }
    return learner.fit(loader(TRAIN, config), **{**given, **settings})


# "The model should output an item that the learner understands": the output holds what every metric needs.
def test_a_step_returns_an_output_and_the_metrics_read_it():
    chosen = [metrics.Accuracy(), metrics.TopKAccuracy(3), metrics.FBeta()]
    fitted = fit(learner=learner_of(metrics=chosen))
    for name in ("loss", "accuracy", "top3_accuracy", "f1_macro"):
        assert len(fitted.history[f"train/{name}"]) == len(fitted.history[f"valid/{name}"]) == 2


# "Burn provides two basic output types": classification, and regression.
def test_a_regression_output_works_as_well():
    class Line(nn.Linear):
        def train_step(self, batch):
            x, y = batch
            predictions = self(x)
            return stoker.RegressionOutput(F.mse_loss(predictions, y), predictions, y)

    x = torch.randn(64, 3)
    learner = stoker.Learner(Line(3, 1), lr=0.05, metrics=[metrics.MAE()], seed=0)
    fitted = learner.fit((x, x.sum(1, keepdim=True)), epochs=10, show=False)
    assert fitted.history["train/mae"][-1] < fitted.history["train/mae"][0]


# "It is possible to create your own item, but it is beyond the scope of this guide": anything with a loss.
def test_an_output_of_your_own_is_anything_with_a_loss():
    @dataclass
    class Mine:
        loss: Tensor
        predictions: Tensor
        targets: Tensor

    class Line(nn.Linear):
        def train_step(self, batch):
            predictions = self(batch[0])
            return Mine(F.mse_loss(predictions, batch[1]), predictions, batch[1])

    x = torch.randn(64, 3)
    learner = stoker.Learner(Line(3, 1), lr=0.05, metrics=[metrics.MAE()], seed=0)
    fitted = learner.fit((x, x.sum(1, keepdim=True)), epochs=2, show=False)
    assert {"train/loss", "train/mae"} <= set(fitted.history.columns)


# `impl TrainStep` and `impl ValidStep`: two steps, each asked in its own phase.
def test_train_step_and_valid_step_are_asked_each_in_its_phase():
    asked = fit(epochs=1).model.asked
    assert [step for step, _, _ in asked] == ["train"] * 10 + ["valid"] * 3


# "The autodiff functionality is provided through the type system, making it almost impossible to forget".
def test_validation_runs_without_dropout_and_without_autograd():
    for step, trains, records in fit(epochs=1).model.asked:
        assert trains == (step == "train") and records == (step == "train")


# "The gradients are not stored alongside each tensor parameter but are returned by the backward pass".
def test_fit_leaves_nothing_in_grad():
    assert all(parameter.grad is None for parameter in fit().model.parameters())


# "Gradients of a parameter can be obtained with the grad function", "useful when debugging": also inside fit.
def test_the_gradient_of_a_parameter_can_be_asked_for():
    model, batch = CONFIG.model.init(), next(iter(loader(TRAIN)))
    grads = stoker.backward(model.train_step(batch).loss, model)
    assert grads[model.linear1.weight].shape == model.linear1.weight.shape
    seen = []
    look = stoker.callbacks.on(
        train_batch_after_backward=lambda ctx: seen.append(ctx.grads[ctx.model.linear1.weight].norm().item())
    )
    fit(epochs=1, callbacks=[look])
    assert len(seen) == 10 and min(seen) > 0


# `#[derive(Config)]`, with defaults; `config.save(artifact_dir/config.json)`.
def test_the_config_has_defaults_and_is_saved_with_the_run(tmp_path):
    assert (CONFIG.epochs, CONFIG.batch_size, CONFIG.seed) == (2, 64, 42)
    fit(CONFIG, run=tmp_path / "digits")
    assert TrainingConfig.load(tmp_path / "digits" / "config.json") == CONFIG


# `create_artifact_dir`: it removes what was there. Here nothing is removed in silence: the old run is refused by name.
def test_a_directory_that_holds_a_run_is_refused(tmp_path):
    fit(run=tmp_path / "digits", epochs=1)
    with pytest.raises(stoker.RunExists, match="digits"):
        fit(run=tmp_path / "digits", epochs=1)


# "All checkpoints, logging and metrics will be stored under this directory" (checkpoints: with the next issue).
def test_logs_and_metrics_are_stored_in_the_run_directory(tmp_path):
    fitted = fit(run=tmp_path / "digits")
    assert {"events.jsonl", "run.json", "log.txt"} <= {path.name for path in (tmp_path / "digits").iterdir()}
    again = Record.open(tmp_path / "digits")
    assert again.series("valid/accuracy") == fitted.history["valid/accuracy"]
    facts = json.loads((tmp_path / "digits" / "run.json").read_text())
    assert facts["seed"] == 42


# `B::seed(config.seed)`.
def test_the_seed_makes_the_run_repeatable():
    first, second = fit(), fit()
    assert first.history.to_dict() == second.history.to_dict()
    other = fit(CONFIG.replace(seed=43))
    assert other.history["train/loss"] != first.history["train/loss"]


# `DataLoaderBuilder::new(batcher).batch_size(..).shuffle(seed).num_workers(..).build(dataset)`.
def test_loaders_with_a_batcher_a_seed_and_workers_give_the_same_run():
    alone, helped = fit(epochs=1), fit(CONFIG.replace(workers=2), epochs=1)
    assert alone.history.to_dict() == helped.history.to_dict()


# `.metric_train_numeric(..)` and `.metric_valid_numeric(..)`: a metric for one phase.
def test_a_metric_can_be_for_training_or_validation_only():
    chosen = [metrics.Accuracy(on="train"), metrics.TopKAccuracy(2, on="valid")]
    columns = set(fit(learner=learner_of(metrics=chosen), epochs=1).history.columns)
    assert columns == {"train/loss", "train/accuracy", "valid/loss", "valid/top2_accuracy"}


# `LossMetric`: asked for by name it adds nothing, since the loss is always counted.
def test_the_loss_metric_may_be_asked_for_and_is_counted_once():
    fitted = fit(learner=learner_of(metrics=[metrics.Accuracy(), metrics.Loss()]), epochs=1)
    assert sorted(fitted.history.columns) == ["train/accuracy", "train/loss", "valid/accuracy", "valid/loss"]


# `.devices(vec![device])`.
def test_the_device_can_be_named():
    fitted = fit(learner=learner_of(device="cpu"), epochs=1)
    assert fitted.record.events_of("begin")[0].extra["device"] == "cpu"


# `.num_epochs(config.num_epochs)`.
def test_fit_trains_for_the_number_of_epochs():
    fitted = fit(epochs=3)
    assert (fitted.epochs, fitted.updates, len(fitted.history)) == (3, 30, 3)


# `.summary()`: the model with its parameters, and each metric with its best.
def test_there_is_a_summary_of_the_model_and_of_the_run():
    fitted = fit()
    told = str(stoker.summary(fitted.model, next(iter(loader(TRAIN))).images))
    assert "linear1" in told and f"{784 * 32 + 32:,}" in told
    assert f"valid/loss {fitted.best.value:.4g}" in repr(fitted) and "valid/accuracy" in repr(fitted)


# "When providing a float, it is automatically transformed into a constant learning rate scheduler".
def test_a_float_is_a_constant_schedule():
    number, constant = fit(), fit(learner=learner_of(lr=schedule.constant(CONFIG.lr)))
    assert number.history.to_dict() == constant.history.to_dict()


# "The third argument should actually be a learning rate scheduler", which is not part of the optimizer.
def test_the_learning_rate_is_a_schedule_and_no_part_of_the_optimizer():
    assert "lr" not in CONFIG.optimizer.to_dict()
    chosen = [metrics.LearningRate()]
    fitted = fit(learner=learner_of(lr=schedule.linear(1e-2, 0.0, steps=20), metrics=chosen))
    assert fitted.history["lr"] == [pytest.approx(1e-2 * (1 - 9 / 20)), pytest.approx(1e-2 * (1 - 19 / 20))]


# "The trained model is returned by the fit method": it has learned.
def test_fit_returns_the_trained_model():
    fitted = fit(CONFIG.replace(lr=3e-3), epochs=6)
    assert isinstance(fitted.model, Model) and fitted.history["valid/accuracy"][-1] > 0.6
    assert fitted.evaluate(loader(TEST))["accuracy"] == fitted.history["valid/accuracy"][fitted.best.epoch - 1]


# "Saved using the CompactRecorder": MessagePack, floats of 16 bits; other formats, with or without compression.
@pytest.mark.parametrize("format", ["msgpack", "safetensors", "json"])
@pytest.mark.parametrize("compress", [False, True])
def test_the_trained_weights_are_saved_compactly_in_any_format(tmp_path, format, compress):
    config = CONFIG.replace(model=ModelConfig(num_classes=10, hidden_size=4))
    model = fit(config, epochs=1).model
    path = stoker.save(model, tmp_path / "model", format=format, precision="half", compress=compress)
    restored = stoker.load(config.model.init(), path)
    torch.testing.assert_close(restored.linear1.weight, model.linear1.weight, rtol=1e-3, atol=1e-6)


# "Any backend, regardless of precision, can load recorded data of any kind".
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("precision", ["full", "half", "double"])
def test_weights_of_any_precision_load_into_a_model_of_any_precision(tmp_path, precision, dtype):
    model = CONFIG.model.init()
    path = stoker.save(model, tmp_path / "model", precision=precision)
    restored = stoker.load(CONFIG.model.init().to(dtype), path)
    assert restored.linear2.weight.dtype == dtype
    torch.testing.assert_close(restored.linear2.weight.float(), model.linear2.weight, rtol=1e-2, atol=1e-4)
