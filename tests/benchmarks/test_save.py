"""What a save costs: the contenders save the same state, and the table has their ratios."""

import subprocess
import sys

import pytest
import torch

from benchmarks import save
from benchmarks._harness import in_turn


@pytest.mark.parametrize("name", list(save.CONTENDERS))
def test_a_contender_saves_the_whole_state(name, tmp_path):
    state, update = save.workload("1 MB")
    saver = save.contender(name, tmp_path)
    for number in (1, 2):
        update()
        saver.save(state(), number)
        saver.wait()
    found, expected = saver.read(), state()
    for key, tensor in expected["model"].items():
        assert torch.equal(found["model"][key], tensor)
    for place, moments in expected["optimizer"]["state"].items():
        assert torch.equal(found["optimizer"]["state"][place]["exp_avg_sq"], moments["exp_avg_sq"])
    assert len(list(tmp_path.iterdir())) == 1  # the one before is gone


@pytest.mark.parametrize("size", ["1 MB", "10 MB"])
def test_a_state_has_the_size_it_is_called_by(size):
    state, _ = save.workload(size)
    tensors = [*state()["model"].values()]
    for moments in state()["optimizer"]["state"].values():
        tensors += [moments["exp_avg"], moments["exp_avg_sq"]]
    assert sum(each.nbytes for each in tensors) == pytest.approx(save.SIZES[size], rel=0.25)


def test_a_contender_is_measured_in_its_own_process():
    ((result,),) = in_turn("benchmarks.save", [("background", "1 MB", "2")]).values()
    assert {key: len(values) for key, values in result.items()} == {
        "held": 2,
        "whole": 2,
        "beside": 2,
        "lost": 2,
        "update": 1,
    }
    assert min(result["held"]) > 0 and max(result["held"]) < 1e6


def test_the_table_has_ratios_to_torch_save(capsys):
    base = {"held": [8.0, 10.0, 12.0], "whole": [10.0], "beside": [1.0], "lost": [10.0], "update": [5.0]}
    other = {"held": [1.0], "whole": [20.0], "beside": [1.25], "lost": [5.0], "update": [5.0]}
    save.report({"10 MB": {"torch.save": base, "blocking": base, "background": other}})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "10 MB of state, an update takes 5.0 ms; one thread, medians in ms"
    assert lines[-1].split()[-6:] == ["1.00", "0.100", "5.00", "0.500", "20.0", "1.25×"]


def test_a_size_that_is_none_is_named():
    done = subprocess.run([sys.executable, "-m", "benchmarks.save", "3 TB"], capture_output=True, text=True)
    assert done.returncode == 2 and "no such size: 3 TB; there are 1 MB, 10 MB, 500 MB, 2 GB" in done.stderr
