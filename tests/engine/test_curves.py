"""The curves of a fit: means over windows of updates, and the learning rate of each update."""

import itertools
import json
import math
import signal

import numpy as np
import pytest
import torch
from torch import nn

import stoker
from stoker import Learner
from stoker.callbacks import Callback
from stoker.record import Follower, Record, Run


class Losses(Callback):
    """Keeps the loss and the number of samples of every batch, by update."""

    def __init__(self):
        self.batches = []

    def on_train_batch_end(self, ctx):
        self.batches.append((ctx.update, ctx.loss.item(), len(ctx.batch[0])))


class Interrupt(Callback):
    """Sends the signal of Ctrl-C after an update."""

    def __init__(self, update):
        self.update = update

    def on_train_batch_end(self, ctx):
        if ctx.update == self.update:
            signal.raise_signal(signal.SIGINT)


def fit(folder, *, epochs=3, batch_size=8, callbacks=(), learner=None, **options):
    torch.manual_seed(0)
    inputs = torch.randn(100, 4)
    data = inputs, inputs.sum(1, keepdim=True) + 0.1 * torch.randn(100, 1)
    learner = {"lr": 0.05, "optimizer": stoker.optim.SGD(), **(learner or {})}
    return Learner(nn.Linear(4, 1), loss=nn.functional.mse_loss, seed=0, **learner).fit(
        data, epochs=epochs, batch_size=batch_size, run=folder, callbacks=callbacks, show=False, **options
    )


def curve(folder, name="train/loss"):
    follower = Follower(folder)
    follower.refresh()
    points = follower.points(name, source="running")
    return dict(zip(points.update.astype(int).tolist(), points.value.tolist(), strict=True))


def window_means(batches, updates):
    """The means of the batches' losses between the updates, weighted by samples."""
    edges = [0, *updates]
    found = {}
    for first, last in itertools.pairwise(edges):
        inside = [(loss, size) for update, loss, size in batches if first < update <= last]
        found[last] = sum(loss * size for loss, size in inside) / sum(size for _, size in inside)
    return found


@pytest.mark.parametrize(
    "learner",
    [{}, {"accumulate": 2}, pytest.param({"compile": True}, marks=pytest.mark.soak)],
    ids=["eager", "accumulate", "compile"],
)
def test_each_point_is_the_mean_of_its_own_updates(tmp_path, learner):
    losses = Losses()
    fit(tmp_path / "run", callbacks=[losses], learner=learner)
    points = curve(tmp_path / "run")
    accumulate = learner.get("accumulate", 1)
    assert list(points) == list(range(1, 3 * math.ceil(13 / accumulate) + 1))  # each of the first 100 is a point
    batches, update = [], 0
    for number, (_, loss, size) in enumerate(losses.batches):  # a batch belongs to the update that it is a part of
        at = number % 13
        update += at % accumulate == 0
        batches.append((update, loss, size))
    expected = window_means(batches, list(points))
    assert points == pytest.approx(expected, rel=1e-5)


def test_windows_grow_with_the_updates_and_reach_over_epochs(tmp_path):
    losses = Losses()
    fit(tmp_path / "run", epochs=60, callbacks=[losses])  # 780 updates in epochs of 13
    points = curve(tmp_path / "run")
    steps = np.diff([0, *points])
    assert set(steps[:100]) == {1} and list(points)[-1] == 780
    assert all(step == max(1, update // 100) for update, step in list(zip(points, steps[1:], strict=False))[:-1])
    expected = window_means(losses.batches, list(points))
    assert points == pytest.approx(expected, rel=1e-6)


def test_the_learning_rate_of_each_update_is_recorded(tmp_path):
    schedule = stoker.schedule.warmup(0.1, updates=20)
    fit(tmp_path / "run", learner={"lr": schedule})
    rates = curve(tmp_path / "run", "lr")
    assert rates == pytest.approx({update: schedule(update - 1) for update in range(1, 40)})


@pytest.mark.parametrize("stop_after", [5, 13, 300])
def test_a_resumed_fit_records_the_curve_of_an_uninterrupted_one(tmp_path, stop_after):
    fit(tmp_path / "whole", epochs=30)
    fit(tmp_path / "run", epochs=30, callbacks=[Interrupt(stop_after)])
    assert Run.open(tmp_path / "run").summary()["state"] == "stopped"
    fit(tmp_path / "run", epochs=30, resume=True)
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")
    assert curve(tmp_path / "run", "lr") == curve(tmp_path / "whole", "lr")


def test_matrices_are_one_value_in_events_history_and_context(tmp_path):
    names = []

    class Names(Callback):
        def on_epoch_end(self, ctx):
            names.extend(ctx.metrics)

    torch.manual_seed(0)
    data = torch.randn(64, 4), torch.randint(0, 3, (64,))
    confusion = stoker.metrics.ConfusionMatrix(labels=["cat", "dog", "bird"])
    learner = Learner(nn.Linear(4, 3), loss=nn.functional.cross_entropy, metrics=[confusion])
    fitted = learner.fit(data, valid=data, epochs=2, run=tmp_path / "run", callbacks=[Names()], show=False)
    record = Record.open(tmp_path / "run")
    assert record.matrices == ["train/confusion", "valid/confusion"]
    matrix = record.matrix("valid/confusion")
    assert matrix.labels == ("cat", "dog", "bird")
    assert fitted.evaluate(data)["confusion"] == matrix.values.tolist() and len(fitted.evaluate(data)) == 2
    assert record.matrix("valid/confusion", epoch=2).values.sum() == 64
    assert "bird" in fitted.report(tmp_path / "report.html").read_text()
    assert [text.get_text() for text in fitted.plot(kind="confusion").axes[0].get_yticklabels()] == [*matrix.labels]
    with pytest.raises(stoker.InvalidArgument, match="got 2 labels; expected 3, one for each class"):
        fitted.evaluate(data, metrics=[confusion.replace(labels=("a", "b"))])
    assert {"train/loss", "valid/loss", "lr"} >= {*names, *fitted.history.columns, *record.names}
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert not any("confusion" in name for line in lines for name in line.get("values", {}))
