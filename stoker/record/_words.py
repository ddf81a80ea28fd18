"""Times and sizes as people say them."""

from datetime import datetime


def duration(seconds: float) -> str:
    """A time span.

    >>> duration(7.25), duration(75), duration(4000)
    ('7.2 s', '1 min 15 s', '1 h 6 min')
    """
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def when(seconds: float | None) -> str:
    """A moment, in this machine's time zone; a time that no calendar has is left out."""
    try:
        return "" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError, TypeError):
        return ""


def size(count: float) -> str:
    """A number of bytes.

    >>> size(999), size(12_345), size(2_500_000_000)
    ('999 bytes', '12.3 kB', '2.5 GB')
    """
    for unit, of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= of:
            return f"{count / of:.1f} {unit}"
    return f"{count:.0f} bytes"
