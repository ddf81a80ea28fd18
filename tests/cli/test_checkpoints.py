"""The checkpoints that `stoker show` lists."""

import pytest
import torch

from stoker.checkpoint import Place
from stoker.cli import main
from stoker.cli._checkpoints import best_of, problems, store_of
from stoker.record import Event, Follower, Run, checkpoints
from stoker.record._event import to_line
from tests.record.stories import fill


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Run.create("runs/digits")
    fill(made.record, epochs=3, end=False)
    made.close()
    store = store_of(made)
    for epoch, loss in enumerate([0.7, 0.5, 0.5], 1):
        values = {"valid/loss": loss, "valid/accuracy": epoch / 10}
        place = Place(epoch=epoch, batch=10, update=1000 * epoch, reason="every epoch [b]", values=values)
        store.write({"model": {"weight": torch.full((500,), float(epoch))}}, place)
    yield made
    made.close()


def shown(capsys, *options):
    assert main(["show", "digits", *options]) == 0
    return capsys.readouterr().out


def test_they_are_listed_and_the_best_is_marked(run, capsys):
    out = shown(capsys)
    lines = out[out.index("checkpoints") :].splitlines()
    assert lines[1].split() == ["name", "epoch", "update", "saved", "size", "why"]
    assert lines[2].startswith("  00001000  1      1,000   20") and lines[2].rstrip().endswith("kB  every epoch [b]")
    assert lines[3].startswith("* 00002000  2      2,000   20")  # the first of equals
    assert lines[4].startswith("  00003000") and lines[5] == "  * best valid/loss"
    assert "damaged" not in out


def test_more_is_better_of_some_numbers(run):
    begin = run.record.events_of("begin")[0]
    run.record.append(Event("begin", extra={**begin.extra, "monitor": "valid/accuracy"}))
    (run.path / "events.jsonl").write_bytes(b"".join(map(to_line, run.record.events)))
    found = Follower(run.path)
    found.refresh()
    assert best_of(checkpoints(run.path, run.facts), found).name == "00003000"
    assert best_of([], found) is None


def test_damaged_ones_are_named_when_all_are_read(run, capsys):
    assert "every byte of them is as it was written" in shown(capsys, "--verify")
    folder = run.path / "checkpoints"
    (folder / "00001000" / "manifest.json").write_text("{")
    weights = folder / "00002000" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    out = shown(capsys)
    assert "00001000" not in out and "* 00002000" in out and "damaged" not in out
    assert main(["show", "digits", "--verify"]) == 1
    told = capsys.readouterr()
    out = told.out
    assert told.err == "stoker: 2 of the checkpoints in 'runs/digits' can't be read whole\n"
    assert "\n  damaged: 00001000/manifest.json" in out and "\n  damaged: 00002000/model.safetensors" in out
    assert "every byte" not in out and len(problems(store_of(run))) == 2


def test_a_run_without_any_and_a_folder_that_is_none(run, capsys):
    other = Run.create("runs/other")
    other.close()
    assert main(["show", "other", "--verify"]) == 0 and "checkpoints" not in capsys.readouterr().out
    (other.path / "checkpoints").write_text("a file")
    assert main(["show", "other"]) == 0 and "checkpoints" in capsys.readouterr().out
