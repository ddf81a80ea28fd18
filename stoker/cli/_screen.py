"""What all commands print through."""

import sys
from typing import Any

from rich.console import Console

from stoker._text import escape_control


class Screen(Console):
    """A console on which no text can move the cursor: what is printed as a `str` is harmless, whoever wrote it."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Prints; a text keeps its lines, and what else it holds that can't be seen is spelled out."""
        super().print(*(harmless(each) if isinstance(each, str) else each for each in objects), **how)

    @property
    def has_colours(self) -> bool:
        """Whether lines can be told apart by their colours."""
        return self.color_system is not None and not self.no_color

    @property
    def ascii_only(self) -> bool:
        """Whether it has no braille."""
        return not self.encoding.lower().startswith("utf")


def harmless(text: str) -> str:
    r"""A text of some lines, with everything in it to be seen.

    >>> print(harmless("two\nlines\x1b[2K"))
    two
    lines\x1b[2K
    """
    return "\n".join(map(escape_control, text.split("\n")))


def screen() -> Screen:
    """The terminal, or whatever stdout is; letters that it can't show become question marks instead of an error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    piped = not sys.stdout.isatty()
    return Screen(highlight=False, emoji=False, soft_wrap=piped, width=160 if piped else None)  # no table is cut


def short(value: float) -> str:
    """A number with four significant digits."""
    return f"{float(f'{value:.4g}'):.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
