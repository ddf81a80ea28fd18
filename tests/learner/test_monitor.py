"""`fit(monitor=..., mode=...)`: which metric decides the best weights, and everything that follows it."""

import json
import math
import re
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Checkpoint, InvalidArgument, NoSuchMetric, callbacks, metrics
from stoker.cli import main
from tests.learner.fits import (
    checkpoint_names,
    copy_state,
    fit,
    killed_run,
    learner,
    result_of,
    same,
    samples,
    saved_checkpoints,
    texts,
)

SETS = {"near": samples(40), "far": samples(60)}


class Watch(stoker.Callback):
    """Copies weights and metrics at every end of a training epoch and of a validation: (update, weights, metrics)."""

    transient = True

    def __init__(self):
        self.train, self.valid = [], []

    def on_train_end(self, ctx):
        self.train.append((ctx.update, copy_state(ctx.model), dict(ctx.metrics)))

    def on_validation(self, ctx):
        self.valid.append((ctx.update, copy_state(ctx.model), dict(ctx.metrics)))


def noisy(**settings):
    """A learner that gets better and worse."""
    return learner(
        **{
            "metrics": [metrics.Accuracy(), metrics.FBeta(average="macro", on="valid"), metrics.Recall("none")],
            "lr": 0.1,
        }
        | settings
    )


CASES = [
    ("near/accuracy", None, max, {}),
    ("near/accuracy", "min", min, {}),
    ("far/f1_macro", None, max, {"validate_every": 4}),
    ("far/loss", "max", max, {}),
    ("near/loss", None, min, {}),
    ("train/loss", None, min, {}),
    ("train/accuracy", "min", min, {"validate_every": 4}),
    ("train/accuracy", "min", min, {"valid": None}),
    ("loss", None, min, {"valid": SETS["far"]}),
    ("recall/2", None, max, {"valid": SETS["far"]}),
]


@pytest.mark.parametrize(("monitor", "mode", "choose", "settings"), CASES)
def test_the_best_weights_and_everything_that_is_reported_follow_the_monitor(monitor, mode, choose, settings):
    watch = Watch()
    fitted = fit(
        of=noisy(),
        epochs=5,
        callbacks=[watch],
        monitor=monitor,
        mode=mode,
        **{"valid": SETS, "show": False, **settings},
    )
    name = monitor if monitor.partition("/")[0] in ("train", *SETS) else f"valid/{monitor}"
    seen = watch.train if name.startswith("train/") else watch.valid
    update, weights, values = choose(seen, key=lambda each: each[2][name])  # the first of equal ones
    best = fitted.best
    assert (best.name, best.update, best.value) == (name, update, values[name])
    assert same(fitted.model, weights) and not same(fitted.model, seen[-1][1])
    assert fitted.history.best == best and fitted.record.summary()["best"] == best._asdict()
    assert f"* best {name}" in str(fitted.history) and f"best: {name}" in str(fitted)


def test_the_default_is_the_loss_of_the_first_validation_set():
    given, default = (fit(of=noisy(), valid=SETS, **more) for more in ({"monitor": "near/loss"}, {}))
    assert result_of(given) == result_of(default) and default.best.name == "near/loss"
    assert fit(of=noisy(), valid=None).best is None


def logs(values, name="score"):
    return callbacks.on(valid_end=lambda ctx: ctx.log(name, values[ctx.epoch - 1]))


@pytest.mark.parametrize(
    ("values", "mode", "epoch"),
    [
        ([math.nan, 1.0, math.nan, 2.0], "min", 2),
        ([math.nan, 1.0, 2.0, math.nan], "max", 3),
        ([1.0, 1.0, 1.0, 1.0], "max", 1),
        ([-math.inf, math.inf, 0.0, math.nan], "max", 2),
        ([math.nan] * 4, "min", None),
    ],
)
def test_nan_is_never_the_best_and_of_equal_values_the_first_is(values, mode, epoch):
    watch = Watch()
    fitted = fit(epochs=4, callbacks=[logs(values), watch], monitor="score", mode=mode)
    assert (fitted.best and fitted.best.epoch) == epoch
    assert same(fitted.model, watch.valid[-1 if epoch is None else epoch - 1][1])
    assert (fitted.history.best and fitted.history.best.epoch) == epoch


def test_callbacks_and_checkpoints_follow_the_monitor_unless_they_name_a_metric(tmp_path):
    values = [3.0, 5.0, 4.0, 4.0, 4.0, 4.0]
    plateau = callbacks.ReduceLROnPlateau(factor=0.5, patience=0)
    fitted = fit(
        tmp_path / "run",
        epochs=6,
        callbacks=[logs(values), callbacks.EarlyStopping(patience=3), plateau],
        monitor="score",
        mode="max",
        checkpoint=Checkpoint(keep_last=1, keep_best=True, background=False),
    )
    assert fitted.stopped.startswith("Early stopping at epoch 5 of 6: score was not better than 5 (epoch 2)")
    assert [text for text in texts(fitted.record, "note") if text.startswith("score is on a plateau at epoch 3")]
    kept = {saved.epoch: saved.values["score"] for saved in saved_checkpoints(tmp_path / "run")}
    assert kept == {2: 5.0, 5: 4.0} and len(checkpoint_names(tmp_path / "run")) == 2
    other = fit(epochs=6, callbacks=[logs(values), callbacks.EarlyStopping("score", direction="min", patience=2)])
    assert other.epochs == 3 and other.best.name == "valid/loss"


def test_a_context_says_what_is_monitored():
    seen = []
    watch = callbacks.on(epoch_end=lambda ctx: seen.append((ctx.monitor, ctx.best and ctx.best.name)))
    fit(epochs=1, callbacks=[watch], of=noisy(), monitor="accuracy")
    fit(epochs=1, callbacks=[watch], valid=None)
    assert seen == [("valid/accuracy", "valid/accuracy"), (None, None)]


class Bias(metrics.Metric):
    """Has no direction."""

    def init(self, device):
        return {"sum": torch.zeros((), device=device)}

    def update(self, state, output):
        return {"sum": state["sum"] + output.predictions.sum()}

    def compute(self, state):
        return state["sum"].item()


ERRORS = [
    ({"monitor": "valid/acc"}, NoSuchMetric, "no such metric; did you mean 'valid/accuracy'"),
    ({"monitor": "valid/map"}, NoSuchMetric, r"no such metric\. The metrics are: "),
    (
        {"monitor": "acc"},
        NoSuchMetric,
        r"monitor='acc'.*no such metric.*The metrics are: train/loss, valid/loss, train",
    ),
    ({"monitor": "train/f1_macro"}, NoSuchMetric, "no such metric; did you mean 'valid/f1_macro'"),
    ({"monitor": "test/loss"}, NoSuchMetric, "did you mean 'train/loss' or 'valid/loss'"),
    ({"monitor": "accuracy", "valid": SETS}, InvalidArgument, "Write 'near/accuracy' or 'far/accuracy'"),
    ({"monitor": "valid/loss", "valid": None}, NoSuchMetric, "nothing is validated: give fit valid="),
    ({"monitor": "valid/bias"}, InvalidArgument, 'whether a larger value is better, give mode="max" or mode="min"'),
    ({"monitor": "lr"}, NoSuchMetric, "no such metric"),
    ({"monitor": "samples_per_second"}, InvalidArgument, "about the whole training, and does not say which weights"),
    ({"monitor": 3}, InvalidArgument, "monitor is the name of a metric, such as"),
    ({"mode": "maximum"}, InvalidArgument, 'mode is "min", "max" or None'),
    ({"mode": "max", "valid": None}, InvalidArgument, "nothing is monitored: give fit valid=..., or monitor="),
    ({"callbacks": [callbacks.EarlyStopping()], "valid": None}, NoSuchMetric, "nothing is validated: give fit valid="),
    ({"checkpoint": Checkpoint(keep_best=True), "valid": None}, NoSuchMetric, "keep_best=True.* nothing is validated"),
]


@pytest.mark.parametrize(("settings", "error", "text"), ERRORS)
def test_a_monitor_that_cannot_be_followed_is_an_error_before_anything_is_trained(tmp_path, settings, error, text):
    model = nn.Linear(6, 4)
    before = copy_state(model)
    measured = [metrics.Accuracy(), metrics.FBeta(average="macro", on="valid"), Bias(), metrics.Throughput()]
    with pytest.raises(error, match=text):
        fit(tmp_path / "run", of=learner(model, metrics=measured), **settings)
    assert same(model, before) and not (tmp_path / "run").exists()


class Model(nn.Linear):
    """Its step returns a number beside the loss."""

    def __init__(self):
        super().__init__(6, 4)

    def train_step(self, batch):
        x, y = batch
        scores = self(x)
        loss = F.cross_entropy(scores, y)
        return Scored(loss, scores.square().mean())


@dataclass
class Scored:
    loss: torch.Tensor
    size: torch.Tensor


def test_a_number_that_a_step_returns_can_be_monitored_if_its_direction_is_given():
    settings = {"of": learner(Model, loss=None), "epochs": 3}
    watch = Watch()
    fitted = fit(callbacks=[watch], monitor="valid/size", mode="min", **settings)
    expected = min(watch.valid, key=lambda each: each[2]["valid/size"])
    assert fitted.best.update == expected[0] and same(fitted.model, expected[1])
    with pytest.raises(InvalidArgument, match=re.escape('give mode="max" or mode="min"')):
        fit(monitor="valid/size", **settings)
    with pytest.raises(NoSuchMetric, match="the first validation did not measure it; did you mean 'valid/size'"):
        fit(monitor="valid/siz", mode="min", **settings)
    with pytest.raises(NoSuchMetric, match="the first epoch did not measure it; did you mean 'train/size'"):
        fit(monitor="train/siz", mode="min", **settings)


@pytest.mark.parametrize("settings", [{"monitor": "accuracy"}, {"monitor": "train/accuracy", "valid": None}])
@pytest.mark.parametrize("batch", [6])
def test_a_killed_run_continues_to_the_same_best_weights(tmp_path, settings, batch):
    left, whole = killed_run(tmp_path, of=noisy(), epochs=4, epoch=3, batch=batch, **settings)
    resumed = fit(left, of=noisy(), epochs=4, **settings)
    assert result_of(resumed) == whole and texts(resumed.record) == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"monitor": "accuracy"}, "monitor: the first validation loss before, valid/accuracy (max) now"),
        ({"mode": "max"}, "monitor: the first validation loss before, valid/loss (max) now"),
    ],
)
def test_a_resumed_run_with_another_monitor_chooses_the_best_from_there_on(tmp_path, settings, line):
    left, _ = killed_run(tmp_path, of=noisy(), epochs=4, epoch=3, callbacks=[callbacks.EarlyStopping(patience=9)])
    watch, stopping = Watch(), callbacks.EarlyStopping(patience=9)
    resumed = fit(left, of=noisy(), epochs=4, callbacks=[watch, stopping], **settings)
    changed, dropped = texts(resumed.record)
    assert changed == f"{line}; the run continues with the new setting"
    assert dropped.startswith("the best weights so far were chosen by valid/loss and are dropped")
    name = resumed.best.name
    expected = max(watch.valid, key=lambda each: each[2][name])
    assert resumed.best.update == expected[0] and same(resumed.model, expected[1])
    assert stopping.state_dict()["best"] == expected[2][name], "a value of the old metric would not be comparable"


def test_a_finished_run_keeps_its_best_until_it_continues_with_another_monitor(tmp_path):
    fit(tmp_path / "run", of=noisy())
    loaded = fit(tmp_path / "run", of=noisy(), monitor="accuracy")
    assert loaded.best.name == "valid/loss"
    loaded.continue_(epochs=1, show=False)
    assert loaded.best.name == "valid/accuracy" and loaded.best.epoch == 4


def test_the_console_the_command_line_and_reports_name_the_monitored_metric(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = [3.0, 1.0, 2.0]
    fitted = fit("runs/a", callbacks=[logs(values, "valid/score")], monitor="valid/score", mode="min", show=True)
    shown = capsys.readouterr().out
    assert "(* = best so far; valid/score decides which weights are kept)" in shown
    assert "score 1.000*" in shown and "best valid/score 1.000 at epoch 2" in shown and "2.000*" not in shown
    main(["runs"])
    assert "valid/score" in capsys.readouterr().out
    main(["show", "runs/a"])
    assert "best valid/score" in capsys.readouterr().out
    assert "best valid/score, in epoch 2" in fitted.report("report.html").read_text()
    assert json.loads((tmp_path / "runs/a/run.json").read_text())["settings"]["monitor"] == "valid/score (min)"


class Objectives(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 4)

    def train_step(self, batch):
        x, y = batch
        yield stoker.Objective("body", self.body(x).square().mean())
        yield stoker.Objective("head", F.cross_entropy(self.head(x), y))


def test_validation_without_the_monitored_loss_says_so_once():
    given = learner(Objectives, loss=None, optimizer=None)
    (warning,) = texts(fit(of=given).record)
    assert warning.startswith("validation measures no 'valid/loss', so the last weights are kept")
    assert "fit(monitor=..., mode=...): valid/body, valid/head" in warning
    fitted = fit(of=given, monitor="valid/head", mode="min")
    assert fitted.best.name == "valid/head" and texts(fitted.record) == []
