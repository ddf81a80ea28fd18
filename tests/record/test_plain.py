"""Files that are opened without trust."""

import os

import pytest

from stoker.record._plain import open_inside, open_plain


@pytest.fixture
def files(tmp_path):
    """A folder with a file, and what is no file: a link to it, one to outside, one to nowhere, a pipe, a folder."""
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / "file").write_bytes(b"mine")
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "inner").symlink_to(folder / "file")
    (folder / "outer").symlink_to(tmp_path / "secret")
    (folder / "nowhere").symlink_to(folder / "nothing")
    (folder / "ring").symlink_to(folder / "ring")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize("name", ["inner", "outer", "nowhere", "ring", "pipe", "below", "nothing"])
def test_only_a_file_is_opened_and_nothing_is_waited_for(files, name):
    with open_plain(files / "file") as file:
        assert file.read() == b"mine"
    with pytest.raises(OSError):
        open_plain(files / name)


def test_a_link_is_followed_where_it_stays_inside(files):
    for name, folder in (("file", files), ("inner", files), ("inner", None), ("file", None)):
        with open_inside(files / name, folder) as file:
            assert file.read() == b"mine"
    with open_inside(files / "outer", None) as file:
        assert file.read() == b"secret"
    with pytest.raises(OSError, match="it lies elsewhere"):
        open_inside(files / "outer", files)
    with pytest.raises(OSError, match="it is no file"):
        open_inside(files / "pipe", files)


def test_a_link_that_comes_after_the_check_is_not_followed(files, monkeypatch):
    monkeypatch.setattr(os.path, "realpath", str)  # says what was true a moment ago
    with pytest.raises(OSError):
        open_inside(files / "outer", files)
