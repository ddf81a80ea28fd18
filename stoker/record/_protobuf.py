"""The few shapes of protocol buffers that TensorBoard's files are made of."""

import struct
from collections.abc import Iterator

Field = int | bytes


def number(field: int, value: int) -> bytes:
    """A whole number that is not negative."""
    return _varint(field << 3) + _varint(value)


def double(field: int, value: float) -> bytes:
    """A number of 64 bits."""
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def single(field: int, value: float) -> bytes:
    """A number of 32 bits; what is too large for them is infinite."""
    try:
        data = struct.pack("<f", value)
    except OverflowError:
        data = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + data


def message(field: int, data: bytes | str) -> bytes:
    """A text, or a message inside a message."""
    data = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """The number and the content of each field: numbers as they are, everything else as its bytes.

    >>> list(fields(number(1, 300) + message(2, "loss")))
    [(1, 300), (2, b'loss')]

    What is no message is a `ValueError`.
    """
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _read_varint(data, place)
            yield key >> 3, value
            continue
        size, place = _read_varint(data, place) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), place)
        if size < 0 or place + size > len(data):
            raise ValueError(f"no protocol buffer: a field of kind {kind} at byte {place}")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError(f"no protocol buffer: a number without an end at byte {place}")
