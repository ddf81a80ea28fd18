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
from stoker.record import Run

OLD_RUN = Path(__file__).parent / "old_run"


def fit(run):
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
        callbacks=[callbacks.EarlyStopping(patience=9), callbacks.on(train_batch_begin=lambda ctx: None)],
        show=False,
    )


def test_a_run_of_an_earlier_version_resumes_with_the_same_result(tmp_path):
    old = shutil.copytree(OLD_RUN, tmp_path / "old")
    resumed, whole = fit(old), fit(tmp_path / "new")
    assert len(Run.open(old).record.events_of("resume")) == 1
    assert resumed.stopped == whole.stopped and resumed.updates == whole.updates == 12
    # The first seven updates may have been computed by another processor, so the last bits may differ.
    for name in ("train/loss", "valid/loss", "valid/accuracy"):
        torch.testing.assert_close(torch.tensor(resumed.history[name]), torch.tensor(whole.history[name]))
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())


def test_the_result_of_a_run_of_an_earlier_version_is_read(tmp_path):
    old = shutil.copytree(OLD_RUN, tmp_path / "old")
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
    loaded = stoker.load_for_inference(old, model)
    assert not loaded.training and loaded[1].num_batches_tracked.item() > 0
