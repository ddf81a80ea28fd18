"""A run that stoker saved before its engine was rebuilt resumes, with the same result.

`old_run` is the directory of the fit below after it was killed at update 7. It was written by the version of stoker
that had `stoker.loop`; the paths and the host in its `run.json` were removed.
"""

import shutil
from pathlib import Path

import torch
from torch import nn

import stoker
from stoker import callbacks, data, metrics
from stoker.checkpoint import Store, model_state
from stoker.engine import EMA
from stoker.record import Run

OLD_RUN = Path(__file__).parent / "old_run"


def fit(run, *more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(1))
    y = (x.sum(1) > 0).long()
    learner = stoker.Learner(
        model,
        loss=nn.CrossEntropyLoss(),
        optimizer=stoker.optim.AdamW(),
        lr=1e-2,
        metrics=[metrics.Accuracy()],
        accumulate=2,
        ema=0.9,
        clip_norm=1.0,
        seed=1,
    )
    return learner.fit(
        data.Loader((x, y), batch_size=8, shuffle=3),
        valid=(x[:16], y[:16]),
        epochs=4,
        run=run,
        resume=True,
        checkpoint=stoker.Checkpoint(every=1, keep_last=1, background=False),
        callbacks=[callbacks.EarlyStopping(patience=9), callbacks.on(train_batch_begin=lambda ctx: None), *more],
        show=False,
    )


def weights(fitted):
    return {name: value.tolist() for name, value in fitted.model.state_dict().items()}


def curves(fitted):
    return {name: fitted.history[name] for name in ("train/loss", "valid/loss", "valid/accuracy")}


class CopyAt(stoker.Callback):
    """Copies the run directory before an update: what a kill there would leave."""

    transient = True

    def __init__(self, run, to, update):
        self.run, self.to, self.update = run, to, update

    def on_train_batch_begin(self, ctx):
        if ctx.update == self.update and not self.to.exists():
            shutil.copytree(self.run, self.to)


def average_without_warm_up(monkeypatch):
    """New runs average their weights as the earlier version did."""
    create = EMA.__init__

    def create_without_warm_up(self, *args):
        create(self, *args)
        self.load_state_dict(model_state(self.model))

    monkeypatch.setattr(EMA, "__init__", create_without_warm_up)


def test_a_run_of_an_earlier_version_resumes_with_the_same_result(tmp_path, monkeypatch):
    old, new, left = shutil.copytree(OLD_RUN, tmp_path / "old"), tmp_path / "new", tmp_path / "left"
    begun = stoker.Record.open(OLD_RUN).series("valid/loss")
    resumed = fit(old)
    average_without_warm_up(monkeypatch)
    whole = fit(new, CopyAt(new, left, 7))
    assert len(Run.open(old).record.events_of("resume")) == 1
    assert resumed.stopped == whole.stopped and resumed.updates == whole.updates == 12
    assert resumed.history["valid/loss"][: len(begun)] == begun, "the record continues"
    saved = [Store(run / "checkpoints", run=Run.open(run).id).newest().state for run in (OLD_RUN, left)]
    if all(map(torch.equal, *(list(state["model"]["parameters"].values()) for state in saved))):
        assert weights(resumed) == weights(whole) and curves(resumed) == curves(whole)
    else:  # the first seven updates were computed by another processor
        torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())


def test_what_was_loaded_from_an_earlier_version_is_complete(tmp_path):
    """Saved again by this version and resumed from there, the run has the same bits."""
    old, left = shutil.copytree(OLD_RUN, tmp_path / "old"), tmp_path / "left"
    at_once = fit(old, CopyAt(old, left, 9))
    in_two_parts = fit(left)
    assert len(Run.open(left).record.events_of("resume")) == 2
    assert weights(at_once) == weights(in_two_parts) and curves(at_once) == curves(in_two_parts)


def test_the_result_of_a_run_of_an_earlier_version_is_read_exactly(tmp_path):
    state = Store(OLD_RUN / "checkpoints", run=Run.open(OLD_RUN).id).newest().state
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
    loaded = stoker.load_for_inference(OLD_RUN, model)
    assert not loaded.training
    best = {name: value.tolist() for name, value in state["best"].items()}
    assert best == {name: value.tolist() for name, value in loaded.state_dict().items()}
