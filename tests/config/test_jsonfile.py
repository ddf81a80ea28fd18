"""Files of JSON are written whole, read by the letter, and readable."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config import Config
from stoker.config._jsonfile import read_json, write_json
from stoker.errors import BadFile, MissingFile

data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=4), each, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(data)
def test_what_is_written_is_json_and_comes_back_exactly(tmp_path_factory, value):
    path = write_json(tmp_path_factory.mktemp("json") / "x.json", value)
    assert repr(json.loads(path.read_bytes())) == repr(value) == repr(read_json(path))


def test_it_is_readable(tmp_path):
    path = write_json(tmp_path / "x.json", {"a": {"betas": [0.9, 0.999], "none": []}, "b": [{"é": 1}]})
    assert path.read_text("utf-8") == (
        '{\n  "a": {\n    "betas": [0.9, 0.999],\n    "none": []\n  },\n  "b": [\n    {\n      "é": 1\n    }\n  ]\n}\n'
    )


def test_a_name_that_is_not_utf8_survives(tmp_path):
    name = os.fsdecode(b"caf\xe9")  # holds a lone surrogate
    assert read_json(write_json(tmp_path / "x.json", [name])) == [name]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "Expecting value"),
        (b'{"a": 1', "Expecting ',' delimiter"),
        (b'{"a": 1, "b": {"lr": 1, "lr": 2}}', '"lr" stands there twice'),
        (b'{"a": NaN}', 'NaN is no number in JSON; write "NaN"'),
        (b"\xff\xfe\x00", "can't decode"),
        (b"[" * 100_000, "recursion"),
        (b"1" * 10_000, "digits"),
        (b"\x80\x04\x95", "can't decode"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, text):
    class Empty(Config):
        pass

    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(BadFile) as caught:
        Empty.load(path)
    assert str(caught.value).startswith(f"{path}: expected a config in JSON") and text in str(caught.value)


def test_a_missing_file_names_one_that_is_near(tmp_path):
    class Empty(Config):
        pass

    Empty().save(tmp_path / "training.json")
    for family in (BadFile, FileNotFoundError, MissingFile):
        with pytest.raises(family, match=r"there is no file '.*trainig.json'; did you mean 'training.json'\?"):
            Empty.load(tmp_path / "trainig.json")
    with pytest.raises(MissingFile, match=r"there is no file '.*none.json'$"):
        Empty.load(tmp_path / "no" / "none.json")
    with pytest.raises(BadFile, match=r"is a folder; expected a config in it, by name"):
        Empty.load(tmp_path)


def test_a_byte_order_mark_is_no_harm(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = write_json(tmp_path / "x.json", [1])
    with pytest.raises(ValueError):
        write_json(path, [float("nan")])
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_json(tmp_path / "folder", [1])
    assert read_json(path) == [1] and sorted(os.listdir(tmp_path)) == ["folder", "x.json"]


def test_a_full_disk_costs_nothing(tmp_path):
    """With a limit on the size of files, as a disk that is full, in a process of its own."""
    path = write_json(tmp_path / "x.json", [1])
    code = (
        "import resource, signal, sys; from pathlib import Path; from stoker.config._jsonfile import write_json\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_json(Path(sys.argv[1]), ['x' * 100_000])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.returncode and "OSError" in done.stderr
    assert read_json(path) == [1] and os.listdir(tmp_path) == ["x.json"]


def test_a_kill_while_writing_leaves_a_whole_file(tmp_path):
    """The new bytes are complete under another name before they take the old ones' place."""
    path = write_json(tmp_path / "x.json", [0])
    code = (
        "import sys; from pathlib import Path; from stoker.config._jsonfile import write_json\n"
        "print('go', flush=True)\n"
        "for count in range(10**9): write_json(Path(sys.argv[1]), [count] * 5000)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    while (found := read_json(path)) == [0] or found[0] < 20:  # each read sees a whole list
        assert len(set(found)) == 1
    child.kill()
    child.wait()
    child.stdout.close()
    assert len(set(read_json(path))) == 1


def test_other_people_may_read_the_file_as_the_umask_allows(tmp_path):
    path, plain = write_json(tmp_path / "x.json", [1]), Path(tmp_path / "plain")
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
