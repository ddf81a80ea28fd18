"""JSON as the standard has it, strictly: what is written here any reader can read, and what is odd is refused here."""

import json
from typing import Any

from stoker.errors import BadFile


def to_json(value: Any) -> bytes:
    """Plain values as one line of JSON; floats come back to the bit, and have to be finite."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def from_json(text: bytes | bytearray, where: object) -> Any:
    """What a JSON text says, or `BadFile`; a key that comes twice and a number that is none are refused."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where} is not the JSON that it should be: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key comes twice")
    return made


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON's")
