"""Errors that nobody expected, told in the terminal of the server."""

import sys
import threading
import traceback

_told: set[tuple[type[BaseException], str, int]] = set()
_lock = threading.Lock()


def tell(error: Exception) -> None:
    """Prints an error, once for each place in the code: a page asks twice a second."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    key = (type(error), place[0].filename if place else "", (place[0].lineno or 0) if place else 0)
    with _lock:
        new = key not in _told
        _told.add(key)
    if new:
        traceback.print_exception(error, file=sys.stderr)
