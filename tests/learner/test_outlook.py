"""What `explain` says of a run: whether it begins, goes on or is over, and how it is saved."""

import pytest

from stoker import Checkpoint, Fitted, schedule
from tests.learner.runs import EVERY, damage, files, fit, killed, names, until
from tests.engine.fits import learner, samples


def told(run, of=None, **settings):
    given = learner(lr=schedule.cosine(1e-2, steps=40)) if of is None else of
    wish = {"epochs": 3, "valid": samples(40), "batch_size": 16, "run": run, "resume": True, "checkpoint": EVERY}
    *_, last = given.explain(samples(96), **{**wish, **settings}).split("\n\n")
    title, standing, saving = last.split("\n")
    assert title == "Run" and standing.startswith(f"  {run}: ")
    return standing.removeprefix(f"  {run}: "), saving.removeprefix("  ")


def test_from_the_beginning_to_the_end(tmp_path):
    run = tmp_path / "run"
    assert told(run)[0] == "is new" and not run.exists()
    left, _ = killed(tmp_path, name="run")
    before = files(left)
    assert told(run)[0] == "goes on from checkpoint 00000008: epoch 2, batch 2, update 8"
    assert told(run, resume=False)[0] == "holds a run already, and fit refuses that; resume=True goes on with it"
    changed = "is of another training (order: 3 before, 4 now; seed: 3 before, 4 now), and fit refuses that"
    assert told(run, of=learner(seed=4))[0] == changed
    assert told(run, of=learner(seed=4), resume="force")[0].startswith("goes on from checkpoint 00000008")
    assert files(left) == before
    fit(run)
    over = "is over (Completed 3 epochs): fit gives back what came out, and trains nothing"
    assert told(run)[0] == told(run, epochs=2)[0] == over
    assert told(run, epochs=4)[0] == "goes on from checkpoint 00000018: epoch 3, batch 6, update 18"


def test_an_outcome_that_a_longer_fit_does_not_go_through(tmp_path):
    run = tmp_path / "run"
    fit(run, callbacks=[until(2, 3)])
    assert told(run)[0].startswith("is over (stopped by the test)")
    assert told(run, epochs=9)[0] == "goes on from checkpoint 00000009: epoch 2, batch 3, update 9"
    assert Fitted.load(run).updates == 9


def test_nothing_whole_is_left(tmp_path):
    left, _ = killed(tmp_path)
    for name in names(left):
        damage(left / "checkpoints" / name / "state.json")
    assert told(left)[0] == "has no whole checkpoint, and begins anew"


@pytest.mark.parametrize(
    ("checkpoint", "text"),
    [
        (None, "saved every epoch and when it ends, by a thread; the last 2 stay"),
        (EVERY, "saved every 4 updates and when it ends; the last 2 stay"),
        (
            Checkpoint(every="10 minutes", keep_last=1, keep_best="valid/loss"),
            "saved every 10 minutes and when it ends, by a thread; the last one and the best by valid/loss stay",
        ),
        (False, "saved never (checkpoint=False): where it stops, it can't be gone on with"),
    ],
    ids=str,
)
def test_how_it_is_saved(tmp_path, checkpoint, text):
    assert told(tmp_path / "run", checkpoint=checkpoint)[1] == text
