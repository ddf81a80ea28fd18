"""Numbers, times and texts as people read them: `0.1234`, `1:05`, `12.3k`."""


def visible(text: str) -> str:
    r"""A text out of a file with everything in it to be seen: what could change a terminal's picture is spelled out.

    >>> print(visible("train.py\x1b[2K\r"))
    train.py\x1b[2K\r
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def plain_number(value: float) -> str:
    """A number in at most four significant digits, without the zeros that a column needs: a learning rate, say.

    >>> plain_number(0.01), plain_number(43.0)
    ('0.01', '43')
    """
    return f"{value:.4g}"


def short(value: float) -> str:
    """A count in three digits.

    >>> short(999), short(12_345), short(7_800_000)
    ('999', '12.3k', '7.80M')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:  # what would be rounded up to it, too
            return f"{value / size:#.3g}".rstrip(".") + unit
    return f"{value:.3g}"


def clock(seconds: float) -> str:
    """A time span as a clock shows it.

    >>> clock(9.6), clock(65), clock(7322), clock(200_000)
    ('0:10', '1:05', '2:02:02', '2 d 7:33:20')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    told = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days} d {told}" if days else told


def duration(seconds: float) -> str:
    """A time span that may be short: in seconds up to ten, by the clock above.

    >>> duration(0.42), duration(65)
    ('0.42 s', '1:05')
    """
    return f"{max(seconds, 0.0):.2f} s" if seconds < 10 else clock(seconds)


def plural(count: int, word: str) -> str:
    """A count with its noun.

    >>> plural(1, "epoch"), plural(1200, "batch")
    ('1 epoch', '1,200 batches')
    """
    ending = "" if count == 1 else "es" if word.endswith("ch") and word != "epoch" else "s"
    return f"{count:,} {word}{ending}"
