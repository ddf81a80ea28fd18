"""Removing a checkpoint, or what is left of one, so that no half of it can be taken for a whole."""

import errno

from stoker.checkpoint import _disk
from stoker.checkpoint._names import beside, is_leftover, is_ours


def remove(name: str, root: int) -> None:
    """Removes a folder of ours: out of sight first, so that no half of it can be taken for a checkpoint."""
    if not is_leftover(name):
        gone = beside("gone", name)
        _disk.rename(name, gone, root)
        _disk.sync(root)
        name = gone
    with _disk.folder(name, root) as folder:
        for file in _disk.names(folder):
            if is_ours(file):
                _disk.unlink(file, folder)
    try:
        _disk.remove_folder(name, root)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # then somebody has put files of their own there, and these stay
            raise
