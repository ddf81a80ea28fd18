"""The names that other programs give to numbers, as stoker spells them, so that runs of both stand in one picture."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_SETS = {
    "train": "train",
    "training": "train",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
    "eval": "valid",
    "test": "test",
}
_SET = "|".join(_SETS)
_FIRST, _LAST = re.compile(rf"({_SET})[/_.\- ](.+)", re.IGNORECASE), re.compile(rf"(.+)[/_.\- ]({_SET})", re.IGNORECASE)


class Named(NamedTuple):
    """What a number is called here, and whether it was told on the way only."""

    name: str
    running: bool = False


def spelled(names: Iterable[str]) -> dict[str, Named]:
    """Each name as stoker spells it.

    >>> for old, new in spelled(["train_loss_step", "train_loss_epoch", "val/acc", "Loss/test", "lr-Adam"]).items():
    ...     print(old, *new)
    train_loss_step train/loss True
    train_loss_epoch train/loss False
    val/acc valid/acc False
    Loss/test test/Loss False
    lr-Adam lr-Adam False

    Where another one is called so already, a name stays as it is.
    """
    names = list(dict.fromkeys(names))
    found: dict[str, Named] = {}
    for name in names:
        new = _spelled(name, names)
        taken = {*found.values(), *(Named(other) for other in names if other != name)}
        found[name] = Named(name) if new in taken else new
    return found


def _spelled(name: str, names: list[str]) -> Named:
    if name.startswith("running/"):  # stoker's own, in a log for TensorBoard
        return Named(name.removeprefix("running/"), running=True)
    for suffix, other in (("_step", "_epoch"), ("_epoch", "_step")):  # Lightning's, where it logs both
        if name.endswith(suffix) and name.removesuffix(suffix) + other in names:
            return Named(_with_set(name.removesuffix(suffix)), running=suffix == "_step")
    return Named(_with_set(name))


def _with_set(name: str) -> str:
    if first := _FIRST.fullmatch(name):
        return f"{_SETS[first[1].lower()]}/{first[2]}"
    if last := _LAST.fullmatch(name):
        return f"{_SETS[last[2].lower()]}/{last[1]}"
    return name
