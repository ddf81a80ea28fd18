"""The command's screen on a real pseudo-terminal: that it opens, answers, and gives the terminal back."""

import os
import re
import sys

import pytest

from stoker.errors import MissingExtra, MissingFile
from stoker.view.watch import watch
from tests.view.console.scenes import Terminal, visible
from tests.view.watch.scenes import make

LEFT = b"\x1b[?1049l"  # the alternate screen is left, and the user's own is back


class Screen(Terminal):
    """`watch` in a process of its own, without torch."""

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
def test_leaving_gives_the_terminal_back(run, key):
    with Screen(f"sys.exit(watch([{str(run.path)!r}]))") as terminal:
        terminal.until("leave")
        terminal.until(" running ")
        os.write(terminal.master, key)
        _, code = terminal.until_end()
        assert code == 0 and LEFT in terminal.raw
        assert terminal.raw.rfind(b"\x1b[?25h") > terminal.raw.rfind(b"\x1b[?25l"), "the cursor is back"
    assert run.writer is not None, "the run did not notice"


@pytest.mark.parametrize(("said", "legend"), [("1", "o valid/loss"), ("", "━ valid/loss")], ids=["said", "empty"])
def test_no_colour_where_none_is_wanted(run, said, legend):
    with Screen(f"sys.exit(watch([{str(run.path)!r}]))", NO_COLOR=said) as terminal:
        terminal.until(legend)
        os.write(terminal.master, b"q")
        terminal.until_end()
        colours = re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)", terminal.raw)
        blue = re.search(rb"38;5;(25|31|32)\D", terminal.raw)  # of the training, in 256 colours
        grey = all(len(set(colour)) == 1 for colour in colours) and not blue
        assert grey == bool(said), "greys at the most; an empty one says nothing"


def test_an_error_of_the_viewer_is_seen_when_the_terminal_is_back(run):
    program = f"""
        Follower.refresh = lambda self, seconds=None: 1 // 0
        watch([{str(run.path)!r}])
    """
    with Screen(program) as terminal:
        lines, code = terminal.until_end()
        assert code == 1 and lines[-1].startswith("ZeroDivisionError")
        assert b"ZeroDivisionError" in terminal.raw.rpartition(LEFT)[2]


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(MissingFile, match="nowhere"):
        watch([tmp_path / "nowhere"])


def test_without_textual(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "stoker.view.watch._app", None)
    with pytest.raises(MissingExtra, match=r"watch needs textual: pip install 'stoker\[watch\]'"):
        watch([run.path])
