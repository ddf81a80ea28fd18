"""Going on with a run: to the same bits, from whatever is left of it, and not at all where it is over."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stoker
from stoker import Checkpoint, InvalidArgument, RunExists, WrongType, callbacks, metrics
from stoker.record import Run
from tests.learner.runs import Killed, came_out, damage, files, fit, killed, names, saved, texts, until
from tests.engine.fits import learner, line, linear, same, samples

# --- a run that is over


@pytest.fixture
def over(tmp_path):
    run = tmp_path / "over"
    return run, fit(run, of=learner(metrics=[metrics.Accuracy()]))


def test_a_run_that_is_over_is_given_back_and_nothing_is_trained_or_written(over):
    run, first = over
    before = files(run)
    called = []
    watch = callbacks.on(fit_begin=called.append, train_batch_end=called.append, fit_end=called.append)
    again = fit(run, of=learner(metrics=[metrics.Accuracy()]), callbacks=[watch])
    assert came_out(again) == came_out(first)
    assert files(run) == before and called == []
    assert again.evaluate(samples(20)) == first.evaluate(samples(20))
    assert torch.equal(again.predict(samples(20)), first.predict(samples(20)))
    assert repr(again) == repr(first)


def test_an_instance_gets_the_weights_too(over):
    run, first = over
    model = learner()._spec.make_model()
    again = fit(run, of=learner(model, metrics=[metrics.Accuracy()]))
    assert again.model is model and same(model, first.model)


@pytest.mark.parametrize(
    "limits",
    [{"epochs": 2}, {"epochs": 3}, {"epochs": None, "updates": 18}, {"epochs": None, "updates": 7}, {"updates": 99}],
    ids=str,
)
def test_with_less_or_the_same_it_stays_over(tmp_path, limits):
    whole = came_out(fit(tmp_path / "run"))
    before = files(tmp_path / "run")
    assert came_out(fit(tmp_path / "run", **limits)) == whole
    assert files(tmp_path / "run") == before


INSIDE = ({"epochs": None, "updates": 8}, {"epochs": None, "updates": 20})  # there are six updates to an epoch


@pytest.mark.parametrize(
    ("first", "then", "common"),
    [
        ({"epochs": 2}, {"epochs": 4}, {}),
        ({"epochs": 2}, {"epochs": None, "updates": 20}, {}),
        (*INSIDE, {}),
        ({"epochs": None, "updates": 8}, {"epochs": 3}, {}),
        ({"epochs": None, "updates": 12}, {"epochs": 3}, {}),
        ({"epochs": 3, "updates": 8}, {"epochs": 3}, {}),
        ({"epochs": None, "minutes": 1e-9}, {"epochs": 3}, {}),
        ({"epochs": 3, "minutes": 1e-9}, {"epochs": 3, "minutes": 60}, {}),
        ({"epochs": 2}, {"epochs": 4}, {"validate_every": 5}),
        ({"epochs": 2}, {"epochs": 4}, {"validate_every": 6}),
        (*INSIDE, {"validate_every": 5}),
        (*INSIDE, {"validate_every": 4}),
        (*INSIDE, {"valid": None}),
        (*INSIDE, {"keep": "last"}),
        (*INSIDE, {"checkpoint": Checkpoint()}),
        (*INSIDE, {"of": learner(ema=0.9, metrics=[metrics.Accuracy(), metrics.GradientNorm()])}),
        ({"epochs": None, "updates": 3}, {"epochs": None, "updates": 7}, {"of": learner(accumulate=4)}),
    ],
    ids=str,
)
def test_with_more_it_goes_on_to_the_bits_of_one_long_fit(tmp_path, first, then, common):
    """Also where it had stopped inside an epoch, with a validation there that the long fit doesn't have."""
    stopped = fit(tmp_path / "run", **first, **common)
    here = stopped.updates
    longer = fit(tmp_path / "run", **then, **common)
    assert longer.updates > here
    whole = fit(**then, **{name: value for name, value in common.items() if name != "checkpoint"})
    assert came_out(longer) == came_out(whole)
    assert texts(longer.record) == texts(longer.record, "note") == []


def test_three_times_longer_and_then_over(tmp_path):
    for epochs in (1, 2, 5):
        longer = fit(tmp_path / "run", epochs=epochs)
    assert came_out(longer) == came_out(fit(epochs=5)) == came_out(fit(tmp_path / "run", epochs=5))


def test_what_a_callback_has_stopped_is_over_until_the_limits_allow_for_more(tmp_path):
    first = fit(tmp_path / "run", epochs=4, callbacks=[until(2, 3, "enough")])
    assert (first.stopped, first.updates) == ("enough", 9)
    assert came_out(fit(tmp_path / "run", epochs=4)) == came_out(first)
    assert came_out(fit(tmp_path / "run", epochs=5)) == came_out(fit(epochs=5))


def test_early_stopping_is_over_with_the_same_limits(tmp_path):
    def watched():
        return {"of": learner(lr=0.0), "callbacks": [callbacks.EarlyStopping(patience=2)]}

    first = fit(tmp_path / "run", epochs=30, **watched())
    assert "Early stopping at epoch 3 of 30" in first.stopped
    before = files(tmp_path / "run")
    assert came_out(fit(tmp_path / "run", epochs=30, **watched())) == came_out(first)
    assert files(tmp_path / "run") == before
    longer = fit(tmp_path / "run", epochs=40, **watched())  # asked for more: it goes on, and stops again at once
    assert longer.epochs == 4 and "Early stopping at epoch 4 of 40" in longer.stopped


@pytest.mark.parametrize("epochs", [3, 4], ids=["over", "not over"])
def test_continue_goes_on_with_the_run_and_goes_on_saving(tmp_path, epochs):
    counting = callbacks.EarlyStopping(patience=50)
    fit(tmp_path / "run", callbacks=[counting])
    resumed = fit(tmp_path / "run", epochs=epochs, callbacks=[callbacks.EarlyStopping(patience=50)])
    resumed.continue_(epochs=2, show=False)
    whole = came_out(fit(epochs=epochs + 2))
    assert came_out(resumed) == whole
    assert saved(tmp_path / "run")[-1].ended == f"Completed {epochs + 2} epochs"
    assert came_out(fit(tmp_path / "run", epochs=epochs + 2)) == whole
    assert came_out(stoker.Fitted.load(tmp_path / "run", learner())) == whole
    assert came_out(fit(tmp_path / "run", epochs=epochs + 3)) == came_out(fit(epochs=epochs + 3))
    assert f"stopped: Completed {epochs + 2} epochs" in (tmp_path / "run" / "log.txt").read_text()


# --- a run that is not


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    left, whole = killed(tmp_path)
    resumed = fit(left)
    assert came_out(resumed) == whole == came_out(fit())
    (event,) = resumed.record.events_of("resume")
    assert event.extra["checkpoint"] == "00000008"
    assert (event.epoch, event.batch, event.update) == (2, 2, 8)
    assert "resumed from 00000008: epoch 2, batch 2 of 6, update 8" in (left / "log.txt").read_text()


def test_killed_again_and_again_and_moved_in_between(tmp_path):
    left, whole = killed(tmp_path, 1, 5)
    for number, (epoch, batch) in enumerate([(1, 6), (2, 3), (2, 4), (3, 5)]):
        moved = left.rename(tmp_path / f"moved {number}")
        left = tmp_path / f"left {number}"
        assert came_out(fit(moved, callbacks=[Killed(moved, left, epoch, batch)])) == whole
    assert came_out(fit(left)) == whole


def test_without_a_seed_it_goes_on_with_the_one_that_was_drawn(tmp_path):
    torch.manual_seed(1)
    left, whole = killed(tmp_path, of=learner(seed=None))
    torch.manual_seed(2)
    resumed = fit(left, of=learner(seed=None))
    assert came_out(resumed) == whole and texts(resumed.record) == []


def test_an_exception_in_a_callback_costs_nothing(tmp_path):
    def fail(ctx):
        if (ctx.epoch, ctx.batch_number) == (2, 4):
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fit(tmp_path / "run", callbacks=[callbacks.on(train_batch_begin=fail)])
    resumed = fit(tmp_path / "run")
    assert came_out(resumed) == came_out(fit())
    assert [event.extra["checkpoint"] for event in resumed.record.events_of("resume")] == ["00000009"]
    assert resumed.record.events_of("error") == [], "what happened after the checkpoint is void"


def test_a_damaged_checkpoint_is_skipped_by_name(tmp_path):
    left, whole = killed(tmp_path)
    damage(left / "checkpoints" / "00000008" / "optimizer.safetensors")
    resumed = fit(left)
    assert came_out(resumed) == whole
    (warning,) = texts(resumed.record)
    assert warning.startswith("a checkpoint was skipped: 00000008/optimizer.safetensors")
    assert [event.extra["checkpoint"] for event in resumed.record.events_of("resume")] == ["00000004"]
    log = (left / "log.txt").read_text()
    assert "warning: a checkpoint was skipped: 00000008/optimizer.safetensors" in log
    assert "resumed from 00000004: epoch 1, batch 4 of 6, update 4" in log
    assert names(left) == ["00000008", "00000016", "00000018"], "a damaged one is not deleted, and counts for nothing"


def test_where_all_are_damaged_it_begins_anew_and_says_so(tmp_path):
    left, whole = killed(tmp_path)
    for name in names(left):
        damage(left / "checkpoints" / name / "state.json")
    before = files(left / "checkpoints")
    with pytest.raises(
        stoker.BadFile, match=r"(?s)no checkpoint in .* is whole\n  00000008/state.json.*00000004.*begin anew"
    ):
        fit(left)
    assert files(left / "checkpoints") == before
    resumed = fit(left, resume="force")
    assert came_out(resumed) == whole
    assert resumed.record.events_of("resume")[-1].extra["checkpoint"] is None
    assert "resumed from the start: there is no checkpoint to go on from" in (left / "log.txt").read_text()
    told, *skipped = [text.split(" is damaged")[0] for text in texts(resumed.record)]
    assert told.startswith("the run has no whole checkpoint, and begins anew")
    assert skipped == [f"a checkpoint was skipped: {name}/state.json" for name in ("00000008", "00000004")]
    assert {"00000004", "00000008"} < set(names(left))


def test_a_checkpoint_of_another_run_is_neither_used_nor_deleted(tmp_path):
    left, whole = killed(tmp_path)
    fit(tmp_path / "other", of=learner(lr=0.1))
    foreign = left / "checkpoints" / "00000018"
    shutil.copytree(tmp_path / "other" / "checkpoints" / "00000018", foreign)
    before = files(foreign)
    resumed = fit(left)
    assert came_out(resumed) == whole and files(foreign) == before
    assert texts(resumed.record)[0].startswith("a checkpoint was skipped: 00000018 belongs to another run")
    assert came_out(fit(left)) == whole, "and the end, beside it, is found"


@pytest.mark.parametrize(
    "left",
    [
        {},
        {"hello.txt": "somebody's own"},
        {"events.jsonl": ""},
        {"events.jsonl": '{"kind": "note", "time": 1.0, "te'},
        {"events.jsonl": '{"kind": "note", "time": 1.0, "epoch": 0, "text": "of a process that is gone"}\n'},
        {"events.jsonl": "", ".run.json.part": '{"seed": 3, "pla'},
        {"events.jsonl": "", ".config.json.part": "{", "config.json": '{"lr": 1}'},
        {"events.jsonl": "", "run.json": "{}"},
    ],
    ids=lambda left: ", ".join(left) or "nothing",
)
def test_killed_in_its_first_moments(tmp_path, left):
    run = tmp_path / "run"
    run.mkdir()
    for name, text in left.items():
        (run / name).write_text(text)
    first = fit(run)
    assert came_out(first) == came_out(fit()) == came_out(fit(run))
    assert len(Run.open(run).id) == 16 and Run.open(run).facts["seed"] == 3
    assert texts(stoker.Record.open(run), "note") == []


def test_a_damaged_run_json_is_named(tmp_path):
    fit(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"seed": 3, "pla')
    before = files(tmp_path / "run")
    with pytest.raises(stoker.BadFile, match=r"run.json: expected JSON"):
        fit(tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_events_that_are_lost_are_told(tmp_path):
    left, whole = killed(tmp_path)
    lines = (left / "events.jsonl").read_text().splitlines(keepends=True)
    (left / "events.jsonl").write_text("".join(lines[:2]))
    resumed = fit(left)
    assert came_out(resumed)["weights"] == whole["weights"]
    assert any("events.jsonl lacks" in text for text in texts(resumed.record))


def test_a_run_that_was_killed_before_its_last_words_gets_them(tmp_path):
    whole = came_out(fit(tmp_path / "run"))
    events = (tmp_path / "run" / "events.jsonl").read_text().splitlines(keepends=True)
    assert [Run.open(tmp_path / "run").summary()["state"], events[-1][:12]] == [
        "finished",
        '{"kind":"end',
    ]
    (tmp_path / "run" / "events.jsonl").write_text("".join(events[:-2]))
    assert Run.open(tmp_path / "run").summary()["state"] == "died"
    assert came_out(fit(tmp_path / "run")) == whole
    assert Run.open(tmp_path / "run").summary()["state"] == "finished"


def test_a_run_that_was_killed_while_it_deleted_the_last_time_is_cleaned(tmp_path):
    whole = came_out(fit(tmp_path / "run"))
    before, left = names(tmp_path / "run"), tmp_path / "run" / "checkpoints" / ".gone-00000004-0123abcd"
    left.mkdir()
    (left / "state.json").write_text("{}")
    assert came_out(fit(tmp_path / "run")) == whole
    assert names(tmp_path / "run") == before and not left.exists()


# --- what is asked for


def test_a_directory_that_holds_a_run_needs_a_word(over):
    run, _ = over
    before = files(run)
    with pytest.raises(RunExists, match="already holds a run; choose another path.*resume=True continues it"):
        fit(run, resume=False)
    assert files(run) == before


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"resume": True}, InvalidArgument, "resume needs a run: give run= the directory"),
        ({"resume": "force"}, InvalidArgument, "resume needs a run: give run= the directory"),
        ({"checkpoint": Checkpoint()}, InvalidArgument, "checkpoint needs a run: give run= the directory"),
        ({"checkpoint": True}, InvalidArgument, "checkpoint needs a run"),
        (
            {"run": "runs/a", "checkpoint": "epoch"},
            WrongType,
            "checkpoint is a stoker.Checkpoint.*; got str",
        ),
        ({"run": "runs/a", "resume": "yes"}, InvalidArgument, "resume is True, False or \"force\", got 'yes'"),
        ({"run": "runs/a", "resume": None}, InvalidArgument, 'resume is True, False or "force", got None'),
        ({"run": 5}, WrongType, "run is the path of a directory, got 5"),
        ({"run": ""}, InvalidArgument, "run is the path of a directory, got an empty one"),
    ],
)
def test_nonsense(tmp_path, monkeypatch, given, error, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        linear().fit(line(), epochs=1, show=False, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(InvalidArgument, match="is a file; expected a directory"):
        fit(tmp_path / "run")


def test_without_checkpoints_it_can_only_begin_anew(tmp_path):
    first = fit(tmp_path / "run", checkpoint=False)
    assert not (tmp_path / "run" / "checkpoints").exists()
    again = fit(tmp_path / "run", checkpoint=False)
    assert came_out(again) == came_out(first)
    assert "resumed from the start: there is no checkpoint to go on from" in (tmp_path / "run" / "log.txt").read_text()


def test_a_run_that_was_saved_goes_on_also_where_nothing_more_is_saved(tmp_path):
    left, whole = killed(tmp_path)
    before = files(left / "checkpoints")
    assert came_out(fit(left, checkpoint=False)) == whole
    assert files(left / "checkpoints") == before


def test_stoker_resume_asks_from_outside(tmp_path, monkeypatch):
    """`stoker resume RUN` starts the script as it is, which need not say resume=True."""
    left, whole = killed(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_RESUME", f"./{left.name}/../{left.name}")
    assert came_out(fit(left, resume=False)) == whole
    fit(tmp_path / "other", resume=False)
    monkeypatch.setenv("STOKER_RESUME", str(left))
    with pytest.raises(RunExists):
        fit(tmp_path / "other", resume=False)


def test_another_config_is_told(tmp_path):
    left, whole = killed(tmp_path, config={"lr": 0.1, "width": 3})
    resumed = fit(left, config={"lr": 0.2, "width": 3})
    assert came_out(resumed) == whole
    (warning,) = texts(resumed.record)
    assert "the config differs from the one the run began with" in warning and "lr: 0.1 → 0.2" in warning
    assert json.loads((left / "config.json").read_text()) == {"lr": 0.1, "width": 3}


PROGRAM = """
import functools
import sys
from pathlib import Path

from tests.learner.runs import fit, killed, texts
from tests.engine.fits import learner, optim


class Rate:
    def __call__(self, update):
        return 0.01


def high(update, by):
    return 0.01 * by


given = learner(
    optimizer={"head": optim.SGD(momentum=0.9), "*": optim.AdamW()},
    lr={"head": Rate(), "*": functools.partial(high, by=2)},
)
folder = Path(sys.argv[1])
if (folder / "killed").exists():
    resumed = fit(folder / "killed", of=given)
    print(resumed.updates, texts(resumed.record))
else:
    killed(folder, of=given)
"""


def test_it_goes_on_in_another_process(tmp_path):
    """A name or text that is the same inside of one process only, as an address is, would show here."""
    environment = {**os.environ, "PYTHONPATH": str(Path(stoker.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    for expected in ("", "18 []\n"):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
