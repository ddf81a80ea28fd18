"""The choice of a display."""

import io
import os
import pty
import sys

import pytest

from stoker.errors import WrongType
from stoker.record import Record
from stoker.view.console import console
from stoker.view.console._live import Live
from stoker.view.console._plain import Plain
from tests.view.console.scenes import begin, end


def test_what_is_no_terminal_gets_lines(tmp_path):
    with (tmp_path / "log").open("w") as file:
        for stream in (io.StringIO(), file):
            assert isinstance(console(Record(), stream=stream), Plain)


def test_a_terminal_gets_the_block_unless_it_can_not(monkeypatch):
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        for term, kind in (("xterm-256color", Live), ("dumb", Plain), ("unknown", Plain), ("linux", Live)):
            monkeypatch.setenv("TERM", term)
            assert isinstance(console(Record(), stream=stream), kind), term
        monkeypatch.setenv("TERM", "xterm")
        assert isinstance(console(Record(), stream=stream, live=False), Plain)
    os.close(master)


def test_the_block_where_it_is_asked_for():
    assert isinstance(console(Record(), stream=io.StringIO(), live=True), Live)


def test_the_stream_is_stdout_as_it_is_then(capsys):
    record = Record()
    record.subscribe(console(record))
    begin(record)
    assert capsys.readouterr().out.startswith("Net (1,234 parameters)")


@pytest.mark.parametrize("gone", ["none", "closed"])
def test_without_a_stdout_it_is_silent(monkeypatch, gone):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", None if gone == "none" else stream)
    record = Record()
    record.subscribe(console(record))
    begin(record)
    end(record, 1)
    assert not record.events_of("warning"), "a listener that fails would be one"


def test_a_wrong_live():
    with pytest.raises(WrongType, match="live is 'yes'; expected True, False, or None to let the stream decide"):
        console(Record(), live="yes")  # type: ignore[arg-type]
