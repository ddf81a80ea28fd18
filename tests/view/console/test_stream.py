"""Streams that are slow of speech, or gone."""

import io
import os

import pytest

from stoker.view.console._stream import Writer


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "latin-1"])
def test_an_encoding_without_braille_gets_ascii(encoding):
    raw = io.BytesIO()
    writer = Writer(io.TextIOWrapper(raw, encoding=encoding, newline=""))
    writer.line("━━── 5 % · müsli …")
    assert not writer.unicode
    assert raw.getvalue().decode(encoding).replace("?", "ü") == "==-- 5 % | müsli ...\n"


def test_the_kernels_console_has_no_braille(monkeypatch):
    monkeypatch.setenv("TERM", "linux")
    assert not Writer(io.StringIO()).unicode
    monkeypatch.setenv("TERM", "xterm")
    assert Writer(io.StringIO()).unicode


def test_a_closed_stream_is_silence():
    stream = io.StringIO()
    writer = Writer(stream)
    stream.close()
    writer.line("nobody hears this")
    assert writer.gone


def test_a_pipe_whose_reader_left_is_silence():
    reader, end = os.pipe()
    os.close(reader)
    stream = os.fdopen(end, "w", encoding="utf-8", closefd=False)
    writer = Writer(stream)
    writer.line("nobody hears this")
    writer.line("nor this")
    assert writer.gone
    with pytest.raises(BrokenPipeError):  # what was meant for it is still in the buffer
        stream.close()
    os.close(end)


def test_the_size_of_what_is_no_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "61")
    monkeypatch.setenv("LINES", "7")
    assert Writer(io.StringIO()).size() == (61, 7)
    monkeypatch.delenv("COLUMNS")
    monkeypatch.delenv("LINES")
    with open(os.devnull, "w") as nowhere:
        assert all(Writer(nowhere).size())
