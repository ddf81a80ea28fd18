"""What has to be the same for a run to go on, what may differ, and what force makes of it."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker import Checkpoint, StateMismatch, metrics, optim, schedule
from stoker.learner._identity import changes, other_data, other_metrics
from tests.learner.runs import came_out, files, fit, killed, names, texts, until
from tests.engine.fits import Net, learner, samples

RATE = schedule.cosine(1e-2, steps=40)


def changed(**settings):
    return {"of": learner(**{"lr": RATE, **settings})}


# What is changed between two starts, what the error says of it, and what force says that it did.
CASES = {
    "seed": (changed(seed=4), ["order: 3 before, 4 now", "seed: 3 before, 4 now"], "epoch 2 begins anew"),
    "optimizer": (
        changed(optimizer=optim.SGD(momentum=0.9)),
        ["optimizer: AdamW(fused=True) before, SGD(momentum=0.9, fused=True) now"],
        "the optimizer begins anew: its state is of another one",
    ),
    "settings of the optimizer": (
        changed(optimizer=optim.AdamW(weight_decay=0.5)),
        ["optimizer: AdamW(fused=True) before, AdamW(weight_decay=0.5, fused=True) now"],
        None,
    ),
    "samples": ({"data": samples(100)}, ["samples: 96 before, 100 now", "batches: 6 before, 7 now"], "epoch 2 begins"),
    "batch size": ({"batch_size": 8}, ["batches: 6 before, 12 now", "batch_size: 16 before, 8 now"], "epoch 2 begins"),
    "accumulate": (changed(accumulate=2), ["accumulate: 1 before, 2 now"], "epoch 2 begins anew"),
    "precision": (changed(precision="bf16"), ["precision: fp32 before, bf16 now"], None),
    "fp16": (changed(precision="fp16"), ["precision: fp32 before, fp16 now"], None),
    "ema": (changed(ema=0.9), ["ema: none before, 0.9 now"], None),
    "metrics": (
        changed(metrics=[metrics.Accuracy(), metrics.GradientNorm()]),
        ["metrics: none before, accuracy, gradient_norm now"],
        "the numbers of epoch 2 count its batches from here on only",
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
SHAPES = {
    "shape": (
        changed(model=lambda: Net(classes=5)),
        [
            "model: head.weight is float32 [5, 12], was float32 [4, 12]",
            "model: head.bias is float32 [5], was float32 [4]",
        ],
    ),
    "another": (
        changed(model=lambda: nn.Linear(6, 4)),
        [
            "model: weight is new, float32 [4, 6]",
            "model: bias is new, float32 [4]",
            "model: body.0.weight is gone, float32 [12, 6]",
            "model: body.0.bias is gone, float32 [12]",
            "model: body.1.weight is gone, float32 [12]",
            "model: body.1.bias is gone, float32 [12]",
            "model: head.weight is gone, float32 [4, 12]",
            "model: head.bias is gone, float32 [4]",
        ],
    ),
}
FIXED = {**{name: case[:2] for name, case in CASES.items()}, **SHAPES}


def refusal(lines, name=""):
    advice = "" if name in SHAPES else ', or go on all the same with resume="force"'
    return "\n  ".join(["this is not the training that the run began with", *lines]) + (
        f"\nPut it back as it was, choose another run={advice}"
    )


@pytest.mark.parametrize("what", FIXED)
def test_another_training_is_refused_with_what_has_changed(tmp_path, what):
    settings, lines = FIXED[what]
    left, whole = killed(tmp_path)
    (left / ".events.jsonl.lock").unlink()  # a note of the process that was killed
    before = files(left)
    with pytest.raises(StateMismatch) as caught:
        fit(left, **settings)
    assert str(caught.value) == refusal(lines, what)
    now = files(left)
    assert {name: now[name] for name in now if name != "."} == {name: before[name] for name in before if name != "."}
    assert came_out(fit(left)) == whole, "and nothing is lost"


@pytest.mark.parametrize("what", ["seed", "shape"])
def test_a_run_that_is_over_is_not_given_to_another_training(tmp_path, what):
    settings, lines = FIXED[what]
    fit(tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(StateMismatch) as caught:
        fit(tmp_path / "run", **settings)
    assert str(caught.value) == refusal(lines, what) and files(tmp_path / "run") == before


@pytest.mark.parametrize("what", CASES)
def test_force_goes_on_and_says_with_what(tmp_path, what):
    settings, lines, done = CASES[what]
    left, _ = killed(tmp_path)
    forced = fit(left, resume="force", **settings)
    told = texts(forced.record)
    assert told[: len(lines)] == [f"{line}; the run goes on with that" for line in lines]
    rest = told[len(lines) :]
    assert len(rest) == (done is not None) and all(text.startswith(done) for text in rest)
    assert forced.epochs == 3 and forced.stopped == "Completed 3 epochs"
    assert [event.extra["checkpoint"] for event in forced.record.events_of("resume")] == ["00000008"]
    assert len(forced.history["train/loss"]) == len(forced.history["valid/loss"]) == 3
    # From here on it is this training that the run has.
    again = fit(left, epochs=4, **settings)
    assert again.epochs == 4 and texts(again.record) == told
    with pytest.raises(StateMismatch):
        fit(left, epochs=5)


@pytest.mark.parametrize("what", SHAPES)
def test_force_has_no_way_with_a_model_that_does_not_fit(tmp_path, what):
    left, whole = killed(tmp_path)
    before = names(left)
    with pytest.raises(StateMismatch) as caught:
        fit(left, resume="force", **SHAPES[what][0])
    assert str(caught.value).startswith("the state does not match the model\n")
    assert str(caught.value).endswith(
        'resume="force" can\'t go on with another model: put it back as it was, or choose another run='
    )
    assert names(left) == before and came_out(fit(left)) == whole


@pytest.mark.parametrize("what", ["ema", "fp16", "metrics", "frozen"])
def test_force_the_other_way_round(tmp_path, what):
    left, _ = killed(tmp_path, **CASES[what][0])
    assert fit(left, resume="force").epochs == 3


def test_force_freezes_what_is_frozen_now(tmp_path):
    left, _ = killed(tmp_path)
    forced = fit(left, resume="force", keep="last", **changed(model=lambda: stoker.freeze(Net(), "head")))
    before = stoker.load_for_inference(tmp_path / "killed not", Net())
    assert not any(each.requires_grad for each in forced.model.head.parameters())
    assert all(each.requires_grad for each in forced.model.body.parameters())
    assert not torch.equal(forced.model.head.weight, before.head.weight), "it is as it was at the checkpoint"


def test_force_at_the_end_of_an_epoch_keeps_the_epoch(tmp_path):
    fit(tmp_path / "run", epochs=4, callbacks=[until(2)])
    forced = fit(tmp_path / "run", epochs=5, resume="force", **changed(seed=9))
    assert forced.epochs == 5 and not any("begins anew" in text for text in texts(forced.record))


def test_force_changes_nothing_where_nothing_differs(tmp_path):
    left, whole = killed(tmp_path)
    forced = fit(left, resume="force")
    assert came_out(forced) == whole and texts(forced.record) == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (changed(lr=1e-3), "lr: schedule.cosine(0.01, steps=40) before, 0.001 now"),
        (changed(clip_norm=1.0), "clip_norm: none before, 1.0 now"),
        (changed(clip_value=0.5), "clip_value: none before, 0.5 now"),
        (changed(on_nan="skip"), "on_nan: stop before, skip now"),
        ({"validate_every": 4}, "validate_every: none before, 4 now"),
        ({"keep": "last"}, "keep: best before, last now"),
        ({"valid": samples(30)}, "valid: valid (40 samples) before, valid (30 samples) now"),
        ({"valid": None}, "valid: valid (40 samples) before, none now"),
        ({"valid": {"a": samples(8), "b": samples(9)}}, "valid: valid (40 samples) before, a (8 samples), b (9 sam"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_differ_is_a_warning(tmp_path, settings, line):
    left, _ = killed(tmp_path)
    resumed = fit(left, **settings)
    (warning,) = texts(resumed.record)
    assert warning.startswith(line) and warning.endswith("now; the run goes on with that")
    assert f"warning: {warning}" in (left / "log.txt").read_text()


MAPPED = {"head": 1e-3, "*": RATE}


@pytest.mark.parametrize(
    ("before", "now"),
    [(RATE, MAPPED), (MAPPED, RATE), (MAPPED, {"body": 1e-3, "head": 1e-2, "*": 1.0}), (MAPPED, {"*": 1e-3})],
    ids=["to a mapping", "to a schedule", "to three", "to one"],
)
@pytest.mark.parametrize("batch", [4, 6], ids=["inside an epoch", "before the validation"])
def test_other_learning_rates_are_a_warning_whatever_their_form(tmp_path, before, now, batch):
    given = {"checkpoint": Checkpoint(every=1, background=False)}
    left, _ = killed(tmp_path, 2, batch, **changed(lr=before, metrics=[metrics.LearningRate()]), **given)
    resumed = fit(left, **changed(lr=now, metrics=[metrics.LearningRate()]), **given)
    (warning,) = texts(resumed.record)
    assert warning.startswith("lr: ") and resumed.epochs == 3


def dataloader(seed=None):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*samples(40)), batch_size=8, shuffle=True, generator=generator)


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        (dataloader(1), None, "valid: valid (5 batches) before, none now"),
        (dataloader(1), samples(40), "valid: valid (5 batches) before, valid (40 samples) now"),
        (samples(40), dataloader(1), "valid: valid (40 samples) before, valid (5 batches) now"),
    ],
    ids=["gone", "to tensors", "from tensors"],
)
def test_a_dataloader_of_the_validation_may_come_and_go(tmp_path, before, now, line):
    left, _ = killed(tmp_path, valid=before)
    assert texts(fit(left, valid=now).record) == [f"{line}; the run goes on with that"]


@pytest.mark.parametrize("epoch", ["inside", "between"])
def test_a_dataloader_of_the_training_with_other_generators(tmp_path, epoch):
    saving = Checkpoint(every="epoch" if epoch == "between" else 1, background=False)
    settings = {"batch_size": None, "checkpoint": saving}
    left, _ = killed(tmp_path, data=dataloader(1), **settings)
    with pytest.raises(StateMismatch, match="generators: generator before, none now"):
        fit(left, data=dataloader(), **settings)
    forced = fit(left, data=dataloader(), resume="force", **settings)
    assert forced.epochs == 3 and len(forced.history["train/loss"]) == 3


def test_a_metric_of_the_validation_only_may_come_and_go(tmp_path):
    left, whole = killed(tmp_path)
    resumed = fit(left, **changed(metrics=[metrics.Accuracy(on="valid"), metrics.Throughput()]))
    assert came_out(resumed)["weights"] == whole["weights"] and texts(resumed.record) == []
    assert "valid/accuracy" in resumed.history.columns


def test_other_weights_of_the_same_model_are_the_same_training(tmp_path):
    """What the model began with is the run's, and not what the script makes when it is started again."""
    left, whole = killed(tmp_path)
    assert came_out(fit(left, of=learner(lambda: Net().requires_grad_(True), lr=RATE))) == whole


# --- the comparison itself


def test_lines():
    before, now = {"a": 1, "b": None, "c": "x"}, {"a": 2, "b": 3.5, "c": "x", "d": True}
    assert changes(before, now) == ["a: 1 before, 2 now", "b: none before, 3.5 now", "d: none before, True now"]
    assert changes(now, now) == changes(before, before) == []


def test_a_model_with_many_differences_is_told_in_short():
    now = {f"layer{number}.weight": "float32 [1]" for number in range(20)}
    lines = changes({"model": {}}, {"model": now})
    assert lines[0] == "model: layer0.weight is new, float32 [1]"
    assert len(lines) == 9 and lines[-1] == "model: and 12 more"


def test_what_the_data_and_the_metrics_are():
    same = {"samples": 1, "batches": 1, "batch_size": 1, "order": 0, "generators": None, "seed": 0, "accumulate": 1}
    same["metrics"] = None
    assert not other_data(same, same) and not other_metrics(same, same)
    for name in ("samples", "batches", "batch_size", "order", "generators", "seed", "accumulate"):
        assert other_data({**same, name: 7}, same)
    assert other_metrics({**same, "metrics": "accuracy"}, same)


def test_what_a_model_says_of_itself_is_compared(tmp_path):
    """A dropout's share is no parameter, and no checkpoint can put it back."""
    left, whole = killed(tmp_path)

    def other():
        model = Net()
        model.body[3].p = 0.5
        return model

    resumed = fit(left, of=learner(other, lr=RATE))
    (warning,) = texts(resumed.record)
    assert "- (3): Dropout(p=0.2, inplace=False), + (3): Dropout(p=0.5, inplace=False)" in warning
    assert came_out(resumed) != whole


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_a_compiled_model_whose_code_depends_on_what_came_before_is_told(tmp_path, dynamic):
    def compiled():
        torch.manual_seed(0)
        return torch.compile(Net(), backend="eager", dynamic=dynamic)

    left, whole = killed(tmp_path, of=learner(compiled))
    resumed = fit(left, of=learner(compiled))
    assert came_out(resumed) == whole
    told = [text for text in texts(resumed.record) if "torch.compile(..., dynamic=False)" in text]
    assert len(told) == (dynamic is None)
