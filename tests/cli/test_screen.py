"""Numbers and times as people read them."""

import pytest

from stoker.cli._screen import short


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (12345.6, "12350"), (1e9, "1e+09"), (float("nan"), "nan")])
def test_numbers(value, text):
    assert short(value) == text
