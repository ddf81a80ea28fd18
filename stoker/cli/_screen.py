"""What all commands print through."""

import sys

from rich.console import Console


def screen() -> Console:
    """The terminal, or whatever stdout is; letters that it can't show become question marks instead of an error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    piped = not sys.stdout.isatty()
    return Console(highlight=False, emoji=False, soft_wrap=piped, width=160 if piped else None)  # no table is cut


def short(value: float) -> str:
    """A number with four significant digits."""
    return f"{float(f'{value:.4g}'):.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
