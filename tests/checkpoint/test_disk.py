import ast
import errno
import os
import socket
from pathlib import Path

import pytest

import stoker.checkpoint
from stoker.checkpoint import _disk


@pytest.fixture
def root(tmp_path):
    with _disk.folder(tmp_path) as opened:
        yield opened


def test_a_file_is_written_and_read(tmp_path, root):
    file = _disk.create("x", root)
    assert _disk.write(file, memoryview(b"hello")) == 5
    _disk.sync(file)
    _disk.close(file)
    file, size = _disk.open_file("x", root)
    memory = bytearray(9)
    assert (size, _disk.read(file, memoryview(memory)), bytes(memory[:5])) == (5, 5, b"hello")
    assert _disk.read(file, memoryview(memory)) == 0
    _disk.close(file)
    assert _disk.names(root) == ["x"]


def test_an_existing_file_is_not_written_to(tmp_path, root):
    (tmp_path / "x").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name in ("x", "link"):
        with pytest.raises(FileExistsError):
            _disk.create(name, root)
    assert not (tmp_path / "other").exists()


def test_only_plain_files_are_read_and_nothing_is_waited_for(tmp_path, root, monkeypatch):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as opened:
        monkeypatch.chdir(tmp_path)  # a socket's path may have about a hundred characters only
        opened.bind("socket")
        codes = {"link": errno.ELOOP, "folder": errno.EINVAL, "pipe": errno.EINVAL, "socket": errno.ENXIO}
        before = len(os.listdir("/dev/fd"))
        for name, code in codes.items():
            with pytest.raises(OSError) as caught:
                _disk.open_file(name, root)
            assert caught.value.errno == code, name
        assert len(os.listdir("/dev/fd")) == before


def test_folders_behind_links_are_not_entered(tmp_path, root):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(NotADirectoryError):
        _disk.open_folder("link", root)
    with _disk.folder(tmp_path / "link") as opened:  # what the user names may be a link
        assert _disk.names(opened) == []


def test_a_failing_close_after_reading_is_no_failure(tmp_path, monkeypatch):
    def close(file):
        os.close(file)
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(_disk, "close", close)
    with _disk.folder(tmp_path):
        pass


def test_nothing_else_of_the_store_touches_the_disk():
    """What isn't counted can't be made to fail, so it would go untested."""
    room = Path(stoker.checkpoint.__file__).parent
    assert all(callable(getattr(_disk, name)) for name in _disk.OPERATIONS)
    for name in ("_tree", "_json", "_names", "_manifest", "_write", "_read", "_store"):
        tree = ast.parse((room / f"{name}.py").read_text())
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert {each for each in used if each.startswith("os.")} <= {
            "os.PathLike",
            "os.path",
            "os.path.abspath",
            "os.sep",
        }
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert "open" not in called
        assert not {each for each in called if each.endswith((".open", ".read_bytes", ".write_bytes", ".exists"))}
