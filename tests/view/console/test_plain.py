"""The plain lines for files and pipes, word for word."""

import io
import json
import os
import sys

import pytest

from stoker.record import Event, Record, Run
from stoker.view.console import console
from tests.view.console.scenes import begin, cut_short, end, epoch, progress, resume


class Output:
    """The lines that a fit prints."""

    def __init__(self, record):
        self.stream = io.StringIO()
        self.listener = console(record, stream=self.stream)
        record.subscribe(self.listener)

    @property
    def lines(self):
        return self.stream.getvalue().splitlines()


def write_checkpoint(run, name, *, epoch, update):
    """A checkpoint that consists of its manifest."""
    folder = run.path / "checkpoints" / name
    folder.mkdir(parents=True)
    facts = {"name": name, "epoch": epoch, "update": update, "reason": "epoch", "bytes": 1, "time": 1.0, "values": {}}
    (folder / "manifest.json").write_text(json.dumps({"run": run.id, **facts}))


@pytest.fixture
def record():
    return Record()


@pytest.fixture
def output(record):
    return Output(record)


def test_a_whole_fit(record, output):
    begin(record, epochs=10)
    epoch(record, 1, train={"loss": 1.0, "accuracy": 0.5}, valid={"loss": 0.75, "accuracy": 0.25}, lr=0.01)
    epoch(record, 2, train={"loss": 0.5, "accuracy": 0.75}, valid={"loss": 0.8, "accuracy": 0.5}, lr=0.01)
    record.append(Event("warning", 1004.5, text="the loss is odd"))
    record.append(Event("note", 1004.5, text="hello"))
    record.append(Event("stop", 1005.0, epoch=2, text="Early stopping at epoch 2 of 10: enough"))
    end(record, 2, best=(1, 0.75))
    output.listener.close()
    assert output.lines == [
        "Net (1,234 parameters) on cpu: 10 epochs of 10 batches (* = best so far)",
        "epoch  1/10  train loss 1.000 accuracy 0.5000  valid loss 0.7500 accuracy 0.2500  lr 0.01  2.00 s",
        "epoch  2/10  train loss 0.5000 accuracy 0.7500  valid loss 0.8000 accuracy 0.5000*  lr 0.01  2.00 s",
        "warning: the loss is odd",
        "hello",
        "Early stopping at epoch 2 of 10: enough",
        "2 epochs, 20 updates in 4.00 s; best valid/loss 0.7500 at epoch 1",
    ]


def test_without_validation_training_values_are_marked(record, output):
    begin(record, monitor=None)
    for number, loss in enumerate([0.5, 0.25, 0.75], 1):
        epoch(record, number, train=loss)
    assert ["*" in line for line in output.lines[1:]] == [False, True, False]


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ({"epochs": None, "updates": 500}, "Net (1,234 parameters) on cpu: 500 updates (* = best so far)"),
        ({"epochs": 1, "minutes": 2.5}, "Net (1,234 parameters) on cpu: 1 epoch of 10 batches or 2.5 minutes (*"),
        ({"epochs": None}, "Net (1,234 parameters) on cpu: no limit; training runs until it is stopped (*"),
        ({"parameters": None, "device": None, "model": None}, "model: 4 epochs of 10 batches (*"),
    ],
)
def test_the_first_line_describes_the_plan(record, output, extra, line):
    begin(record, **extra)
    assert output.lines[0].startswith(line)


def test_a_short_epoch_prints_no_progress(record, output):
    begin(record)
    for batch in range(1, 11):
        progress(record, 1, batch, at=1000.0 + 2.9 * batch)
    assert len(output.lines) == 1


@pytest.mark.parametrize("seconds", [40.0, 36_000.0])
def test_a_long_epoch_prints_a_few_progress_lines(record, output, seconds):
    begin(record, batches=1000)
    for batch in range(1, 1001):
        progress(record, 1, batch, at=1000.0 + seconds * batch / 1000, batches=1000, values={"train/loss": 0.125})
    lines = output.lines[1:]
    assert 1 <= len(lines) <= 5
    assert lines[0].startswith("epoch 1/4  batch ") and "train loss 0.1250  12.3k samples/s" in lines[0]
    assert lines[0].endswith("left of this epoch")


def test_an_epoch_of_unknown_length_prints_progress_whenever_its_time_doubles(record, output):
    begin(record, batches=None)
    for second in range(3601):
        progress(record, 1, second, at=1000.0 + second, batches=None)
    assert [line.split("batch ")[1].split()[0] for line in output.lines[1:]] == [
        *("30", "60", "120", "240", "480", "960", "1,920"),
    ]


def test_a_long_validation_prints_progress(record, output):
    begin(record)
    progress(record, 1, 1, at=1000.0, phase="valid", batches=100)
    progress(record, 1, 50, at=1040.0, phase="valid", batches=100, values={})
    assert output.lines[1:] == ["epoch 1/4  validating, batch 50/100  12.3k samples/s  40.0 s left of this validation"]


def test_validations_inside_an_epoch_have_their_own_lines(record, output):
    begin(record, batches=100)
    values = {"valid/loss": 0.5}
    record.append(Event("valid", 1001.0, epoch=1, batch=50, update=50, values=values, extra={"name": "valid"}))
    record.append(Event("valid", 1002.0, epoch=1, batch=100, update=100, values=values, extra={"name": "valid"}))
    assert output.lines[1:] == ["epoch 1/4  update 50  valid loss 0.5000"]


def test_per_class_metrics_are_in_brackets_and_abbreviated(record, output):
    begin(record)
    for count, text in ((3, "recall [0.000 0.5000 1.000]"), (12, "0.4000 … 2 more … 3.500")):
        recall = {f"recall/{place}": place / 2 if place != 4 else 0.4 for place in range(count)}
        epoch(record, 1, valid=recall)
        assert text in output.lines[-1]


def test_an_exception_is_reported_with_its_position(record, output):
    begin(record)
    epoch(record, 1)
    progress(record, 2, 3, at=1003.0)
    record.append(Event("error", 1003.5, epoch=2, batch=3, text="RuntimeError: boom"))
    output.listener.close()
    assert output.lines[-2:] == ["failed in epoch 2, batch 3: RuntimeError: boom", "1 epoch, 13 updates in 3.50 s"]


def test_closing_early_reports_the_interruption_once(record, output):
    begin(record)
    epoch(record, 1)
    progress(record, 2, 3, at=1003.0)
    output.listener.close()
    output.listener.close()
    epoch(record, 2)
    assert output.lines[-2:] == ["interrupted in epoch 2", "1 epoch, 13 updates in 3.00 s"]


def test_a_resumed_fit_continues_its_best_and_its_time(record):
    kept = cut_short(record)
    output = Output(record)
    resume(record, kept)
    record.append(Event("warning", 5000.5, epoch=3, text="a checkpoint was skipped: 00000030: torn"))
    begin(record, at=5001.0)
    record.append(Event("checkpoint", 5002.0, epoch=3, batch=8, update=28, extra={"name": "00000028"}))
    epoch(record, 3, at=5003.0, valid=0.2)
    epoch(record, 4, at=5005.0, valid=0.3)
    record.append(Event("end", 5005.0, extra={"epochs": 4, "updates": 40, "seconds": 4.0}))
    assert output.lines == [
        "resumed from 00000025: epoch 3, batch 5 of 10, update 25",
        "warning: a checkpoint was skipped: 00000030: torn",
        "Net (1,234 parameters) on cpu: 4 epochs of 10 batches (* = best so far)",
        "epoch 3/4  train loss 0.3333  valid loss 0.2000*  2.00 s",
        "epoch 4/4  train loss 0.2500  valid loss 0.3000  2.00 s",
        "4 epochs, 40 updates in 9.00 s; best valid/loss 0.2000 at epoch 3",
    ]


def test_plan_and_model_may_be_unknown(record, output):
    record.append(Event("begin", 0.0))
    record.rewind(1, Event("resume", 0.0, extra={"checkpoint": None}))
    output.listener.close()
    assert output.lines == [
        "model: no limit; training runs until it is stopped (* = best so far)",
        "resumed from the start: the run has no checkpoint",
        "interrupted in epoch 0",
        "0 epochs, 0 updates in 0.00 s",
    ]


def test_an_error_replaces_the_reason_of_a_stop(record, output):
    begin(record)
    record.append(Event("stop", 1001.0, epoch=1, text="NaN"))
    record.append(Event("error", 1001.0, epoch=1, batch=2, text="NotFinite: the loss"))
    output.listener.close()
    assert output.lines[1] == "failed in epoch 1, batch 2: NotFinite: the loss"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_characters_that_the_stream_lacks_are_replaced(record, encoding):
    raw = io.BytesIO()
    record.subscribe(console(record, stream=io.TextIOWrapper(raw, encoding=encoding, newline="")))
    begin(record, model="müsli …")
    assert raw.getvalue().decode(encoding).replace("?", "ü").startswith("müsli ... (1,234 parameters)")


def test_a_pipe_whose_reader_left_does_not_stop_the_fit(record):
    reader, end_of_pipe = os.pipe()
    os.close(reader)
    stream = os.fdopen(end_of_pipe, "w", encoding="utf-8", closefd=False)
    record.subscribe(console(record, stream=stream))
    begin(record)
    epoch(record, 1)
    assert not record.events_of("warning")
    with pytest.raises(BrokenPipeError):  # the first line is still in the buffer
        stream.close()
    os.close(end_of_pipe)


@pytest.mark.parametrize("state", ["done", "stopped", "failed"])
def test_the_end_names_the_run_its_checkpoint_and_the_command_to_resume(tmp_path, monkeypatch, state):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])
    (tmp_path / "train.py").touch()
    run = Run.create("runs/digits 1")
    output = Output(run.record)
    begin(run.record, epochs=1 if state == "done" else 4)
    epoch(run.record, 1, valid=0.5)
    write_checkpoint(run, "00000010", epoch=1, update=10)
    if state == "failed":
        run.record.append(Event("error", 1002.0, epoch=2, batch=3, text="NotFinite: the loss"))
    reason = {"done": "Completed 1 epochs", "stopped": "Interrupted in epoch 1", "failed": "NotFinite"}[state]
    run.record.append(Event("stop", 1002.0, epoch=1, text=reason))
    end(run.record, 1, best=(1, 0.5), interrupted=state == "stopped")
    run.close()
    lines = dict(line.split(": ", 1) for line in output.lines[-3:])
    assert lines["run"] == "runs/digits 1"
    assert lines["checkpoint"] == "runs/digits 1/checkpoints/00000010 (epoch 1, update 10)"
    if state == "done":
        assert lines["continue"] == "raise the limit and start it again with resume=True"
    else:
        assert lines["resume"] == "stoker resume 'runs/digits 1'"


def test_what_was_started_in_a_notebook_is_started_again_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "ipykernel_launcher", "-f", "kernel.json"])
    run = Run.create(tmp_path / "run")
    output = Output(run.record)
    begin(run.record)
    output.listener.close()
    run.close()
    assert output.lines[-1] == "resume: start it again with resume=True"


def test_cells_of_a_matrix_stay_out(record, output):
    begin(record)
    cells = {f"confusion/{row}/{column}": 1.0 for row in range(3) for column in range(3)}
    epoch(record, 1, valid={"loss": 0.5, **cells})
    assert output.lines[-1] == "epoch 1/4  train loss 1.000  valid loss 0.5000  2.00 s"
