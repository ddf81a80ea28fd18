"""Sizes, durations, moments and numbers as text; everything that people read is formatted here.

Sizes use decimal units (1 kB is 1000 bytes), as disks, network rates and the metrics `MemoryUse` and `GPUMemory` do.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime


def format_size(bytes_: float) -> str:
    """A number of bytes.

    >>> format_size(999), format_size(12_345), format_size(2_500_000_000)
    ('999 B', '12.3 kB', '2.5 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_ >= 0.99995 * size:  # also what would be rounded up to it
            return f"{bytes_ / size:.1f} {unit}"
    return f"{bytes_:.0f} B"


def format_duration(seconds: float) -> str:
    """A time span in a sentence or a table.

    >>> format_duration(0.42), format_duration(12.25), format_duration(75), format_duration(4000)
    ('0.42 s', '12.2 s', '1 min 15 s', '1 h 6 min')
    """
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 9.995:
        return f"{max(seconds, 0.0):.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_clock(seconds: float) -> str:
    """A time span beside a progress bar or an axis, where it has to be short.

    >>> format_clock(9.6), format_clock(65), format_clock(7322), format_clock(200_000)
    ('0:10', '1:05', '2:02:02', '2 d 7:33:20')
    """
    if not math.isfinite(seconds):
        return str(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days} d {text}" if days else text


def format_time(timestamp: float | None) -> str:
    """A moment (seconds since 1970) in the local time zone; "" for `None` and for a time outside the calendar."""
    try:
        return "" if timestamp is None else datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError, TypeError):
        return ""


def format_number(value: float | None) -> str:
    """A number with four significant digits, for a column: trailing zeros stay, `None` is an empty cell.

    >>> [format_number(value) for value in (0.1, 12345.678, 3e-7, float("nan"), None)]
    ['0.1000', '12350', '3.000e-07', 'nan', '']
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(float(value))
    if 9999.5 <= abs(value) < 1e7:  # a count or a rate: no exponent
        return f"{float(f'{value:.4g}'):.0f}"
    return f"{value:#.4g}".rstrip(".")


def format_short(value: float) -> str:
    """A number with at most four significant digits and no trailing zeros: a learning rate in a sentence.

    >>> format_short(0.01), format_short(43.0), format_short(12345.6), format_short(1e9)
    ('0.01', '43', '12350', '1e+09')
    """
    return f"{float(f'{value:.4g}'):.0f}" if 9999.5 <= abs(value) < 1e7 else f"{value:.4g}"


def format_count(value: float) -> str:
    """A count in three digits with a unit prefix.

    >>> format_count(999), format_count(12_345), format_count(7_800_000)
    ('999', '12.3k', '7.80M')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:  # also what would be rounded up to it
            return f"{value / size:#.3g}".rstrip(".") + unit
    return f"{value:.3g}"


def pluralize(count: int, noun: str) -> str:
    """A count with its noun.

    >>> pluralize(1, "epoch"), pluralize(1200, "batch")
    ('1 epoch', '1,200 batches')
    """
    ending = "" if count == 1 else "es" if noun.endswith("ch") and noun != "epoch" else "s"
    return f"{count:,} {noun}{ending}"


def escape_control(text: str) -> str:
    r"""The text with every unprintable character escaped, so that text from a file can't control the terminal.

    >>> print(escape_control("train.py\x1b[2K\r"))
    train.py\x1b[2K\r
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shorten(text: str, width: int) -> str:
    """The text, cut to `width` characters that end with "…" if it is longer.

    >>> shorten("accuracy", 8), shorten("accuracy", 5)
    ('accuracy', 'accu…')
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"


def shorten_middle(text: str, width: int) -> str:
    """The text, cut to `width` characters with "…" in its middle: names often differ at their ends only.

    >>> shorten_middle("sweep/learning-rate-0.003", 16)
    'sweep/l…te-0.003'
    """
    return text if len(text) <= width else f"{text[: (width - 1) // 2]}…{text[len(text) - width // 2 :]}"


def escape_surrogates(text: str) -> str:
    r"""The text with lone surrogates, as damaged file names have them, written as escapes: UTF-8 has none.

    >>> escape_surrogates("run\udce9"), escape_surrogates("été")
    ('run\\udce9', 'été')
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def html_text(text: str) -> str:
    """Text of several lines as HTML for a notebook, which gives it its colors.

    >>> html_text("a < b")
    '<pre style="font-family:monospace;line-height:1.35;overflow-x:auto">a &lt; b</pre>'
    """
    from html import escape

    return (
        f'<pre style="font-family:monospace;line-height:1.35;overflow-x:auto">{escape(escape_surrogates(text))}</pre>'
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as HTML for a notebook; spaces at the start of a cell stay.

    >>> html_table(["name"], [["a<b"]])
    '<table><tr><th>name</th></tr><tr><td style="text-align:left;white-space:pre">a&lt;b</td></tr></table>'
    """
    from html import escape

    def line(tag: str, cells: Sequence[str], style: str = "") -> str:
        parts = (f"<{tag}{style}>{escape(escape_surrogates(cell))}</{tag}>" for cell in cells)
        return f"<tr>{''.join(parts)}</tr>"

    lines = [line("th", head)] if head else []
    lines += [line("td", row, ' style="text-align:left;white-space:pre"') for row in rows]
    return f"<table>{''.join(lines)}</table>"
