"""The table as text: four digits, aligned, short, and the best epoch in sight."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import Best, History
from stoker.record._text import abbreviated, fitting, table
from tests.record.stories import numbers, story


def test_a_whole_table():
    assert str(History(story(epochs=3, valid_every=3))) == "\n".join(
        [
            "  epoch  train/loss  train/accuracy       lr  valid/loss  valid/accuracy",
            "      1       1.000          0.5000   0.1000",
            "      2      0.5000          0.6667  0.05000",
            "*     3      0.3333          0.7500  0.03333      0.5000          0.5300",
            "* best valid/loss: 0.5000 in epoch 3",
        ]
    )


def test_of_a_long_table_both_ends_and_the_best_are_shown():
    text = str(History(numbers([abs(epoch - 70) + 1 for epoch in range(1, 101)])))
    shown = [line.split()[0] if line[0] != "*" else line.split()[1] for line in text.splitlines()[1:-1]]
    assert shown == [*map(str, range(1, 11)), "…", "70", "…", *map(str, range(91, 101))]
    assert "*    70" in text


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 60))
def test_abbreviation_keeps_the_order_and_loses_no_row_without_a_mark(count, best):
    epochs = list(range(1, count + 1))
    best = min(best, count)
    shown = abbreviated(epochs, Best(best, 0, 0.0, "x"), most=10)
    kept = [epoch for epoch in shown if epoch is not None]
    assert kept == sorted(kept) and best in kept and kept[0] == 1 and kept[-1] == count
    for before, after in pairwise(shown):
        assert (before is None) != (after is None) or (before is not None and after == before + 1)


def test_columns_that_do_not_fit_are_named_below():
    columns = [f"valid/recall/{number:03d}" for number in range(40)]
    text = table({1: dict.fromkeys(columns, 0.5)}, columns, None)
    assert max(map(len, text.splitlines())) <= 150 and "and 34 more columns: valid/recall/006" in text
    assert fitting({"x" * 300: 300}) == ["x" * 300]
