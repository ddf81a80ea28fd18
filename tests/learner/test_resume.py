"""Resuming a run: to the same bits, from whatever a kill left, and not at all if it is finished."""

import functools
import json
import shutil

import pytest
import torch

import stoker
from stoker import Checkpoint, RunExists, callbacks, metrics, optim
from stoker.record import Run
from tests.learner.fits import (
    CopyRun,
    Net,
    checkpoint_names,
    damage,
    fit,
    killed_run,
    learner,
    list_files,
    result_of,
    samples,
    saved_checkpoints,
    stop_after,
    texts,
)
from torture.processes import Child

# --- a finished run


@pytest.fixture
def finished(tmp_path):
    run = tmp_path / "finished"
    return run, fit(run, of=learner(metrics=[metrics.Accuracy()]))


def test_a_finished_run_is_returned_and_nothing_is_trained_or_written(finished):
    run, first = finished
    before = list_files(run)
    called = []
    watch = callbacks.on(fit_begin=called.append, train_batch_end=called.append, fit_end=called.append)
    model = Net()
    again = fit(run, of=learner(model, metrics=[metrics.Accuracy()]), callbacks=[watch])
    assert result_of(again) == result_of(first) and again.model is model
    assert list_files(run) == before and called == []
    assert again.evaluate(samples(20)) == first.evaluate(samples(20))
    assert torch.equal(again.predict(samples(20)), first.predict(samples(20)))
    assert repr(again) == repr(first)


def test_a_run_stays_finished_with_the_same_or_lower_limits(tmp_path):
    whole = result_of(fit(tmp_path / "run"))
    before = list_files(tmp_path / "run")
    for limits in ({"epochs": 2}, {"epochs": None, "updates": 18}, {"epochs": None, "updates": 7}, {"updates": 99}):
        assert result_of(fit(tmp_path / "run", **limits)) == whole
    assert list_files(tmp_path / "run") == before


INSIDE = ({"epochs": None, "updates": 8}, {"epochs": None, "updates": 20})  # an epoch has six updates


@pytest.mark.parametrize(
    ("first", "then", "common"),
    [
        ({"epochs": 2}, {"epochs": 4}, {}),
        (*INSIDE, {}),
        ({"epochs": None, "updates": 12}, {"epochs": 3}, {}),
        ({"epochs": 3, "updates": 10}, {"epochs": 3}, {}),
        ({"epochs": 3, "minutes": 1e-9}, {"epochs": 3, "minutes": 60}, {}),
        ({"epochs": 2}, {"epochs": 4}, {"validate_every": 6}),
        (*INSIDE, {"validate_every": 4}),
        (*INSIDE, {"valid": None}),
        (*INSIDE, {"checkpoint": Checkpoint()}),
        (*INSIDE, {"keep": "last", "of": learner(ema=0.9, metrics=[metrics.Accuracy(), metrics.GradientNorm()])}),
        ({"epochs": None, "updates": 3}, {"epochs": None, "updates": 7}, {"of": learner(accumulate=4)}),
    ],
    ids=str,
)
def test_with_higher_limits_a_run_continues_to_the_bits_of_one_long_fit(tmp_path, first, then, common):
    """Also if it had stopped inside an epoch, with a validation there that the long fit does not have."""
    stopped = fit(tmp_path / "run", **first, **common)
    updates = stopped.updates
    longer = fit(tmp_path / "run", **then, **common)
    assert longer.updates > updates
    whole = fit(**then, **{name: value for name, value in common.items() if name != "checkpoint"})
    assert result_of(longer) == result_of(whole)
    assert texts(longer.record) == texts(longer.record, "note") == []


def test_a_run_that_a_callback_stopped_is_finished_until_the_limits_are_raised(tmp_path):
    first = fit(tmp_path / "run", epochs=4, callbacks=[stop_after(2, 3, "enough")])
    assert (first.stopped, first.updates) == ("enough", 9)
    assert result_of(fit(tmp_path / "run", epochs=4)) == result_of(first)
    assert result_of(fit(tmp_path / "run", epochs=5)) == result_of(fit(epochs=5))


def test_a_run_that_early_stopping_ended_is_finished(tmp_path):
    def watched():
        return {"of": learner(lr=0.0), "callbacks": [callbacks.EarlyStopping(patience=2)]}

    first = fit(tmp_path / "run", epochs=30, **watched())
    assert "Early stopping at epoch 3 of 30" in first.stopped
    before = list_files(tmp_path / "run")
    assert result_of(fit(tmp_path / "run", epochs=30, **watched())) == result_of(first)
    assert list_files(tmp_path / "run") == before
    longer = fit(tmp_path / "run", epochs=40, **watched())  # it continues, and stops again at once
    assert longer.epochs == 4 and "Early stopping at epoch 4 of 40" in longer.stopped


@pytest.mark.parametrize("epochs", [3, 4], ids=["finished", "not finished"])
def test_continue_writes_to_the_run_and_saves_it(tmp_path, epochs):
    counting = callbacks.EarlyStopping(patience=50)
    fit(tmp_path / "run", callbacks=[counting])
    resumed = fit(tmp_path / "run", epochs=epochs, callbacks=[callbacks.EarlyStopping(patience=50)])
    resumed.continue_(epochs=2, show=False)
    whole = result_of(fit(epochs=epochs + 2))
    assert result_of(resumed) == whole
    assert saved_checkpoints(tmp_path / "run")[-1].ended == f"Completed {epochs + 2} epochs"
    assert result_of(fit(tmp_path / "run", epochs=epochs + 2)) == whole
    assert result_of(stoker.Fitted.load(tmp_path / "run", learner())) == whole
    assert result_of(fit(tmp_path / "run", epochs=epochs + 3)) == result_of(fit(epochs=epochs + 3))
    assert f"stopped: Completed {epochs + 2} epochs" in (tmp_path / "run" / "log.txt").read_text()


# --- a run that is not finished


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    left, whole = killed_run(tmp_path)
    resumed = fit(left)
    assert result_of(resumed) == whole == result_of(fit())
    (event,) = resumed.record.events_of("resume")
    assert event.extra["checkpoint"] == "00000008"
    assert (event.epoch, event.batch, event.update) == (2, 2, 8)
    assert "resumed from 00000008: epoch 2, batch 2 of 6, update 8" in (left / "log.txt").read_text()


def test_a_run_can_be_killed_and_moved_several_times(tmp_path):
    left, whole = killed_run(tmp_path, 1, 5)
    for number, (epoch, batch) in enumerate([(1, 6), (2, 3), (2, 4), (3, 5)]):
        moved = left.rename(tmp_path / f"moved {number}")
        left = tmp_path / f"left {number}"
        assert result_of(fit(moved, callbacks=[CopyRun(moved, left, epoch, batch)])) == whole
    assert result_of(fit(left)) == whole


def test_a_run_without_a_seed_resumes_with_the_one_that_was_drawn(tmp_path):
    torch.manual_seed(1)
    left, whole = killed_run(tmp_path, of=learner(seed=None))
    torch.manual_seed(2)
    resumed = fit(left, of=learner(seed=None))
    assert result_of(resumed) == whole and texts(resumed.record) == []


def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path):
    left, whole = killed_run(tmp_path)
    damage(left / "checkpoints" / "00000008" / "optimizer.safetensors")
    resumed = fit(left)
    assert result_of(resumed) == whole
    (warning,) = texts(resumed.record)
    assert warning.startswith("a checkpoint was skipped: 00000008/optimizer.safetensors")
    assert [event.extra["checkpoint"] for event in resumed.record.events_of("resume")] == ["00000004"]
    log = (left / "log.txt").read_text()
    assert "warning: a checkpoint was skipped: 00000008/optimizer.safetensors" in log
    assert "resumed from 00000004: epoch 1, batch 4 of 6, update 4" in log
    assert checkpoint_names(left) == ["00000008", "00000016", "00000018"], "a damaged one is not deleted"


def test_if_all_checkpoints_are_damaged_only_force_starts_again(tmp_path):
    left, whole = killed_run(tmp_path)
    for name in checkpoint_names(left):
        damage(left / "checkpoints" / name / "state.json")
    before = list_files(left / "checkpoints")
    error = r'(?s)no checkpoint in .* is complete\n  00000008/state.json.*00000004.*start again with resume="force"'
    with pytest.raises(stoker.BadFile, match=error):
        fit(left)
    assert list_files(left / "checkpoints") == before
    resumed = fit(left, resume="force")
    assert result_of(resumed) == whole
    assert resumed.record.events_of("resume")[-1].extra["checkpoint"] is None
    assert "resumed from the start: the run has no checkpoint" in (left / "log.txt").read_text()
    first, *skipped = [text.split(" is damaged")[0] for text in texts(resumed.record)]
    assert first.startswith("the run has no complete checkpoint and starts again")
    assert skipped == [f"a checkpoint was skipped: {name}/state.json" for name in ("00000008", "00000004")]
    assert {"00000004", "00000008"} < set(checkpoint_names(left))


def test_a_checkpoint_of_another_run_is_neither_used_nor_deleted(tmp_path):
    left, whole = killed_run(tmp_path)
    fit(tmp_path / "other", of=learner(lr=0.1))
    foreign = left / "checkpoints" / "00000018"
    shutil.copytree(tmp_path / "other" / "checkpoints" / "00000018", foreign)
    before = list_files(foreign)
    resumed = fit(left)
    assert result_of(resumed) == whole and list_files(foreign) == before
    assert texts(resumed.record)[0].startswith("a checkpoint was skipped: 00000018 belongs to another run")
    assert result_of(fit(left)) == whole, "and its end is found beside the other one"


@pytest.mark.parametrize(
    "left",
    [
        {},
        {"hello.txt": "of the user"},
        {"events.jsonl": '{"kind": "note", "time": 1.0, "te'},
        {"events.jsonl": '{"kind": "note", "time": 1.0, "epoch": 0, "text": "of a killed process"}\n'},
        {"events.jsonl": "", ".config.json.part": "{", "config.json": '{"lr": 1}'},
        {"events.jsonl": "", "run.json": "{}"},
    ],
    ids=lambda left: ", ".join(left) or "nothing",
)
def test_a_run_killed_in_its_first_moments_starts_again(tmp_path, left):
    run = tmp_path / "run"
    run.mkdir()
    for name, text in left.items():
        (run / name).write_text(text)
    first = fit(run)
    assert result_of(first) == result_of(fit()) == result_of(fit(run))
    assert len(Run.open(run).id) == 16 and Run.open(run).facts["seed"] == 3
    assert texts(stoker.Record.open(run), "note") == []


def test_a_damaged_run_json_is_an_error(tmp_path):
    fit(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"seed": 3, "pla')
    before = list_files(tmp_path / "run")
    with pytest.raises(stoker.BadFile, match=r"run.json: expected JSON"):
        fit(tmp_path / "run")
    assert list_files(tmp_path / "run") == before


def test_missing_events_cause_a_warning(tmp_path):
    left, whole = killed_run(tmp_path)
    lines = (left / "events.jsonl").read_text().splitlines(keepends=True)
    (left / "events.jsonl").write_text("".join(lines[:2]))
    resumed = fit(left)
    assert result_of(resumed)["weights"] == whole["weights"]
    assert any("events.jsonl lacks" in text for text in texts(resumed.record))


def test_a_finished_run_killed_before_its_last_events_gets_them(tmp_path):
    whole = result_of(fit(tmp_path / "run"))
    events = (tmp_path / "run" / "events.jsonl").read_text().splitlines(keepends=True)
    assert Run.open(tmp_path / "run").summary()["state"] == "finished" and events[-1].startswith('{"kind":"end')
    (tmp_path / "run" / "events.jsonl").write_text("".join(events[:-2]))
    assert Run.open(tmp_path / "run").summary()["state"] == "died"
    assert result_of(fit(tmp_path / "run")) == whole
    assert Run.open(tmp_path / "run").summary()["state"] == "finished"


def test_a_finished_run_killed_while_it_deleted_a_checkpoint_is_cleaned(tmp_path):
    whole = result_of(fit(tmp_path / "run"))
    before, left = checkpoint_names(tmp_path / "run"), tmp_path / "run" / "checkpoints" / ".gone-00000004-0123abcd"
    left.mkdir()
    (left / "state.json").write_text("{}")
    assert result_of(fit(tmp_path / "run")) == whole
    assert checkpoint_names(tmp_path / "run") == before and not left.exists()


# --- arguments


def test_an_existing_run_is_an_error_without_resume(finished):
    run, _ = finished
    before = list_files(run)
    with pytest.raises(RunExists, match="already holds a run; choose another path.*resume=True continues it"):
        fit(run, resume=False)
    assert list_files(run) == before


def test_a_run_need_not_save_checkpoints(tmp_path):
    first = fit(tmp_path / "run", checkpoint=False)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert result_of(fit(tmp_path / "run", checkpoint=False)) == result_of(first), "it starts again"
    assert "resumed from the start: the run has no checkpoint" in (tmp_path / "run" / "log.txt").read_text()
    left, whole = killed_run(tmp_path)
    before = list_files(left / "checkpoints")
    assert result_of(fit(left, checkpoint=False)) == whole
    assert list_files(left / "checkpoints") == before


def test_the_command_stoker_resume_sets_resume(tmp_path, monkeypatch):
    """`stoker resume RUN` starts the script, which need not have resume=True."""
    left, whole = killed_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_RESUME", f"./{left.name}/../{left.name}")
    assert result_of(fit(left, resume=False)) == whole
    fit(tmp_path / "other", resume=False)
    monkeypatch.setenv("STOKER_RESUME", str(left))
    with pytest.raises(RunExists):
        fit(tmp_path / "other", resume=False)


def test_another_config_causes_a_warning(tmp_path):
    left, whole = killed_run(tmp_path, config={"lr": 0.1, "width": 3})
    resumed = fit(left, config={"lr": 0.2, "width": 3})
    assert result_of(resumed) == whole
    (warning,) = texts(resumed.record)
    assert "the config differs from the one the run began with" in warning and "lr: 0.1 → 0.2" in warning
    assert json.loads((left / "config.json").read_text()) == {"lr": 0.1, "width": 3}


class Rate:
    def __call__(self, update):
        return 0.01


def high(update, by):
    return 0.01 * by


def with_functions():
    return learner(
        optimizer={"head": optim.SGD(momentum=0.9), "*": optim.AdamW()},
        lr={"head": Rate(), "*": functools.partial(high, by=2)},
    )


def print_resumed(run):
    resumed = fit(run, of=with_functions())
    print(resumed.updates, texts(resumed.record))


def test_a_run_resumes_in_another_process(tmp_path):
    """Settings are compared as text, which must not contain memory addresses."""
    left, _ = killed_run(tmp_path, of=with_functions())
    child = Child(print_resumed, left, prints=tmp_path / "printed.txt")
    assert (child.wait(), child.printed()) == (0, "18 []\n")
