"""`watch` on a real pseudo-terminal, and finding the run to watch."""

import os
import re
import sys
import threading
from pathlib import Path

import pytest

from stoker.errors import MissingExtra, MissingFile
from stoker.view.watch import newest, wait_for, watch
from tests.view.console.scenes import Terminal, visible
from tests.view.watch.scenes import make

LEFT = b"\x1b[?1049l"  # leaves the alternate screen


class Screen(Terminal):
    """A process that calls `watch`, without torch."""

    PREAMBLE = """
        import sys
        sys.modules["torch"] = None
        from stoker.record import Follower
        from stoker.view.watch import watch
        assert "textual" not in sys.modules
    """

    def until(self, word):
        """Reads until a word is on the screen."""
        while word not in "\n".join(visible(self.screen)):
            assert self._read(), "the program ended:\n" + "\n".join(visible(self.screen))
        return visible(self.screen)


@pytest.fixture
def run(tmp_path):
    run = make(tmp_path / "digits", epochs=3)
    yield run
    run.close()


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_quitting_restores_the_terminal(run, key):
    with Screen(f"sys.exit(watch([{str(run.path)!r}]))") as terminal:
        terminal.until("quit")
        terminal.until(" running ")
        os.write(terminal.master, key)
        _, code = terminal.until_end()
        assert code == 0 and LEFT in terminal.raw
        assert terminal.raw.rfind(b"\x1b[?25h") > terminal.raw.rfind(b"\x1b[?25l"), "the cursor is visible"
    assert run.writer is not None, "the run was not touched"


@pytest.mark.parametrize(("value", "legend"), [("1", "o valid/loss"), ("", "━ valid/loss")], ids=["value", "empty"])
def test_no_color_is_respected(run, value, legend):
    with Screen(f"sys.exit(watch([{str(run.path)!r}]))", NO_COLOR=value) as terminal:
        terminal.until(legend)
        os.write(terminal.master, b"q")
        terminal.until_end()
        colors = re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)", terminal.raw)
        blue = re.search(rb"38;5;(25|31|32)\D", terminal.raw)  # of the training, in 256 colors
        grey = all(len(set(color)) == 1 for color in colors) and not blue
        assert grey == bool(value), "an empty NO_COLOR means nothing"


def test_an_error_of_the_viewer_is_raised_after_the_terminal_is_restored(run):
    program = f"""
        Follower.refresh = lambda self, seconds=None: 1 // 0
        watch([{str(run.path)!r}])
    """
    with Screen(program) as terminal:
        lines, code = terminal.until_end()
        assert code == 1 and lines[-1].startswith("ZeroDivisionError")
        assert b"ZeroDivisionError" in terminal.raw.rpartition(LEFT)[2]


def test_a_missing_run(tmp_path):
    with pytest.raises(MissingFile, match="nowhere"):
        watch([tmp_path / "nowhere"])


def test_without_textual(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "stoker.view.watch._app", None)
    with pytest.raises(MissingExtra, match=r"watch needs textual: pip install 'stoker\[watch\]'"):
        watch([run.path])


def put_run(path, age=0):
    path.mkdir(parents=True)
    (path / "events.jsonl").touch()
    os.utime(path / "events.jsonl", (1e9 - age, 1e9 - age))
    return path


def test_the_newest_run_is_the_one_written_last(tmp_path):
    put_run(tmp_path / "old", age=100)
    fresh = put_run(tmp_path / "deep" / "er" / "fresh")
    put_run(tmp_path / ".hidden" / "run", age=-100)
    assert newest(tmp_path) == fresh and newest(tmp_path / "old") == tmp_path / "old"
    assert newest(tmp_path / "nowhere") is None


def test_waiting_ends_when_the_run_starts(tmp_path):
    soon = threading.Timer(0.05, put_run, [tmp_path / "run"])
    soon.start()
    assert wait_for(tmp_path / "run", every=0.01) == tmp_path / "run"
    soon.join()


def test_waiting_needs_the_folder_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFile, match="no run can start at 'rnus/a': the folder 'rnus' does not exist; check the"):
        wait_for(Path("rnus/a"))
