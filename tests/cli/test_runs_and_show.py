"""`stoker runs` and `stoker show`."""

import json
import os
from datetime import UTC, datetime

import pytest
import torch

from stoker.checkpoint import Place, Store
from stoker.cli import main
from stoker.record import Event, Run, _annotations
from tests.cli.terminals import StokerTerminal
from tests.record.examples import METRICS, append_fit


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_runs_in_every_state(capsys):
    for number, (name, options, after) in enumerate(
        [
            ("first", {"planned": 5}, []),
            ("early", {"stop": "Early stopping", "planned": 9}, []),
            ("group/running", {"end": False, "planned": None}, []),
            ("killed", {"end": False}, []),
            ("[red]odd", {"epochs": 0, "end": False}, [Event("error", text="RuntimeError: boom\nmore")]),
        ]
    ):
        run = Run.create(f"runs/{name}", facts={"started": float(number)})
        append_fit(run.record, **options)
        for event in after:
            run.record.append(event)
        if "running" in name:
            running = run
        else:
            run.close()
    assert main(["runs"]) == 0
    running.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "state", "epochs", "valid/loss", "time", "started", "settings"]
    words = [" ".join(line.split()) for line in lines[1:6]]
    assert words[4].startswith("first finished 5/5 0.5 0:50 1970-01-01"), "newest first"
    assert words[3].startswith("early finished 5/9 0.5 0:50 1970-01-01")
    assert words[2].startswith("group/running running 5 0.5 0:50 1970-01-01")
    assert words[1].startswith("killed died 5/5 0.5 0:50 1970-01-01")
    assert words[0].startswith("[red]odd failed 0/5 ") and words[0].endswith(" RuntimeError: boom")


@pytest.fixture
def sweep():
    """Four finished runs that differ in their learning rate, wherever it was given, and one that failed."""
    for number, (lr, config) in enumerate([(0.1, {}), (0.01, {}), (0.003, {"hidden": 64}), (1e-3, {"hidden": 32})]):
        settings = {"lr": lr, "batch_size": 32, "optimizer": "AdamW()"}
        facts = {"started": float(number), "settings": settings}
        run = Run.create(f"runs/sweep/learning-rate-{lr}-of-four", config={"model": config}, facts=facts)
        append_fit(run.record, planned=5)
        run.close()
    failed = Run.create("runs/failed", facts={"started": 9.0})
    failed.record.append(Event("error", text="RuntimeError: boom"))
    failed.close()


def names(capsys, *arguments):
    assert main(["runs", *arguments]) == 0
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:] if line and "stoker show" not in line]


def test_runs_are_filtered_by_settings_columns_and_metrics(sweep, capsys):
    rates = [f"sweep/learning-rate-{lr}-of-four" for lr in ("0.001", "0.003", "0.01", "0.1")]
    assert names(capsys) == ["failed", *rates]
    assert names(capsys, "lr<0.005") == rates[:2]
    assert names(capsys, "lr>=0.01", "runs") == rates[2:] and names(capsys, "lr=0.003") == [rates[1]]
    assert names(capsys, "state!=finished") == ["failed"]
    assert names(capsys, "optimizer=adamw*", "valid/loss<=0.5", "model.hidden=64") == [rates[1]]
    assert main(["runs", "lr<0"]) == 0
    assert capsys.readouterr().out == "none of the 5 runs in 'runs' meets this; --all shows archived runs\n"
    assert main(["runs", "batchsize=1"]) == 1
    assert "no run has 'batchsize'; did you mean 'batch_size'" in capsys.readouterr().err


def test_runs_are_sorted_and_printed_as_json(sweep, capsys):
    rates = [f"sweep/learning-rate-{lr}-of-four" for lr in ("0.001", "0.003", "0.01", "0.1")]
    assert names(capsys, "--sort", "lr") == [*rates, "failed"]
    assert names(capsys, "--sort", "lr", "--reverse") == [*reversed(rates), "failed"], "a missing value stays last"
    assert main(["runs", "lr<0.005", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["settings"]["lr"] for run in listed] == [0.001, 0.003]
    assert listed[0]["state"] == "finished" and listed[0]["best"]["value"] == 0.5 and listed[0]["epochs"] == 5


def test_a_run_is_one_line_at_80_columns(sweep):
    with StokerTerminal(["runs"], columns=80) as terminal:
        lines, code = terminal.until_end()
    assert code == 0 and len(lines) == 1 + 5 + 2 and max(map(len, lines)) < 80
    assert lines[0].split() == ["name", "state", "epochs", "valid/loss", "time", "settings"], "the start has no room"
    assert lines[2].split()[0] == "sweep/learnin…-0.001-of-four" and "lr=0.001" in lines[2], "both ends of a long name"


def test_tags_notes_titles_and_archives(sweep, capsys):
    best, other = "sweep/learning-rate-0.001-of-four", "sweep/learning-rate-0.1-of-four"
    assert main(["tag", best, "baseline", "paper"]) == 0 and main(["tag", best, "paper", "--remove"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"runs/{best}: baseline"
    assert main(["note", best, "the one for the paper"]) == 0 and main(["rename", best, "final"]) == 0
    assert main(["archive", other]) == 0
    assert capsys.readouterr().out.endswith("is archived; stoker runs --all lists it\n")
    assert other not in names(capsys) and other in names(capsys, "--all")
    assert names(capsys, "tag=baseline") == ["final"]
    shown = show(capsys, best)
    assert "  final\n  #baseline\n  the one for the paper\n" in shown
    assert main(["archive", other, "--undo"]) == 0 and other in names(capsys)
    assert main(["tag", best, "unknown", "--remove"]) == 1
    assert "has no tag unknown; its tags: baseline" in capsys.readouterr().err


def test_removed_runs_can_be_restored(sweep, capsys):
    first, second = "sweep/learning-rate-0.1-of-four", "failed"
    assert main(["rm", first, second]) == 0
    assert "`stoker rm --undo failed` restores it" in capsys.readouterr().out
    assert len(names(capsys)) == 3
    assert main(["rm", "--undo"]) == 0
    assert capsys.readouterr().out == "restored runs/failed\n", "the last one"
    assert main(["rm", "--undo", first]) == 0 and capsys.readouterr().out == f"restored runs/{first}\n"
    assert len(names(capsys)) == 5
    assert main(["rm", "--undo", "nothing"]) == 1
    assert "there is no run 'nothing' in the trash of 'runs'" in capsys.readouterr().err
    assert main(["rm"]) == 1 and "rm needs the name of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 11, 18, 20, 20, 20, 202020, UTC),  # each part of the name begins with -20
        datetime(2026, 1, 31, 0, 0, 0, 0, UTC),
        datetime(2120, 12, 31, 23, 59, 59, 999999, UTC),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["failed", "sweep/learning-rate-0.1-of-four", "group/run-2026"])
def test_a_run_that_was_removed_at_any_time_can_be_restored(moment, name, sweep, capsys, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return moment

    monkeypatch.setattr(_annotations, "datetime", Clock)
    Run.create("runs/group/run-2026").close()
    assert main(["rm", name]) == 0 and main(["rm", "--undo", name]) == 0
    assert capsys.readouterr().out.endswith(f"restored runs/{name}\n")


def test_an_empty_directory_and_a_missing_one(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "nowhere")]) == 1
    assert "stoker: there is no directory" in capsys.readouterr().err


def test_runs_that_cannot_be_read_are_named(tmp_path, monkeypatch, capsys):
    for name in ("locked", "emptied"):
        Run.create(tmp_path / name).close()
        (tmp_path / name / "checkpoints").mkdir()
    (tmp_path / "emptied" / "events.jsonl").unlink()
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)  # root is not stopped by permissions
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}/locked can't be read: Permission denied" in out and "no runs" not in out
    assert "emptied: events.jsonl can't be read: No such file or directory" in out
    assert main(["runs", str(tmp_path / "locked")]) == 0
    out = capsys.readouterr().out
    assert out == f"{tmp_path}/locked can't be read: Permission denied\n"
    monkeypatch.setattr("os.walk", lambda *args, **options: scandir("/proc/1/nothing"))
    assert main(["runs", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "stoker: /proc/1/nothing: No such file or directory\n"


def test_damage_is_listed_and_control_characters_are_escaped(tmp_path, capsys):
    for name in ("esc\x1b[31mred", "digits"):
        run = Run.create(tmp_path / name)
        append_fit(run.record)
        run.close()
    with (tmp_path / "digits" / "events.jsonl").open("ab") as file:
        file.write(b"nonsense\n" * 3)
    (tmp_path / "digits" / "run.json").write_text("{")
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    words = [line.split()[:3] for line in out.splitlines()]
    assert ["digits", "finished", "5/5"] in words
    assert ["esc\\x1b[31mred", "finished", "5/5"] in words and "\x1b" not in out
    assert "digits: 3 damaged lines were skipped\ndigits: run.json can't be read\n" in out
    lines = show(capsys, str(tmp_path / "digits")).splitlines()
    assert lines[1:3] == ["  3 damaged lines were skipped", "  run.json can't be read"]
    assert "  5 of 5 epochs, 50 updates, 50.0 s" in lines


@pytest.fixture
def run():
    config = {"model": {"hidden": 128}, "names": ["[b]x"]}
    made = Run.create("runs/digits", config=config, facts={"git": "abc123", "settings": {"lr": 0.1}})
    yield made
    made.close()


def show(capsys, name="digits", *options):
    assert main(["show", name, *options]) == 0
    return capsys.readouterr().out


def test_show_has_everything_about_a_run(run, capsys):
    append_fit(run.record, stop="Early stopping at epoch 5 of 9", planned=9)
    run.record.append(Event("warning", text="careful [b]"))
    out = show(capsys)
    assert show(capsys, "runs/digits") == out
    lines = out.splitlines()
    assert lines[0] == "runs/digits: finished"
    for line in (
        "  Net, 1,234 parameters, on cpu",
        "  5 of 9 epochs, 50 updates, 50.0 s",
        "  best valid/loss 0.5 (epoch 3)",
        "  git abc123",
        "*     3      0.3333          0.7500      0.5000          0.5300  0.03333",
        "  model.hidden = 128",
        "  names = ['[b]x']",
        "  lr = 0.1",
        "  careful [b]",
        "  Early stopping at epoch 5 of 9",
    ):
        assert line in lines, line
    assert "━ train/loss  o valid/loss" in out and "┤" in out and "⡀" in out, "a pipe has no colors"


def test_show_a_running_and_a_killed_run(run, capsys):
    assert "still running\n  no events yet" in show(capsys)
    append_fit(run.record, end=False)
    assert "still running\n  last event: 1970-" in show(capsys)
    run.close()
    assert "end\n  the process ended without finishing the run; last event: 1970-" in show(capsys)
    assert main(["runs", str(run.path)]) == 0  # the directory of a run lists that run
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["digits", "died"]


def test_show_an_epoch_that_was_cut_short_by_an_exception(run, capsys):
    run.record.append(Event("begin", 1.0, extra={"epochs": 50, "batches": 25}))
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in [b]\nRuntimeError: boom\n'
    run.record.append(Event("error", text="RuntimeError: boom", extra={"traceback": trace}))
    for kind in ("epoch", "end"):
        run.record.append(Event(kind, 2.0, epoch=41, batch=3, update=1003))
    out = show(capsys)
    assert "digits: failed" in out and "  40 of 50 epochs and 3 of 25 batches, 1,003 updates" in out
    assert "  error: RuntimeError: boom\n  Traceback" in out and "line 1, in [b]" in out


def test_show_draws_running_values_of_a_single_epoch(run, capsys):
    for second in range(20):
        values = {"train/loss": 20.0 - second}
        run.record.append(Event("progress", float(second), epoch=1, update=second, values=values))
    run.record.append(Event("epoch", 20.0, epoch=1, update=20, values={"train/loss": 1.0}))
    assert "━ train/loss" in show(capsys)


def test_a_wrong_name_is_an_error_with_a_suggestion(run, capsys):
    assert main(["show", "digit"]) == 1
    assert capsys.readouterr().err == "stoker: there is no run 'digit'; did you mean 'digits'?\n"
    assert main(["show", "zzz"]) == 1
    assert "there is no run 'zzz'; there are: digits" in capsys.readouterr().err
    assert main(["show", "runs"]) == 1
    assert "'runs' is not a run: it has no events.jsonl" in capsys.readouterr().err


def test_a_run_takes_precedence_over_another_directory_of_its_name(run, tmp_path, capsys):
    (tmp_path / "digits").mkdir()
    assert show(capsys).startswith("runs/digits: running")


def test_show_escapes_control_characters(run, capsys):
    run.record.append(Event("warning", text="hot\x1b[2K\ntwo\r"))
    Run.create("runs/esc\x1b[31mred", config={"a\x1b": "b\x1b"}).close()
    assert "  hot\\x1b[2K\ntwo\\r\n" in show(capsys)
    out = show(capsys, "esc\x1b[31mred")
    assert "\x1b" not in out and out.startswith("runs/esc\\x1b[31mred: died") and "a\\x1b = b\\x1b" in out
    assert main(["show", "zzz"]) == 1
    assert "there are: digits, esc\\x1b[31mred" in capsys.readouterr().err


@pytest.fixture
def checkpoints(run):
    """Three checkpoints; the second is the first with the best validation loss."""
    append_fit(run.record, epochs=3, end=False)
    store = Store(run.path / "checkpoints", run=run.id)
    for epoch, loss in enumerate([0.7, 0.5, 0.5], 1):
        values = {"valid/loss": loss, "valid/accuracy": epoch / 10}
        place = Place(epoch=epoch, batch=10, update=1000 * epoch, reason="every epoch [b]", values=values)
        store.write({"model": {"weight": torch.full((500,), float(epoch))}}, place)
    return run.path / "checkpoints"


def test_show_lists_checkpoints_and_marks_the_best(run, checkpoints, capsys):
    out = show(capsys)
    lines = out[out.index("checkpoints") :].splitlines()
    assert lines[1].split() == ["name", "epoch", "update", "saved", "size", "reason"]
    assert lines[2].startswith("  00001000  1      1,000   20") and lines[2].rstrip().endswith("kB  every epoch [b]")
    assert lines[3].startswith("* 00002000  2      2,000   20")
    assert lines[4].startswith("  00003000") and lines[5] == "  * best valid/loss"
    assert "damaged" not in out
    run.record.append(Event("begin", extra={"metrics": METRICS, "monitor": "valid/accuracy"}))
    assert "* 00003000" in show(capsys)


def test_show_verify_names_damaged_checkpoints(run, checkpoints, capsys):
    assert "all checkpoints are intact" in show(capsys, "digits", "--verify")
    (checkpoints / "00001000" / "manifest.json").write_text("{")
    weights = checkpoints / "00002000" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    out = show(capsys)
    assert "00001000" not in out and "* 00002000" in out and "damaged" not in out
    assert main(["show", "digits", "--verify"]) == 1
    out, err = capsys.readouterr()
    assert err == "stoker: 2 of the checkpoints in 'runs/digits' are damaged\n"
    assert "\n  damaged: 00001000/manifest.json" in out and "\n  damaged: 00002000/model.safetensors" in out
    assert "intact" not in out


def test_show_a_run_without_checkpoints_and_a_file_in_their_place(capsys):
    other = Run.create("runs/other")
    other.close()
    assert "checkpoints" not in show(capsys, "other", "--verify")
    (other.path / "checkpoints").write_text("a file")
    assert "checkpoints can't be read" in show(capsys, "other")
