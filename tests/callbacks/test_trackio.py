"""With the real Trackio, and a database in the run's directory."""

import json
import os
import sqlite3
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from stoker import InvalidArgument
from stoker.callbacks import Trackio, _trackio_process, on
from stoker.callbacks._sink import Tracked
from stoker.callbacks._trackio import _Process
from tests.callbacks.tracked import CONFIG, PATIENCE, cut_off_and_resumed, fit, offline, points, same, warnings


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    offline(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


def rows(database, table, *columns):
    connection = sqlite3.connect(database)
    try:
        return connection.execute(f"select {', '.join(columns)} from {table} order by id").fetchall()
    finally:
        connection.close()


def numbers(database):
    found = {}
    for step, metrics in rows(database, "metrics", "step", "metrics"):
        for name, value in json.loads(metrics).items():
            if name not in ("epoch", "said"):
                found.setdefault(name, []).append((step, value))
    return found


def test_a_run_that_is_cut_off_and_resumed_is_one_run_with_each_number_once(tmp_path):
    run = cut_off_and_resumed(lambda: Trackio("digits", progress=None, patience=PATIENCE), tmp_path / "run")
    assert warnings(run) == []
    database = tmp_path / "run" / "trackio" / "digits.db"
    assert same(numbers(database), points(run))
    assert {name for (name,) in rows(database, "metrics", "run_name")} == {f"run-{run.id[:8]}"}
    ((config,),) = rows(database, "configs", "config")
    assert {name: json.loads(config)[name] for name in CONFIG} == CONFIG
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert "TRACKIO_DIR" not in os.environ


def test_two_runs_of_a_process_have_databases_of_their_own(tmp_path):
    for name in ("a", "b"):
        run = fit(Trackio("digits", progress=None, patience=PATIENCE), run=tmp_path / name, epochs=1)
        assert same(numbers(tmp_path / name / "trackio" / "digits.db"), points(run))


def test_what_the_run_says_is_there(tmp_path):
    fit(
        Trackio(patience=PATIENCE),
        run=tmp_path / "run",
        epochs=1,
        more=[on(epoch_end=lambda ctx: ctx.note("hello *there*"))],
    )
    found = [metrics for (metrics,) in rows(tmp_path / "run" / "trackio" / "stoker.db", "metrics", "metrics")]
    assert any("hello *there*" in str(metrics) for metrics in found)


@pytest.mark.parametrize("opens", [True, False])
def test_a_worker_that_was_forked_does_not_keep_the_process_from_ending(tmp_path, monkeypatch, opens):
    script = tmp_path / "process.py"
    script.write_text(
        f"import sys; sys.path.append({str(Path(_trackio_process.__file__).parent)!r})\n"
        "from _trackio_process import Desk, main\n"
        f"Desk.open = lambda self, **given: {'[]' if opens else '1 / 0'}\n"
        "Desk.close = lambda self: None\n"
        "main(sys.stdin, sys.stdout)\n"
    )
    monkeypatch.setattr(_trackio_process, "__file__", str(script))
    sink, ask, held = _Process("digits"), _Process._ask, []

    def asked(self, what, **given):
        if not held:
            held.append(os.dup(self._process.stdin.fileno()))  # as a worker has it
        return ask(self, what, **given)

    def work():
        with nullcontext() if opens else pytest.raises(RuntimeError, match="ZeroDivisionError"):
            sink.open(Tracked("1f", "digits", tmp_path, None, {}, 0, 1.0))
            sink.close("finished")

    monkeypatch.setattr(_Process, "_ask", asked)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE / 4)
    waits = thread.is_alive()
    os.close(held[0])
    thread.join()
    assert not waits and sink._process.poll() is not None


def test_a_folder_is_needed_and_a_process_that_dies_costs_a_warning(tmp_path, monkeypatch):
    with pytest.raises(InvalidArgument, match="Trackio writes files"):
        fit(Trackio())
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)")
    monkeypatch.setattr(_trackio_process, "__file__", str(broken))
    run = fit(Trackio(), run=tmp_path / "run")
    (warning,) = warnings(run)
    assert warning.startswith("Trackio failed, and the run goes on; it gets nothing: ")
    assert run.summary()["state"] == "finished"
