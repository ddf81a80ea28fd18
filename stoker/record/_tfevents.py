"""TensorBoard's files of events, written and read without TensorBoard."""

import errno
import os
import platform
import struct
import time as clock
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stoker.record._protobuf import Field, double, fields, message, number, single
from stoker.record._tfrecord import frame, frames

_STRING, _START = 7, 1  # of TensorFlow's enums DataType and SessionLog.SessionStatus
_TYPES = {1: ("<f", 5), 2: ("<d", 6)}  # DataType: how its numbers are packed, and the field that lists them


class TensorBoardFile:
    """A new file of events in a folder, as TensorBoard reads it.

    >>> file = TensorBoardFile("runs/digits/tensorboard", update=0)
    >>> file.write({"train/loss": 0.25}, update=10)
    >>> file.text("config", "lr = 0.1", update=0)
    >>> file.close()
    >>> [(said.step, said.values) for said in tensorboard_events("runs/digits/tensorboard") if said.values]
    [(10, {'train/loss': 0.25})]

    Numbers have 32 bits there. What earlier files of the folder say of `update` and later is void from now on, in
    every reader. Each call hands its bytes to the operating system, where a kill can't reach them any more.
    """

    def __init__(self, folder: str | os.PathLike[str], *, update: int) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        now = clock.time()
        # Readers take files in the order of their names, so these sort by time: seconds, then what is behind the point.
        name = f"events.out.tfevents.{int(now):010d}.{platform.node()}.{int(now % 1 * 1e9):09d}.{os.getpid()}"
        self.path = Path(folder) / name
        self._file = self.path.open("xb", buffering=0)
        self._end = 0  # of the last whole event, in bytes
        self._append(now, 0, message(3, "brain.Event:2"))
        self._append(now, update, message(7, number(1, _START)))

    def write(self, values: Mapping[str, float], *, update: int, time: float | None = None) -> None:
        """Adds numbers by name."""
        parts = (message(1, message(1, name) + single(2, value)) for name, value in values.items())
        self._append(time, update, message(5, b"".join(parts)))

    def text(self, name: str, text: str, *, update: int, time: float | None = None) -> None:
        """Adds a text, which TensorBoard shows as Markdown."""
        tensor = number(1, _STRING) + message(2, b"") + message(8, text)
        about = message(1, message(1, "text"))
        self._append(time, update, message(5, message(1, message(1, name) + message(8, tensor) + message(9, about))))

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def _append(self, time: float | None, update: int, what: bytes) -> None:
        when = clock.time() if time is None else time
        data = frame(double(1, when) + number(2, update) + what)
        try:
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            self._file.truncate(self._file.seek(self._end))  # half an event would hide all that come after it
            raise
        self._end += len(data)


class Said(NamedTuple):
    """What one event of a file says: numbers by name, or that earlier events from its step on are void."""

    step: int
    time: float
    values: Mapping[str, float]
    starts: bool = False


def tensorboard_events(folder: str | os.PathLike[str]) -> list[Said]:
    """Every number in a folder's files, in order, without what a restart made void; damaged rests are left out."""
    stand: list[Said] = []
    for path in sorted(Path(folder).glob("*tfevents*")):
        for said in _read(path):
            if said.starts:
                stand = [earlier for earlier in stand if earlier.step < said.step]
            elif said.values:
                stand.append(said)
    return stand


def _read(path: Path) -> Iterator[Said]:
    with path.open("rb") as file:
        for data in frames(file):
            try:
                yield _said(data)
            except (ValueError, struct.error):  # one that is not as we know it says nothing to us
                continue


def _said(data: bytes) -> Said:
    found = dict(fields(data))
    step = found.get(2, 0)
    if not isinstance(step, int):
        raise ValueError("expected a number as the step")
    (time,) = struct.unpack("<d", _bytes(found.get(1, bytes(8))))
    starts = dict(fields(_bytes(found.get(7, b"")))).get(1) == _START
    return Said(step - (step >> 63 << 64), time, dict(_scalars(_bytes(found.get(5, b"")))), starts)


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for _, each in fields(summary):
        value = dict(fields(_bytes(each)))
        scalar = _scalar(value)
        if scalar is not None:
            yield _bytes(value.get(1, b"")).decode("utf-8", "replace"), scalar


def _scalar(value: Mapping[int, Field]) -> float | None:
    """The number of a summary's value: a simple one, or a tensor of one number, as TensorBoard 2 writes it."""
    if 2 in value:
        return struct.unpack("<f", _bytes(value[2]))[0]
    tensor = dict(fields(_bytes(value.get(8, b""))))
    kind = tensor.get(1)
    if not isinstance(kind, int) or kind not in _TYPES:
        return None
    packing, listed = _TYPES[kind]
    content = _bytes(tensor.get(4) or tensor.get(listed, b""))
    return struct.unpack(packing, content)[0] if len(content) == struct.calcsize(packing) else None


def _bytes(field: Field) -> bytes:
    if not isinstance(field, bytes):
        raise ValueError(f"expected bytes, got the number {field}")
    return field
