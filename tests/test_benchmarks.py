"""Each benchmark's command line runs in its smallest form; a contender that did other work is refused."""

import math
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from benchmarks import _compare, _workloads, fit, publish
from benchmarks._harness import fill_page
from torture.processes import Child

ROOT = Path(fit.__file__).parents[1]


def run(module, *arguments):
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "failed" not in done.stdout, done.stdout + done.stderr
    assert "written to" not in done.stdout  # short forms write no results
    return done.stdout


COMMANDS = {
    "fit": (["toy", "--quick", "-c", "stoker"], "stoker relative to dataloader"),
    "gpu": (["--device", "cpu", "--tiny", "--workload", "gpt", "--contender", "fused,stoker"], "tokens/s"),
    "examples": (["--device", "cpu", "--tiny", "--example", "detection,gan,vae"], "one operation after the other"),
    "sweep": (["--quick", "accumulate"], "stoker × indexing"),
    "own_loop": (["toy", "--passes", "1", "--rounds", "1", "--no-file"], "stoker's parts, fused Adam"),
    "compile": (["digits", "--quick"], "ratio"),
    "samples": (["small", "--rounds", "1", "--no-file"], "list of tuples"),
    "evaluate": (["predict", "--rows", "4096", "--rounds", "1", "--no-file"], "the outputs for all rows"),
    "save": (["--quick"], "stoker, background=True"),
    "record": (["--quick"], "Follower, msgspec"),
    "viewers": (["--quick"], "stoker ui"),
    "ranks": (["--quick"], "update, fit"),
    "monitoring": (["--quick"], "10 runs: list"),
    "large_run": (["--quick"], "hours between failures"),
}


FAST = ("record",)


@pytest.mark.timeout(900)  # compiling takes minutes on a busy machine
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in FAST else pytest.mark.soak) for each in COMMANDS]
)
def test_a_command_line_runs_in_its_short_form(name):
    arguments, expected = COMMANDS[name]
    out = run(name, *arguments)
    assert expected in out and "REFUSED" not in out


def exit_codes(commands):
    """Prints the exit code of each command line after its output."""
    warnings.simplefilter("ignore", RuntimeWarning)  # of runpy: this module has imported one of them
    for name, *arguments in commands:
        sys.argv = [name, *arguments]
        try:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        except SystemExit as end:
            print("ended", name, end.code, flush=True)


def test_command_lines_have_help_texts_and_name_the_known_contenders(tmp_path):
    names = [*COMMANDS, "publish", "ragged"]
    commands = [*([name, "--help"] for name in names), ["fit", "toy", "-c", "kearas"]]
    child = Child(exit_codes, commands, prints=tmp_path / "printed.txt")
    assert child.wait() == 0, child.printed()
    outputs = re.split(r"ended (\w+ \d+)\n", child.printed())
    assert outputs[1::2] == [*(f"{name} 0" for name in names), "fit 2"]
    assert all("usage" in output for output in outputs[:-1:2])
    assert "no such contender: kearas; there are dataloader, indexing" in outputs[-3]


def test_a_contender_that_did_other_work_is_refused_and_meets_no_target():
    work = _workloads.workload("toy", tiny=True)
    same = {"epochs": 20, "updates": 200, "loss": 1.0, "µs per update": [4.0]}
    found = {
        "dataloader": {**same, "µs per update": [10.0]},
        "stoker": same,
        "jax": {**same, "updates": 190},
        "keras": {**same, "loss": 1.1},
        "skorch": {**same, "loss": float("nan")},
    }
    assert list(_compare.accepted(work, found)) == ["dataloader", "stoker"]
    assert list(_compare.check_targets(found, "cpu", "toy")) == [
        "stoker relative to dataloader: 0.400, target ≤ 0.5: met"
    ]


def test_the_tables_of_the_scaling_page_are_those_of_the_results():
    from benchmarks import large_run, ranks

    page = ranks.PAGE.read_text()
    assert ranks.replace_tables(page, ranks.newest_results()) == page
    assert large_run.replace_tables(page, large_run.newest("large_run")["parts"]) == page


def test_the_simulated_failures_agree_with_what_they_cost_on_average():
    from benchmarks.large_run import best_interval, simulate

    hours, held, restart, days = 10.0, 5.0, 300.0, 100

    def hours_of(interval):
        runs = [simulate(hours, interval, held, 0.0, restart, days, seed) for seed in range(40)]
        return sum(run["hours"] for run in runs) / len(runs)

    best = best_interval(hours, held)
    # An exponential time between failures, and a segment that is repeated until it succeeds (Daly's exact model).
    rate, cycle = 1 / (hours * 3600), best + held
    expected = days * 86400 / best * (1 / rate + restart) * math.expm1(rate * cycle) / 3600
    assert hours_of(best) == pytest.approx(expected, rel=0.01)
    assert hours_of(best) < min(hours_of(best / 4), hours_of(best * 4))


def test_the_tables_of_the_pages_are_those_of_the_results():
    for path, by_name in publish.tables(publish.load_results(publish.RESULTS), publish.RESULTS).items():
        assert fill_page(path.read_text(), by_name) == path.read_text(), f"{path.name}: python -m benchmarks.publish"
