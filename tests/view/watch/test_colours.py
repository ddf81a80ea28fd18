"""Colours that are the same everywhere."""

from stoker.record import line_styles
from stoker.view.watch._colours import OTHERS, TRAIN, VALID, faint


def test_the_colours_of_the_contract():
    assert (TRAIN, VALID, OTHERS[0], OTHERS[1]) == ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
    assert [look.color for look in line_styles(["train/a", "valid/a", "lr"]).values()] == [TRAIN, VALID, OTHERS[0]]


def test_faint_is_half_way_to_grey():
    assert faint("#000000") == "#404040" and faint("#FFFFFF") == "#bfbfbf"
