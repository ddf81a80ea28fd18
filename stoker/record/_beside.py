"""What stands beside a run's events: its facts, its config, and the end of its log."""

import stat
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.errors import BadFile
from stoker.record._jsonfile import read_json
from stoker.record._run import CONFIG, FACTS, LOG
from stoker.record._tail import Tail

_LOG_LINES, _LOG_BYTES = 1000, 1 << 18
_LARGEST = 1 << 22  # bytes of a small file


class Beside:
    """The small files of a run's directory, read again when they change; a damaged or missing one counts as empty."""

    def __init__(self, path: Path) -> None:
        self.facts: Mapping[str, Any] = {}
        self.config: Any = None
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        self._path = path
        self._tail = Tail(path / LOG)
        self._marks: dict[str, tuple[int, ...]] = {}

    def refresh(self) -> bool:
        """Reads what is new; whether anything has changed."""
        before = self.facts, self.config
        facts = self._read(FACTS, self.facts)
        self.facts = facts if isinstance(facts, Mapping) else {}
        self.config = self._read(CONFIG, self.config)
        return self._read_log() or before != (self.facts, self.config)

    def _read(self, name: str, known: Any) -> Any:
        try:
            found = (self._path / name).stat()
            mark = (found.st_ino, found.st_size, found.st_mtime_ns)
            if mark == self._marks.get(name):
                return known
            self._marks[name] = mark
            return read_json(self._path / name) if _is_small(found.st_mode, found.st_size) else None
        except (OSError, BadFile):
            return None

    def _read_log(self) -> bool:
        try:
            if not self._tail.look():
                return False
            if self._tail.unread > _LOG_BYTES:
                self._tail.skip_to(self._tail.size - _LOG_BYTES)
                self.log.clear()
            for block in self._tail.blocks():
                if block is None:
                    self.log.clear()
                else:
                    self.log.extend(block.decode("utf-8", "replace").splitlines())
        except OSError:
            return False
        return True


def _is_small(mode: int, size: int) -> bool:
    return stat.S_ISREG(mode) and size <= _LARGEST  # to open a pipe would wait for its writer
