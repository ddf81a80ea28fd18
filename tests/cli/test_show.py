"""`stoker show RUN`."""

import pytest

from stoker.cli import main
from stoker.record import Event, Run
from tests.record.stories import fill


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Run.create(
        "runs/digits",
        config={"model": {"hidden": 128}, "names": ["[b]x"]},
        facts={"git": "abc123", "settings": {"lr": 0.1}},
    )
    yield made
    made.close()


def shown(capsys, name="digits"):
    assert main(["show", name]) == 0
    return capsys.readouterr().out


def test_everything_about_a_run(run, capsys):
    fill(run.record, stop="Early stopping at epoch 5 of 9", planned=9)
    run.record.append(Event("warning", text="careful [b]"))
    out = shown(capsys)
    assert shown(capsys, "runs/digits") == out
    lines = out.splitlines()
    assert lines[0] == "runs/digits: stopped"
    for line in (
        "  Net, 1,234 parameters, on cpu",
        "  5 of 9 epochs, 50 updates, 50.0 s",
        "  best valid/loss 0.5 (epoch 3)",
        "  git abc123",
        "*     3      0.3333          0.7500      0.5000          0.5300  0.03333",
        "  model.hidden = 128",
        "  names = ['[b]x']",
        "  settings.lr = 0.1",
        "  careful [b]",
        "  Early stopping at epoch 5 of 9",
    ):
        assert line in lines, line
    assert "━ train/loss  o valid/loss" in out and "┤" in out and "⡀" in out, "a pipe has no colours"


def test_a_run_that_goes_on_or_went_away(run, capsys):
    fill(run.record, end=False)
    assert "it is still running\n  the last event came 1970-" in shown(capsys)
    run.close()
    assert "how it ended\n  the process ended without finishing the run; the last event came 1970-" in shown(capsys)


def test_an_exception_is_shown_with_where_it_came_from(run, capsys):
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in [b]\nRuntimeError: boom\n'
    run.record.append(Event("error", text="RuntimeError: boom", extra={"traceback": trace}))
    out = shown(capsys)
    assert "digits: died" in out and "  error: RuntimeError: boom\n  Traceback" in out and "line 1, in [b]" in out


def test_a_run_of_one_epoch_is_drawn_from_what_came_on_the_way(run, capsys):
    for second in range(20):
        run.record.append(
            Event("progress", float(second), epoch=1, update=second, values={"train/loss": 20.0 - second})
        )
    run.record.append(Event("epoch", 20.0, epoch=1, update=20, values={"train/loss": 1.0}))
    assert "━ train/loss" in shown(capsys)


def test_an_empty_run(run, capsys):
    assert "nothing" in shown(capsys) or "still running" in shown(capsys)


def test_a_name_that_is_nearly_one(run, capsys):
    assert main(["show", "digit"]) == 1
    assert capsys.readouterr().err == "stoker: there is no run 'digit'; did you mean 'digits'?\n"
    assert main(["show", "zzz"]) == 1
    assert "there is no run 'zzz'; there are: digits" in capsys.readouterr().err
    assert main(["show", "runs"]) == 1
    assert "'runs' is not a run: it has no events.jsonl" in capsys.readouterr().err


def test_a_damaged_run_is_shown_around_the_damage(run, capsys):
    fill(run.record)
    run.close()
    with open("runs/digits/events.jsonl", "ab") as file:
        file.write(b"nonsense\n\x00\xff\n")
    (run.path / "run.json").write_text("{")
    lines = shown(capsys).splitlines()
    assert lines[:3] == ["runs/digits: finished", "  2 damaged lines were skipped", "  run.json can't be read"]
    assert "  5 of 5 epochs, 50 updates, 50.0 s" in lines


def test_names_and_texts_cannot_move_the_cursor(run, capsys):
    run.record.append(Event("warning", text="hot\x1b[2K"))
    Run.create("runs/esc\x1b[31mred", config={"a\x1b": "b\x1b"}).close()
    assert "  hot\\x1b[2K" in shown(capsys)
    out = shown(capsys, "esc\x1b[31mred")
    assert "\x1b" not in out and out.startswith("runs/esc\\x1b[31mred: died") and "a\\x1b = b\\x1b" in out
    assert main(["show", "zzz"]) == 1
    assert "there are: digits, esc\\x1b[31mred" in capsys.readouterr().err


def test_a_folder_that_is_no_run_gives_way_to_a_run(run, tmp_path, capsys):
    (tmp_path / "digits").mkdir()
    assert shown(capsys).startswith("runs/digits: running")


def test_an_epoch_that_was_cut_short(run, capsys):
    run.record.append(Event("begin", 1.0, extra={"epochs": 50, "batches": 25}))
    for kind in ("epoch", "end"):
        run.record.append(Event(kind, 2.0, epoch=41, batch=3, update=1003))
    assert "  40 of 50 epochs and 3 of 25 batches, 1,003 updates" in shown(capsys)
