"""What stands beside a run's events: its facts, its config, and the end of its log."""

import json
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.record._plain import open_inside
from stoker.record._run import CONFIG, FACTS, LOG
from stoker.record._tail import Tail

_LOG_LINES, _LOG_BYTES = 1000, 1 << 18
_LARGEST = 1 << 22  # bytes of a small file


class Beside:
    """The small files of a run's directory, read again when they change; a damaged or missing one counts as empty."""

    def __init__(self, path: Path, *, inside: Path | None = None) -> None:
        self.facts: Mapping[str, Any] = {}
        self.config: Any = None
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        self._path, self._inside = path, inside
        self._tail = Tail(path / LOG, inside=inside)
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
            with open_inside(self._path / name, self._inside) as file:
                found = os.fstat(file.fileno())
                mark = (found.st_ino, found.st_size, found.st_mtime_ns)
                if mark == self._marks.get(name):
                    return known
                self._marks[name] = mark
                return json.loads(file.read()) if found.st_size <= _LARGEST else None
        except (OSError, ValueError, RecursionError):
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
