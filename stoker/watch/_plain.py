"""Names and texts out of files, made harmless."""


def plain(text: str) -> str:
    r"""A text with everything in it to be seen: what could change the picture on a terminal is spelled out.

    >>> print(plain("a\x1b[2Kb"))
    a\x1b[2Kb
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
