import os
import signal
import stat
import subprocess
import sys

import pytest

from stoker.errors import InvalidArgument
from stoker.weights._atomic import write_atomically


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomically(path, lambda file: file.write(b"one"))
    with path.open("rb") as old:
        write_atomically(path, lambda file: file.write(b"two"))
        assert old.read() == b"one"
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file"]


def test_it_can_be_read_by_those_who_may_read_new_files(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b""))
    (tmp_path / "usual").write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of the n")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_process_that_is_killed_in_the_middle_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    program = """
import os, signal, sys
from pathlib import Path
from stoker.weights._atomic import write_atomically
def write(file):
    file.write(b"new" * 1000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path(sys.argv[1]), write)
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_content_and_folder_are_synced_before_and_after_the_rename(tmp_path, monkeypatch):
    calls, sync, replace = [], os.fsync, os.replace

    def watched_sync(opened):
        calls.append(
            "sync folder" if stat.S_ISDIR(os.fstat(opened).st_mode) else f"sync {os.fstat(opened).st_size} bytes"
        )
        sync(opened)

    def watched_replace(old, new):
        calls.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_atomically(tmp_path / "file", lambda file: file.write(b"abc"))
    assert calls == ["sync 3 bytes", "rename", "sync folder"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", lambda file: file.write(b"new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_places_that_hold_something_else_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match=r"there is a folder of that name"):
        write_atomically(tmp_path / "folder", lambda file: None)
    for path in (tmp_path / "file" / "below", tmp_path / "file" / "far" / "below"):
        with pytest.raises(InvalidArgument, match=r"is a file"):
            write_atomically(path, lambda file: None)
