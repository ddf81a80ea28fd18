"""The table of a workload: passes put together, those that fell over told, those that did other work refused."""

from benchmarks import _board
from benchmarks._board import report, run, sound
from benchmarks._workloads import workload

TOY = workload("toy")
NUMBERS = {
    "start, s": 1.0,
    "program, s": 1.5,
    "memory, MB": {"process": 300.0},
    "frames": 3,
    "epochs": TOY.epochs,
    "updates": TOY.epochs * TOY.updates,
    "loss": 1.4,
}


def measured(monkeypatch, results):
    monkeypatch.setattr(_board, "results_of", lambda module, tasks, **_: iter(results))


def test_the_times_of_all_passes_are_put_together(monkeypatch):
    times = [[1.0, 2.0], [3.0]]
    measured(monkeypatch, [(("stoker",), {**NUMBERS, "µs per update": each}, None) for each in times])
    found, failed = run("some.module", TOY, ["stoker"], 2)
    assert found["stoker"]["µs per update"] == [1.0, 2.0, 3.0] and found["stoker"]["start, s"] == [1.0, 1.0]
    assert found["stoker"]["loss"] == 1.4 and failed == {}


def test_one_that_falls_over_is_told_by_its_last_line_and_the_others_go_on(monkeypatch, capsys):
    results = [
        (("stoker-compile",), None, "Traceback\n  ...\nTypeError: no such argument\n"),
        (("stoker",), {**NUMBERS, "µs per update": [1.0]}, None),
    ]
    measured(monkeypatch, results)
    told = []
    found, failed = run("some.module", TOY, [], 1, after=lambda name, *_: told.append(name))
    assert list(found) == ["stoker"] and failed == {"stoker-compile": "TypeError: no such argument"}
    assert "stoker-compile fell over: TypeError: no such argument" in capsys.readouterr().out
    assert told == ["stoker-compile", "stoker"]


def several(**times):
    lists = {**NUMBERS, "start, s": [1.0], "program, s": [1.5]}
    return {name.replace("_", "-"): {**lists, "µs per update": each} for name, each in times.items()}


def test_the_table_has_ratios_to_the_plain_loops_pace_and_bars(capsys):
    report(TOY, several(dataloader=[600.0, 700.0, 680.0], indexing=[340.0], stoker=[170.0]))
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("  stoker  ")]
    assert row.split()[1:] == [
        "170.0",
        "170.0–170.0",
        "0.250",
        "0.500",
        "588,235",
        "1.00",
        "1.50",
        "300",
        "3",
        "1.4000",
    ]
    assert "  stoker against dataloader: 0.250, bar ≤ 0.5: met" in lines


def test_what_is_refused_is_told_meets_no_bar_and_is_not_kept(capsys):
    found = several(dataloader=[600.0], jax=[170.0], stoker=[60.0])
    found["stoker"]["loss"] = 2.9
    report(TOY, found)
    out = capsys.readouterr().out
    assert "REFUSED: stoker came to a loss of 2.9000, the plain loop to 1.4000" in out
    assert "bar" not in out
    assert list(sound(TOY, found)) == ["dataloader", "jax"]
