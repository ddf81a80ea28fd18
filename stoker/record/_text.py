"""The table of epochs as lines of text."""

from collections.abc import Mapping, Sequence

from stoker._text import format_number as number
from stoker.record._numbers import Best

_ROWS = 20  # more are abbreviated in the middle
_WIDTH = 120  # characters; columns past that are named below the table

Rows = Mapping[int, Mapping[str, float]]


def table(rows: Rows, columns: Sequence[str], best: Best | None) -> str:
    """The rows as aligned text, the best one marked, the middle of many left out."""
    if not rows:
        return "no epochs yet"
    shown: list[int | None] = [*abbreviated(list(rows), best)]
    cells = {name: [number(rows[epoch].get(name)) if epoch is not None else "…" for epoch in shown] for name in columns}
    widths = {name: max(len(name), *map(len, cells[name])) for name in columns}
    kept = fitting(widths)
    lines = ["  epoch" + "".join(f"  {name:>{widths[name]}}" for name in kept)]
    for place, epoch in enumerate(shown):
        mark = "*" if best is not None and epoch == best.epoch else " "
        label = "…" if epoch is None else str(epoch)
        lines.append(f"{mark} {label:>5}" + "".join(f"  {cells[name][place]:>{widths[name]}}" for name in kept))
    if best is not None:
        lines.append(f"* best {best.name}: {number(best.value)} in epoch {best.epoch}")
    if len(kept) < len(columns):
        left = [name for name in columns if name not in kept]
        lines.append(f"and {len(left)} more columns: {', '.join(left[:6])}{', …' if len(left) > 6 else ''}")
    return "\n".join(line.rstrip() for line in lines)


def abbreviated(epochs: Sequence[int], best: Best | None, *, most: int = _ROWS) -> list[int | None]:
    """The first and the last epochs of many, and the best one; `None` stands for those left out."""
    if len(epochs) <= most:
        return list(epochs)
    kept = {*epochs[: most // 2], *epochs[-(most // 2) :]} | ({best.epoch} if best is not None else set())
    shown: list[int | None] = []
    for epoch in epochs:
        if epoch in kept:
            shown.append(epoch)
        elif shown[-1] is not None:
            shown.append(None)
    return shown


def fitting(widths: Mapping[str, int], *, most: int = _WIDTH) -> list[str]:
    """As many columns as a line holds; at least one."""
    kept: list[str] = []
    used = len("  epoch")
    for name, width in widths.items():
        used += width + 2
        if kept and used > most:
            break
        kept.append(name)
    return kept
