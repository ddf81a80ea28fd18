"""The GPU's benchmark, here on the CPU in tiny sizes: the same paths, and parts that add to one file."""

import json
import sys

import pytest

from benchmarks import gpu
from benchmarks._contenders import CONTENDERS


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--tiny", *arguments])
    gpu.main()


def test_parts_add_to_one_file(monkeypatch, capsys, tmp_path):
    path = tmp_path / "gpu.json"
    run(monkeypatch, "--workload", "gpt", "--contender", "dataloader", "--to", str(path))
    run(monkeypatch, "--workload", "gpt", "--contender", "stoker", "--to", str(path))
    kept = json.loads(path.read_text())
    assert list(kept["workloads"]["gpt"]["contenders"]) == ["dataloader", "stoker"]
    assert kept["device"] == "cpu" and kept["versions"].keys() == {"torch", "stoker"} and "gpu" in kept["machine"]
    table = capsys.readouterr().out.split("tokens/s")[-1]
    assert "DataLoader" in table and "  stoker  " in table  # the earlier part is in the later one's table
    assert "REFUSED" not in table


def test_a_process_that_takes_too_long_is_ended_and_told(monkeypatch, capsys):
    run(monkeypatch, "--workload", "digits", "--contender", "indexing", "--limit", "0.01")
    assert "indexing fell over: ended after 0 s" in capsys.readouterr().out


def test_a_workload_that_is_none_is_named(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--workload", "gtp")
    assert "no such workload: gtp; there are digits, resnet, gpt, tabular" in capsys.readouterr().err


def test_every_contender_of_the_gpu_is_one():
    assert {name for names in gpu.WORKLOADS.values() for name in names} <= CONTENDERS.keys()
