"""What is sent to the browser: JSON that any browser takes, whatever a run's files hold."""

import json
import math
from collections.abc import Mapping
from typing import Any

_DEEPEST = 64  # levels of mappings and lists; a file with more of them is no config that a person wrote


def to_json(data: object) -> bytes:
    r"""A value as JSON in ASCII, so that no letter of it can be misread.

    >>> to_json({"loss": [0.5, float("nan")], "name": "é"})
    b'{"loss":[0.5,null],"name":"\\u00e9"}'
    """
    return json.dumps(plain(data), separators=(",", ":"), allow_nan=False).encode()


def plain(value: Any, *, level: int = 0) -> Any:
    """Only what JSON can hold: NaN and the infinities become None, halves of letters are spelt out."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if level > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {text(str(key)): plain(each, level=level + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, level=level + 1) for each in value]
    return text(str(value))


def text(given: str) -> str:
    r"""A text that an address can hold: half of a letter, as a damaged name has it, is spelt out.

    >>> text("run\udce9"), text("été")
    ('run\\udce9', 'été')
    """
    return given if given.isascii() else given.encode("utf-8", "backslashreplace").decode()
