"""Texts out of files can't move the cursor."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.watch._plain import plain


@given(st.text())
def test_everything_can_be_seen(text):
    assert plain(text).isprintable() and (plain(text) == text) == text.isprintable()
