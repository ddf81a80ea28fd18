"""`fit` against its peers on the CPU: which contenders at which workload, each in its own process."""

import subprocess
import sys

from benchmarks import fit
from benchmarks._harness import in_turn


def test_the_toy_has_all_contenders_the_others_those_that_matter():
    assert contenders("toy") >= {
        "keras",
        "keras-jax",
        "huggingface",
        "skorch",
        "ignite",
        "accelerate",
        "stoker-compile",
    }
    for name in ("digits", "tabular"):
        assert contenders(name) == {
            *("dataloader", "indexing", "fused", "compile", "lightning", "jax", "jax-scan", "stoker", "stoker-compile")
        }


def contenders(work_name):
    return {*fit.contenders_of(work_name)}


def test_the_plain_loops_are_always_there():
    assert fit.contenders_of("toy", ["keras"]) == ["dataloader", "indexing", "fused", "keras"]


def test_a_contender_is_measured_in_its_own_process():
    ((result,),) = in_turn("benchmarks.fit", [("indexing", "toy", "cpu", "tiny")]).values()
    assert result["updates"] == 200 and result["frames"] == 0 and len(result["µs per update"]) == 5
    assert result["program, s"] > result["start, s"] > 0


def test_a_contender_that_is_none_is_named():
    command = [sys.executable, "-m", "benchmarks.fit", "toy", "-c", "kearas"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no such contender: kearas; there are dataloader, indexing" in done.stderr
