"""What panes write with."""

from rich.text import Text

from stoker.view.watch._words import cut, of, stacked, state_colour


def test_texts_keep_to_their_room():
    assert cut("abcdef", 4) == "abc…" and cut("abc", 4) == "abc"
    assert stacked([Text("abcdef"), Text("b"), Text("c")], 4, 2).plain == "abc…\nb"
    assert stacked([Text("a")], 4, 0).plain == ""


def test_how_far_something_came():
    assert of(7, 20) == "7 of 20" and of(1500, None) == "1,500"


def test_a_state_that_nobody_knows_is_a_bad_one():
    assert state_colour("gone") == state_colour("failed") != state_colour("finished")
