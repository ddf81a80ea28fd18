"""Lengths and checksums around bytes, as TensorFlow writes its files: a torn or changed record is noticed."""

import struct
from collections.abc import Iterator
from typing import BinaryIO

_LARGEST = 1 << 28  # bytes of a record; a length beyond that is damage
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed


def frame(data: bytes) -> bytes:
    """A record: its length, the length's checksum, the data, the data's checksum.

    >>> frame(b"ab").hex(" ")
    '02 00 00 00 00 00 00 00 78 27 0b 34 61 62 1c b0 f0 f4'
    """
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def frames(file: BinaryIO) -> Iterator[bytes]:
    """The data of each record, up to the end of the file or to the first that is torn or changed."""
    while len(head := file.read(12)) == 12:
        length = head[:8]
        size = int.from_bytes(length, "little")
        if head[8:] != _checksum(length) or size > _LARGEST:
            return
        data = file.read(size)
        if file.read(4) != _checksum(data) or len(data) < size:
            return
        yield data


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)  # "masked", as that format has it


def _table() -> list[int]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (_POLYNOMIAL if entry & 1 else 0)
        entries.append(entry)
    return entries


_TABLE = _table()
