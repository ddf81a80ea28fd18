"""A command line for a config: flags, help, a file to start from."""

import sys
from pathlib import Path
from typing import Literal

import pytest

from stoker.config import Config
from stoker.errors import ConfigError, MissingExtra


class Adam(Config):
    betas: tuple[float, float] = (0.9, 0.999)


class SGD(Config):
    momentum: float = 0.0


class ModelConfig(Config):
    num_classes: int
    hidden_size: int
    dropout: float = 0.5


class Flags(Config):
    model: ModelConfig
    shape: Literal["flat", "deep"] = "flat"
    where: Path = Path("runs")
    quick: bool = False
    optimizer: Adam | SGD = Adam()


def test_from_args_builds_a_command_line(tmp_path, monkeypatch, capsys):
    words = ["--model.num-classes", "10", "--model.hidden-size", "8", "--model.dropout", "1", "--quick"]
    made = Flags.from_args([*words, "--where", "elsewhere", "optimizer:sgd", "--optimizer.momentum", "0.5"])
    assert made == Flags(ModelConfig(10, 8, 1.0), "flat", Path("elsewhere"), True, SGD(0.5))
    assert type(made.model.dropout) is float
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    assert Flags.from_args() == Flags(ModelConfig(10, 8, 1.0), quick=True)
    with pytest.raises(SystemExit) as stop:
        Flags.from_args(["--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and "--model.hidden-size INT" in shown and "--config FILE.json" in shown
    with pytest.raises(SystemExit) as stop:
        Flags.from_args(["--model.hiden-size", "3"])
    assert stop.value.code == 2 and "hiden-size" in capsys.readouterr().err


@pytest.mark.parametrize("spelling", [["--config", "{}"], ["--config={}"]])
def test_from_args_starts_from_a_saved_config(tmp_path, spelling):
    path = Flags(ModelConfig(10, 8), shape="deep").save(tmp_path / "config.json")
    words = [word.format(path) for word in spelling]
    assert Flags.from_args([*words, "--model.dropout", "0.25"]) == Flags(ModelConfig(10, 8, 0.25), shape="deep")
    with pytest.raises(ConfigError, match="--config: expected a file after it"):
        Flags.from_args(["--config"])


def test_a_field_called_config_keeps_its_flag():
    class Named(Config):
        config: str = "a"

    assert Named.from_args(["--config", "b"]) == Named("b")


def test_from_args_says_how_to_get_tyro(monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(MissingExtra, match=r'pip install "stoker\[cli\]"'):
        Flags.from_args([])
