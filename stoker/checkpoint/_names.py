"""What checkpoints, their files, and what is left of one are called; nothing else in the folder is ours."""

import re
import secrets

MANIFEST, STATE = "manifest.json", "state.json"
PART = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)  # a part of the state that has tensors, and so a file

_NAME = re.compile(r"([0-9]{8,18})(?:\.([1-9][0-9]{0,8}))?", re.ASCII)
_LEFTOVER = re.compile(r"\.(?:part|gone)-([0-9.]+)-[0-9a-f]{8}", re.ASCII)
_TENSORS = ".safetensors"
_SHARD = re.compile(r"shard-[0-9]{5,}-model-[0-9]{5,}-of-[0-9]{5,}", re.ASCII)  # as DCP calls its files


def name_of(update: int, number: int) -> str:
    """`00000120`, and `00000120.1` for the second one at this update."""
    return f"{update:08d}.{number}" if number else f"{update:08d}"


def order_of(name: str) -> tuple[int, int] | None:
    """The update of a checkpoint and its number there, by which names sort; `None` where it is no checkpoint's name.

    >>> order_of("00000120"), order_of("00000120.1"), order_of("notes.txt")
    ((120, 0), (120, 1), None)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    order = int(match[1]), int(match[2] or 0)
    return order if name_of(*order) == name else None


def beside(kind: str, name: str) -> str:
    """A name for a checkpoint while it is being written ("part") or deleted ("gone")."""
    return f".{kind}-{name}-{secrets.token_hex(4)}"


def is_leftover(name: str) -> bool:
    """Whether something is called as by `beside`."""
    match = _LEFTOVER.fullmatch(name)
    return match is not None and order_of(match[1]) is not None


def tensors_file(part: str) -> str:
    return part + _TENSORS


def part_of(file: str) -> str | None:
    """The part of the state that a file of tensors holds; `None` where it is no such file's name."""
    part = file.removesuffix(_TENSORS)
    return part if part != file and PART.fullmatch(part) and not _SHARD.fullmatch(part) else None


def is_shards(file: str) -> bool:
    """Whether a file is called as one of those that hold a rank's shards of tensors."""
    return file.endswith(_TENSORS) and _SHARD.fullmatch(file.removesuffix(_TENSORS)) is not None


def is_ours(file: str) -> bool:
    """Whether a file of a checkpoint may be called so."""
    return file in (MANIFEST, STATE) or part_of(file) is not None or is_shards(file)
