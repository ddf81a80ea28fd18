"""A growing file: each line once, and never half of one."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import _tail
from stoker.record._tail import Tail, lines_between, next_line


def read(tail):
    tail.look()
    return list(tail.blocks())


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.text("ab\n", max_size=20).map(str.encode), max_size=10))
def test_any_cutting_gives_the_same_lines(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("tail") / "file"
    path.touch()
    tail, found = Tail(path), b""
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        found += b"".join(read(tail))
    text = b"".join(pieces)
    assert found == text[: text.rfind(b"\n") + 1]
    assert tail.torn == text[text.rfind(b"\n") + 1 :]
    assert tail.unread == 0


def test_long_lines_and_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(_tail, "_BLOCK", 16)
    path = tmp_path / "file"
    lines = b"".join(b"x" * length + b"\n" for length in (3, 100, 0, 15, 16, 17, 40))
    path.write_bytes(lines)
    assert b"".join(read(Tail(path))) == lines


def test_a_line_beyond_all_measure_is_passed_over_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(_tail, "_BLOCK", 16)
    monkeypatch.setattr(_tail, "_LONGEST", 64)
    path = tmp_path / "file"
    path.write_bytes(b"a\n" + b"x" * 1000 + b"\nb\n")
    blocks = read(Tail(path))
    assert blocks[0] == b"a\n" and blocks[-1].endswith(b"\nb\n")
    assert len(b"".join(blocks)) < 200


@pytest.mark.parametrize("how", ["cut", "rewritten", "replaced"])
def test_another_file_in_its_place_is_noticed(tmp_path, how):
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    read(tail)
    if how == "cut":
        path.write_bytes(b"one\n")
    elif how == "rewritten":  # the same file, and longer
        path.write_bytes(b"ONE\nTWO\nTHREE\n")
    else:
        (tmp_path / "new").write_bytes(b"1\n2\n3\n4\n5\n")
        (tmp_path / "new").replace(path)
    assert read(tail) == [None, path.read_bytes()]


def test_a_longer_copy_in_its_place_is_the_same_file(tmp_path):
    """So rsync brings it over from another machine."""
    path = tmp_path / "file"
    path.write_bytes(b"one\n")
    tail = Tail(path)
    read(tail)
    (tmp_path / "new").write_bytes(b"one\ntwo\n")
    (tmp_path / "new").replace(path)
    assert read(tail) == [b"two\n"]


def test_a_coarse_clock_hides_no_line(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\n")
    os.utime(path, (100, 100))
    tail = Tail(path)
    assert tail.look() and list(tail.blocks()) == [b"one\n"] and not tail.look()
    with path.open("ab") as file:
        file.write(b"two\n")
    os.utime(path, (100, 100))
    assert tail.look() and list(tail.blocks()) == [b"two\n"]


def test_what_is_no_file_is_told_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no file"):
        Tail(tmp_path / "pipe").look()
    with pytest.raises(FileNotFoundError):
        Tail(tmp_path / "nothing").look()


def test_the_whole_lines_of_a_stretch(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthree\nfour")
    assert lines_between(path, 0, 6) == b"one\n"
    assert lines_between(path, 1, 14) == b"two\nthree\n"
    assert lines_between(path, 14, 100) == b""


def test_the_next_line(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthree")
    assert [next_line(path, start) for start in (0, 1, 4, 8, 13)] == [4, 4, 8, 13, 13]
