"""`stoker import LOG -o RUN`."""

import pytest

from stoker.cli import main
from tests.record.test_import import HPARAMS, LIGHTNING


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "version_0"
    folder.mkdir()
    (folder / "metrics.csv").write_text(LIGHTNING)
    (folder / "hparams.yaml").write_text(HPARAMS)
    return folder


def test_a_log_becomes_a_run_that_the_other_commands_show(capsys):
    assert main(["import", "version_0", "-o", "runs/old"]) == 0
    assert capsys.readouterr().out == (
        "runs/old: 2 epochs, 8 updates, lr-SGD, valid/acc, valid/loss, train/loss\nstoker show runs/old shows it\n"
    )
    assert main(["runs"]) == 0 and main(["show", "old"]) == 0
    out = capsys.readouterr().out
    assert "valid/loss 1.502 (epoch 2)" in out and "hidden = 4" in out
    assert main(["resume", "old", "--yes"]) == 1
    assert "'runs/old' is over: 2 epochs are done" in capsys.readouterr().err


def test_names_can_stay_and_what_is_left_out_is_said(log, capsys):
    (log / "hparams.yaml").write_text("a: [")
    assert main(["import", "version_0", "-o", "runs/old", "--keep-names"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("hparams.yaml is left out") and "val_loss" in out


def test_errors_are_told(capsys):
    assert main(["import", "nowhere", "-o", "runs/old"]) == 1
    assert capsys.readouterr().err == "stoker: there is nothing at 'nowhere'\n"
    assert main(["import", "version_0", "-o", "runs/old"]) == main(["import", "version_0", "-o", "runs/old"]) - 1 == 0
    assert capsys.readouterr().err == (
        "stoker: 'runs/old' already holds a run, and an import makes a new one; give another path with -o\n"
    )
