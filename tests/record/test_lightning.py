import os
import sys

import pytest

from stoker import BadFile, MissingExtra
from stoker.record._lightning import read_hparams, read_metrics


def test_rows_are_read_with_counts_of_what_is_done(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train_loss,val_loss\n,0,,\n0,3,0.5,\n0,3,,nan\n1,7,0.25,inf\n")
    (tmp_path / "hparams.yaml").write_text("")
    os.utime(tmp_path / "hparams.yaml", (100, 100))
    os.utime(path, (180, 180))
    rows = read_metrics(path)
    assert [(row.update, row.epoch, row.time) for row in rows] == [
        (1, None, 110),
        (4, 1, 140),
        (4, 1, 140),
        (8, 2, 180),
    ]
    assert rows[1].values == {"train_loss": 0.5} and rows[3].values == {"train_loss": 0.25, "val_loss": float("inf")}
    assert list(rows[2].values) == ["val_loss"] and rows[0].values == {}


@pytest.mark.parametrize(
    "text", ["name,age\nada,36\n", "epoch,step,a\n0,x,1\n", "epoch,step,a\n0,1,x\n", "epoch,step,a\n0,1,2,3\n", "\0"]
)
def test_a_table_of_something_else_is_refused(tmp_path, text):
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    if text == "\0":
        assert read_metrics(path) == []  # a header, and nothing below it
        return
    with pytest.raises(BadFile, match=r"metrics.csv: expected the metrics of Lightning's CSVLogger, but: "):
        read_metrics(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("step,a\n-1,1\n", "expected steps from 0 up, got -1 alone"),
        ("step,a\n-2,1\n", "expected a count from 0 up to 9223372036854775806, got '-2'"),
        (f"step,a\n{'9' * 400},1\n", f"got '{'9' * 20}'"),
        (f"epoch,step,a\n{'9' * 400},1,1\n", f"got '{'9' * 20}'"),
    ],
    ids=["alone", "negative", "long step", "long epoch"],
)
def test_steps_and_epochs_that_can_not_be_are_refused(tmp_path, text, problem):
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    with pytest.raises(BadFile, match=r"metrics.csv: expected ") as refused:
        read_metrics(path)
    assert problem in str(refused.value) and len(str(refused.value)) < 300


def test_a_step_before_the_first_one_is_update_0(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,a\n-1,1\n3,2\n")
    assert [row.update for row in read_metrics(tmp_path / "metrics.csv")] == [0, 4]


def test_hyperparameters_that_are_no_file_are_refused(tmp_path):
    (tmp_path / "hparams.yaml").mkdir()
    with pytest.raises(BadFile, match=r"hparams.yaml can't be read: .*directory; move it away, .* without a config"):
        read_hparams(tmp_path)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("hidden: 4\nlr: 0.1\n", {"hidden": 4, "lr": 0.1}),
        ("names: !!python/tuple\n- a\n- b\n", {"names": ["a", "b"]}),
        ("loss: !!python/object/apply:os.system ['touch boom']\n", {"loss": "object/apply:os.system"}),
        ("model: !!python/name:torch.nn.Linear ''\n", {"model": "name:torch.nn.Linear"}),
        ("{}\n", None),
        ("", None),
    ],
)
def test_hyperparameters_are_read_and_no_code_is_run(tmp_path, monkeypatch, text, config):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hparams.yaml").write_text(text)
    assert read_hparams(tmp_path) == (config, "")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x\n", "a: [\n", "a: !other 1\n"])
def test_what_can_not_be_taken_is_said(tmp_path, text):
    (tmp_path / "hparams.yaml").write_text(text)
    config, problem = read_hparams(tmp_path)
    assert config is None and problem.startswith("hparams.yaml is left out: ")


def test_without_pyyaml_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert read_hparams(tmp_path) == (None, "")
    (tmp_path / "hparams.yaml").write_text("lr: 0.1\n")
    with pytest.raises(MissingExtra, match=r"hparams.yaml needs PyYAML: pip install pyyaml"):
        read_hparams(tmp_path)
