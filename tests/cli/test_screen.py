"""Numbers and times as people read them."""

import pytest

from stoker.cli._screen import screen, short


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (12345.6, "12350"), (1e9, "1e+09"), (float("nan"), "nan")])
def test_numbers(value, text):
    assert short(value) == text


def test_no_text_moves_the_cursor(capsys):
    screen().print("one\x1b[2K\ntwo\r", markup=False)
    assert capsys.readouterr().out == "one\\x1b[2K\ntwo\\r\n"
