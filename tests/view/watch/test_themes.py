"""Light or dark, as the terminal says."""

import pytest

from stoker.view.watch._themes import DARK, LIGHT, starts_light


@pytest.mark.parametrize(("said", "light"), [("0;15", True), ("15;0", False), ("0;default;15", True), ("", False)])
def test_what_the_terminal_says(said, light, monkeypatch):
    monkeypatch.setenv("COLORFGBG", said)
    assert starts_light() is light


def test_two_themes():
    assert DARK.dark and not LIGHT.dark and DARK.name != LIGHT.name and DARK.primary == LIGHT.primary
