"""Settings that differ when a run is resumed: errors, warnings, and resume="force"."""

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker import Checkpoint, StateMismatch, metrics, optim, schedule
from tests.learner.fits import Net, fit, killed_run, learner, list_files, result_of, samples, stop_after, texts

RATE = schedule.cosine(1e-2, updates=80)


def changed(**settings):
    return {"of": learner(**{"lr": RATE, **settings})}


# What changes, the lines of the error, and the warning with force.
CASES = {
    "seed": (changed(seed=4), ["order: 3 before, 4 now", "seed: 3 before, 4 now"], "epoch 2 starts again"),
    "optimizer": (
        changed(optimizer=optim.SGD(momentum=0.9)),
        ["optimizer: AdamW(fused=True) before, SGD(momentum=0.9, fused=True) now"],
        "the optimizer starts from scratch: the saved state is that of another optimizer",
    ),
    "settings of the optimizer": (
        changed(optimizer=optim.AdamW(weight_decay=0.5)),
        ["optimizer: AdamW(fused=True) before, AdamW(weight_decay=0.5, fused=True) now"],
        None,
    ),
    "samples": ({"data": samples(100)}, ["samples: 96 before, 100 now", "batches: 6 before, 7 now"], "epoch 2 starts"),
    "batch size": ({"batch_size": 8}, ["batches: 6 before, 12 now", "batch_size: 16 before, 8 now"], "epoch 2 starts"),
    "accumulate": (changed(accumulate=2), ["accumulate: 1 before, 2 now"], "epoch 2 starts again"),
    "fp16": (changed(precision="fp16"), ["precision: fp32 before, fp16 now"], None),
    "ema": (changed(ema=0.9), ["ema: none before, 0.9 now"], None),
    "metrics": (
        changed(metrics=[metrics.Accuracy(), metrics.GradientNorm()]),
        ["metrics: none before, accuracy, gradient_norm now"],
        "the metrics of epoch 2 only include its batches from here on",
    ),
    "frozen": (
        changed(model=lambda: stoker.freeze(Net(), "head")),
        [
            "model: head.weight is float32 [4, 12], frozen, was float32 [4, 12]",
            "model: head.bias is float32 [4], frozen, was float32 [4]",
        ],
        None,
    ),
}
ADVICE = "\nUse the same settings, or another run directory"


@pytest.mark.parametrize("what", CASES)
def test_other_settings_are_an_error_that_lists_them_and_force_continues(tmp_path, what):
    settings, lines, done = CASES[what]
    left, _ = killed_run(tmp_path)
    (left / ".events.jsonl.lock").unlink()  # of the killed process
    before = list_files(left)
    with pytest.raises(StateMismatch) as caught:
        fit(left, **settings)
    text = "\n  ".join(["the run was started with other settings", *lines])
    assert str(caught.value) == f'{text}{ADVICE}, or continue anyway with resume="force"'
    now = list_files(left)
    assert {name: now[name] for name in now if name != "."} == {name: before[name] for name in before if name != "."}

    forced = fit(left, resume="force", **settings)
    warnings = texts(forced.record)
    assert warnings[: len(lines)] == [f"{line}; the run continues with the new setting" for line in lines]
    rest = warnings[len(lines) :]
    assert len(rest) == (done is not None) and all(text.startswith(done) for text in rest)
    assert forced.epochs == 3 and forced.stopped == "Completed 3 epochs"
    assert [event.extra["checkpoint"] for event in forced.record.events_of("resume")] == ["00000008"]
    assert len(forced.history["train/loss"]) == len(forced.history["valid/loss"]) == 3
    # From here on these are the settings of the run.
    again = fit(left, epochs=4, **settings)
    assert again.epochs == 4 and texts(again.record) == warnings
    with pytest.raises(StateMismatch):
        fit(left, epochs=4)
    assert fit(left, epochs=5, resume="force").epochs == 5, "the other direction"


MODELS = {
    "shape": (
        lambda: Net(classes=5),
        [
            "model: head.weight is float32 [5, 12], was float32 [4, 12]",
            "model: head.bias is float32 [5], was float32 [4]",
        ],
    ),
    "another": (
        lambda: nn.Sequential(*(nn.Linear(6, 6) for _ in range(9)), nn.Linear(6, 4)),
        [
            *(
                f"model: {n}.{kind}"
                for n in range(4)
                for kind in ("weight is new, float32 [6, 6]", "bias is new, float32 [6]")
            ),
            "model: and 18 more",
        ],
    ),
}


@pytest.mark.parametrize("what", MODELS)
def test_another_model_cannot_be_forced(tmp_path, what):
    model, lines = MODELS[what]
    left, whole = killed_run(tmp_path)
    checkpoints = list_files(left / "checkpoints")
    with pytest.raises(StateMismatch) as caught:
        fit(left, **changed(model=model))
    assert str(caught.value) == "\n  ".join(["the run was started with other settings", *lines]) + ADVICE
    with pytest.raises(StateMismatch) as caught:
        fit(left, resume="force", **changed(model=model))
    assert str(caught.value).startswith("the state does not match the model\n")
    assert 'resume="force" cannot load the weights of another model: use the same model' in str(caught.value)
    assert list_files(left / "checkpoints") == checkpoints and result_of(fit(left)) == whole, "nothing is lost"


def test_a_finished_run_is_not_returned_for_other_settings(tmp_path):
    fit(tmp_path / "run")
    before = list_files(tmp_path / "run")
    with pytest.raises(StateMismatch, match="seed: 3 before, 4 now"):
        fit(tmp_path / "run", **changed(seed=4))
    assert list_files(tmp_path / "run") == before


def test_force_freezes_what_the_present_model_freezes(tmp_path):
    left, _ = killed_run(tmp_path)
    forced = fit(left, resume="force", keep="last", **changed(model=lambda: stoker.freeze(Net(), "head")))
    before = stoker.load_for_inference(tmp_path / "killed not", Net())
    assert not any(each.requires_grad for each in forced.model.head.parameters())
    assert all(each.requires_grad for each in forced.model.body.parameters())
    assert not torch.equal(forced.model.head.weight, before.head.weight), "it has the weights of the checkpoint"


def test_force_keeps_a_complete_epoch_and_equal_settings(tmp_path):
    fit(tmp_path / "run", epochs=4, callbacks=[stop_after(2)])
    forced = fit(tmp_path / "run", epochs=5, resume="force", **changed(seed=9))
    assert forced.epochs == 5 and not any("starts again" in text for text in texts(forced.record))
    left, whole = killed_run(tmp_path)
    forced = fit(left, resume="force")
    assert result_of(forced) == whole and texts(forced.record) == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (changed(lr=1e-3), "lr: schedule.cosine(0.01, updates=80) before, 0.001 now"),
        (changed(clip_norm=1.0), "clip_norm: none before, 1.0 now"),
        (changed(on_nan="skip"), "on_nan: stop before, skip now"),
        ({"validate_every": 4}, "validate_every: none before, 4 now"),
        ({"keep": "last"}, "keep: best before, last now"),
        ({"valid": None}, "valid: valid (40 samples) before, none now"),
        ({"valid": {"valid": samples(8), "b": samples(9)}}, "valid: valid (40 samples) before, valid (8 samples), b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_may_differ_cause_a_warning(tmp_path, settings, line):
    left, _ = killed_run(tmp_path)
    resumed = fit(left, **settings)
    (warning,) = texts(resumed.record)
    assert warning.startswith(line) and warning.endswith("now; the run continues with the new setting")
    assert f"warning: {warning}" in (left / "log.txt").read_text()


MAPPED = {"head": 1e-3, "*": RATE}


@pytest.mark.parametrize(
    ("before", "now"),
    [(RATE, MAPPED), (MAPPED, RATE), (MAPPED, {"body": 1e-3, "head": 1e-2, "*": 1.0}), (MAPPED, {"*": 1e-3})],
    ids=["to a mapping", "to a schedule", "to three", "to one"],
)
@pytest.mark.parametrize(
    "batch", [4, pytest.param(6, marks=pytest.mark.soak)], ids=["inside an epoch", "before the validation"]
)
def test_other_learning_rates_cause_a_warning_in_any_form(tmp_path, before, now, batch):
    given = {"checkpoint": Checkpoint(every=1, background=False)}
    left, _ = killed_run(tmp_path, 2, batch, **changed(lr=before, metrics=[metrics.LearningRate()]), **given)
    resumed = fit(left, **changed(lr=now, metrics=[metrics.LearningRate()]), **given)
    (warning,) = texts(resumed.record)
    assert warning.startswith("lr: ") and resumed.epochs == 3


def mse(scale=1.0):
    def loss(predictions, targets):
        return scale * F.cross_entropy(predictions, targets)

    return loss


def smooth(predictions, targets, smoothing=0.1):
    """What it computes is compared, and not this text."""
    return F.cross_entropy(predictions, targets, label_smoothing=smoothing)


def hard(predictions, targets, smoothing=0.0):
    return F.cross_entropy(predictions, targets, label_smoothing=smoothing)


class Scaled(Net):
    def forward(self, x):
        return super().forward(x) * 1.0


class Twice(Net):
    def forward(self, x):
        return super().forward(x) * 2.0


Twice.__name__ = Twice.__qualname__ = "Scaled"
hard.__qualname__ = smooth.__qualname__


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ({"loss": mse()}, {"loss": mse(2.0)}, "the loss"),
        ({"loss": lambda p, t: F.cross_entropy(p, t)}, {"loss": lambda p, t: F.cross_entropy(p, t) * 2}, "the loss"),
        ({"loss": smooth}, {"loss": hard}, "the loss"),
        ({"lr": lambda update: 1e-2}, {"lr": lambda update: 1e-3}, "the learning rate"),
        ({"model": Scaled}, {"model": Twice}, "Scaled"),
    ],
    ids=["a closure", "a lambda", "a default", "a learning rate", "a model"],
)
def test_code_that_has_changed_causes_a_warning(tmp_path, before, now, what):
    left, whole = killed_run(tmp_path, of=learner(**before))
    text = f"the code of {what} has changed; the run continues with the new setting"
    shutil.copytree(left, tmp_path / "same")
    assert texts(fit(left, of=learner(**now)).record) == [text]
    resumed = fit(tmp_path / "same", of=learner(**before))
    assert texts(resumed.record) == [] and result_of(resumed) == whole


def dataloader(seed=None):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*samples(40)), batch_size=8, shuffle=True, generator=generator)


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        (dataloader(1), samples(40), "valid: valid (5 batches) before, valid (40 samples) now"),
        (samples(40), dataloader(1), "valid: valid (40 samples) before, valid (5 batches) now"),
    ],
    ids=["to tensors", "from tensors"],
)
def test_the_validation_may_change_from_or_to_a_dataloader(tmp_path, before, now, line):
    left, _ = killed_run(tmp_path, valid=before)
    assert texts(fit(left, valid=now).record) == [f"{line}; the run continues with the new setting"]


@pytest.mark.parametrize("every", [1, "epoch"], ids=["inside an epoch", "between epochs"])
def test_a_dataloader_for_training_with_other_generators_needs_force(tmp_path, every):
    settings = {"batch_size": None, "checkpoint": Checkpoint(every=every, background=False)}
    left, _ = killed_run(tmp_path, data=dataloader(1), **settings)
    with pytest.raises(StateMismatch, match="generators: generator before, none now"):
        fit(left, data=dataloader(), **settings)
    forced = fit(left, data=dataloader(), resume="force", **settings)
    assert forced.epochs == 3 and len(forced.history["train/loss"]) == 3


@pytest.mark.parametrize("is_zipped", [False, True])
def test_other_buckets_or_weights_of_samples_need_force(tmp_path, is_zipped):
    (x, y), many = samples(1200), range(1200)

    def loader(by):
        options = {"sampling_weights": by, "shuffle": 3} if is_zipped else {"bucket_by": by, "shuffle": 3}
        own = stoker.data.Loader(list(zip(x, y, strict=True)), batch_size=200, **options)
        return stoker.data.Loader(stoker.data.zip(a=own, b=own)) if is_zipped else own

    def step(model, batch):
        x, y = batch["a"] if is_zipped else batch
        return F.cross_entropy(model(x), y)

    settings = {"of": learner(loss=None, step=step, lr=RATE), "valid": None, "batch_size": None}
    before = loader([1 + number % 5 for number in many])
    now = loader([1 + number % 5 + (number == 600) for number in many])  # as a tensor, its repr is the same
    left, _ = killed_run(tmp_path, data=before, **settings)
    line = "sources: .* before" if is_zipped else r"buckets: \w{8} before, \w{8} now"
    with pytest.raises(StateMismatch, match=line):
        fit(left, data=now, **settings)
    forced = fit(left, data=now, resume="force", **settings)
    assert "epoch 2 starts again: its batches have changed" in texts(forced.record)


def test_validation_metrics_may_change(tmp_path):
    left, whole = killed_run(tmp_path)
    resumed = fit(left, **changed(metrics=[metrics.Accuracy(on="valid"), metrics.Throughput()]))
    assert result_of(resumed)["weights"] == whole["weights"] and texts(resumed.record) == []
    assert "valid/accuracy" in resumed.history.columns


def test_the_repr_of_the_model_is_compared(tmp_path):
    """The rate of a dropout is not a parameter, and no checkpoint can restore it."""
    left, whole = killed_run(tmp_path)

    def other():
        model = Net()
        model.body[3].p = 0.5
        return model

    resumed = fit(left, of=learner(other, lr=RATE))
    (warning,) = texts(resumed.record)
    assert "- (3): Dropout(p=0.2, inplace=False), + (3): Dropout(p=0.5, inplace=False)" in warning
    assert result_of(resumed) != whole


@pytest.mark.parametrize("dynamic", [None, pytest.param(False, marks=pytest.mark.soak)])
def test_a_compiled_model_with_dynamic_shapes_causes_a_warning(tmp_path, dynamic):
    def compiled():
        torch.manual_seed(0)
        return torch.compile(Net(), backend="eager", dynamic=dynamic)

    left, whole = killed_run(tmp_path, of=learner(compiled))
    resumed = fit(left, of=learner(compiled))
    assert result_of(resumed) == whole
    found = [text for text in texts(resumed.record) if "torch.compile(..., dynamic=False)" in text]
    assert len(found) == (dynamic is None)
