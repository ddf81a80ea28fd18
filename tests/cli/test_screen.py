"""Numbers and times as people read them."""

import pytest

from stoker.cli._screen import duration, short


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 0 s"), (3599.6, "1 h 0 min"), (90_000, "25 h 0 min")],
)
def test_times(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (12345.6, "12350"), (1e9, "1e+09"), (float("nan"), "nan")])
def test_numbers(value, text):
    assert short(value) == text
