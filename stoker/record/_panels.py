"""Which numbers belong into one picture."""

from collections.abc import Iterable


def panels(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by what they measure, so that a metric of several sets, and of several classes, is one picture.

    >>> panels(["train/loss", "lr", "valid/loss", "valid/recall/0", "valid/recall/1"])
    {'loss': ['train/loss', 'valid/loss'], 'lr': ['lr'], 'recall': ['valid/recall/0', 'valid/recall/1']}
    """
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split("/")
        found.setdefault(parts[0] if len(parts) == 1 or parts[0] == "lr" else parts[1], []).append(name)
    return found
