"""Files are replaced atomically and synced, and JSON is read strictly."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker._files import parse_json, read_json, write_atomically, write_json
from stoker.errors import BadFile, MissingFile


def write(path, content):
    write_atomically(path, lambda file: file.write(content))


def test_a_new_file_replaces_the_old_one_and_open_readers_keep_the_old_content(tmp_path):
    path = tmp_path / "file"
    write(path, b"one")
    with path.open("rb") as old:
        write(path, b"two")
        assert old.read() == b"one"
    assert path.read_bytes() == b"two" and os.listdir(tmp_path) == ["file"]


def test_a_symbolic_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, error, failing):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_):
        raise error

    def content(file):
        file.write(b"half of the n")
        if failing == "write":
            fail()

    if failing != "write":
        monkeypatch.setattr(os, failing, fail)
    with pytest.raises(type(error)):
        write_atomically(path, content)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_content_is_synced_before_the_rename_and_the_directory_after_it(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace

    def watched_fsync(file):
        found = os.fstat(file)
        calls.append("sync directory" if stat.S_ISDIR(found.st_mode) else f"sync {found.st_size} bytes")
        fsync(file)

    def watched_replace(old, new):
        calls.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write(tmp_path / "file", b"abc")
    assert calls == ["sync 3 bytes", "rename", "sync directory"]


KILLED = """
import os, signal, sys
from pathlib import Path
from stoker._files import write_atomically
def write(file):
    file.write(b"new" * 1000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
write_atomically(Path(sys.argv[1]), write)
"""

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from stoker._files import write_json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_json(Path(sys.argv[1]), ["x" * 100_000])
"""


def run(program, path):
    return subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "file", [1])
    assert run(KILLED, tmp_path / "file").returncode == -signal.SIGKILL
    assert read_json(tmp_path / "file") == [1]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path):
    """A limit on the size of files stands for the full disk, in a process of its own."""
    write_json(tmp_path / "file", [1])
    done = run(FULL_DISK, tmp_path / "file")
    assert done.returncode and "OSError" in done.stderr
    assert read_json(tmp_path / "file") == [1] and os.listdir(tmp_path) == ["file"]


# JSON

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=4), each, max_size=4),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(values)
def test_written_values_are_standard_json_and_are_read_back_exactly(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "x.json"
    write_json(path, value)
    assert repr(json.loads(path.read_bytes())) == repr(value) == repr(read_json(path))


def test_json_is_indented_with_short_lists_on_one_line(tmp_path):
    write_json(tmp_path / "x.json", {"a": {"betas": [0.9, 0.999], "none": []}, "b": [{"é": 1}]})
    assert (tmp_path / "x.json").read_text("utf-8") == (
        '{\n  "a": {\n    "betas": [0.9, 0.999],\n    "none": []\n  },\n  "b": [\n    {\n      "é": 1\n    }\n  ]\n}\n'
    )


def test_a_file_name_that_is_not_utf8_survives(tmp_path):
    name = os.fsdecode(b"caf\xe9")  # holds a lone surrogate
    write_json(tmp_path / "x.json", [name])
    assert read_json(tmp_path / "x.json") == [name]
    assert parse_json(b"\xef\xbb\xbf[1]", "memory") == [1]  # a byte order mark is accepted too


def test_nan_is_not_written_and_the_old_file_stays(tmp_path):
    write_json(tmp_path / "x.json", [1])
    with pytest.raises(ValueError, match="Out of range float values"):
        write_json(tmp_path / "x.json", [float("nan")])
    assert read_json(tmp_path / "x.json") == [1] and os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"a": 1', "Expecting ',' delimiter"),
        (b'{"a": 1, "b": {"lr": 1, "lr": 2}}', "the key 'lr' appears twice"),
        (b'{"a": NaN}', 'NaN is not valid JSON; write the string "NaN"'),
        (b"\xff\xfe\x00", "can't decode"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_broken_file_is_named_with_the_reason(tmp_path, content, text):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(BadFile) as caught:
        read_json(path, expected="a config")
    assert str(caught.value).startswith(f"{path}: expected a config, but: ") and text in str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    write_json(tmp_path / "training.json", 1)
    for family in (BadFile, FileNotFoundError, MissingFile):
        with pytest.raises(family, match=r"there is no file '.*trainig.json'; did you mean 'training.json'\?"):
            read_json(tmp_path / "trainig.json")
    with pytest.raises(MissingFile, match=r"there is no file '.*none.json'$"):
        read_json(tmp_path / "no" / "none.json")
    with pytest.raises(BadFile, match=r"is a directory; expected the path of a file with a config"):
        read_json(tmp_path, expected="a config")
    assert read_json(tmp_path / "none.json", missing_ok=True) is None
