"""The history of a record: columns, rows, text, HTML and data frames."""

import itertools
import math
import re
import sys
import xml.etree.ElementTree as ET

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import MissingExtra, NoSuchMetric
from stoker.record import Event, History, Record
from tests.record.examples import append_fit, example_record, record_of, same_floats


def test_columns_rows_and_epochs():
    history = History(example_record())
    assert history.columns == ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "lr"]
    assert history.epochs == [1, 2, 3, 4, 5] and len(history) == 5
    assert history["train/loss"] == [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5] and history["epoch"] == [1, 2, 3, 4, 5]
    assert list(history)[1] == {"epoch": 2, **{name: history[name][1] for name in history.columns}}
    assert "valid/loss" in history and "valid/los" not in history
    assert history.best.epoch == 3 and history.panels["loss"] == ["train/loss", "valid/loss"]
    assert repr(history).startswith("History of 5 epochs: train/loss")


def test_it_grows_with_its_record():
    record = Record()
    history = History(record)
    assert len(history) == 0 and list(history) == [] and history.to_dict() == {"epoch": []} and history.best is None
    assert str(history) == "no epochs yet" and "no numbers yet" in repr(history)
    assert "no epochs yet" in history._repr_html_()
    append_fit(record)
    assert len(history) == 5


def test_an_unknown_column_is_an_error_with_a_suggestion():
    history = History(example_record())
    with pytest.raises(
        NoSuchMetric, match=r"has no column 'valid/los'; did you mean 'valid/loss' .*It has: train/loss, "
    ):
        history["valid/los"]
    with pytest.raises(KeyError, match=r"has no column 'zzz'\. It has: train/loss"):
        history["zzz"]
    with pytest.raises(NoSuchMetric, match="It has: none yet"):
        History(Record())["loss"]


table = st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(), min_size=1), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(table)
def test_it_equals_the_data_frame_of_its_rows(rows):
    record = Record()
    for epoch, row in enumerate(rows, 1):
        record.append(Event("epoch", epoch=epoch, values=row))
    history = History(record)
    expected = pandas.DataFrame(rows, index=range(1, len(rows) + 1), dtype=float)[history.columns]
    found = history.to_pandas()
    assert found.index.name == "epoch" and list(found.index) == list(expected.index)
    for name in history.columns:
        assert same_floats(list(found[name]), list(expected[name])) and same_floats(history[name], list(expected[name]))
        assert same_floats(history.to_dict()[name], history[name]) and same_floats(
            [row[name] for row in history], history[name]
        )


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"to_pandas needs pandas: pip install pandas \(to_dict needs nothing\)"):
        History(example_record()).to_pandas()


def test_several_validations_in_an_epoch_are_separate_rows():
    record = Record()
    for update, name, loss in ((5, "near", 0.4), (5, "far", 0.9), (10, "near", 0.3)):
        values = {f"{name}/loss": loss}
        record.append(Event("valid", epoch=1, update=update, values=values, extra={"name": name}))
    history = History(record)
    assert history.validations == [
        {"epoch": 1, "update": 5, "set": "near", "near/loss": 0.4},
        {"epoch": 1, "update": 5, "set": "far", "far/loss": 0.9},
        {"epoch": 1, "update": 10, "set": "near", "near/loss": 0.3},
    ]
    assert history["near/loss"] == [0.3] and record.all("near/loss") == [(5, 0.4), (10, 0.3)]


def test_missing_numbers_are_nan_in_lists_and_empty_in_print():
    history = History(example_record(epochs=3, valid_every=3))
    assert math.isnan(history["valid/loss"][0])
    assert str(history) == "\n".join(
        [
            "  epoch  train/loss  train/accuracy       lr  valid/loss  valid/accuracy",
            "      1       1.000          0.5000   0.1000",
            "      2      0.5000          0.6667  0.05000",
            "*     3      0.3333          0.7500  0.03333      0.5000          0.5300",
            "* best valid/loss: 0.5000 in epoch 3",
        ]
    )


@pytest.mark.parametrize("best", [1, 10, 11, 12, 70, 90, 91, 100])
def test_a_long_table_shows_both_ends_and_the_best_epoch(best):
    text = str(History(record_of([abs(epoch - best) + 1 for epoch in range(1, 101)])))
    shown = [line.removeprefix("*").split()[0] for line in text.splitlines()[1:-1]]
    expected = sorted({*range(1, 11), best, *range(91, 101)})
    assert [int(each) for each in shown if each != "…"] == expected
    gaps = sum(after > before + 1 for before, after in itertools.pairwise(expected))
    assert shown.count("…") == gaps and f"*{best:>6}" in text


def test_columns_that_do_not_fit_are_named_below_the_table():
    record = Record()
    record.append(Event("epoch", epoch=1, values={f"valid/recall/{label:03d}": 0.5 for label in range(40)}))
    text = str(History(record))
    assert max(map(len, text.splitlines())) <= 150 and "and 34 more columns: valid/recall/006" in text
    wide = Record()
    wide.append(Event("epoch", epoch=1, values={"x" * 300: 1.0}))
    assert "x" * 300 in str(History(wide))


def parse_html(history):
    return ET.fromstring(history._repr_html_())


def test_html_holds_curves_and_the_table():
    history = History(example_record(valid_every=2))
    tree = parse_html(history)
    assert tree.find("img").get("src").startswith("data:image/png;base64,")
    assert tree.findtext("pre") == str(history)


def test_html_escapes_names_and_loads_nothing():
    record = Record()
    names = ("<script>alert(1)</script>", "valid/a&b", "half\ud800")
    record.append(Event("epoch", epoch=1, values=dict.fromkeys(names, 1.0)))
    text = History(record)._repr_html_()
    assert "<script" not in text and "a&amp;b" in text and text.encode()
    assert re.findall(r'(?:src|href)="(?!data:)|url\(', text) == []


def test_html_without_matplotlib_or_with_matrices_only_is_the_table(monkeypatch):
    record = Record()
    cells = {f"valid/confusion/{row}/{column}": 1.0 for row in range(3) for column in range(3)}
    record.append(Event("epoch", epoch=1, values=cells))
    assert parse_html(History(record)).find("img") is None
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    tree = parse_html(History(example_record()))
    assert tree.find("img") is None and "* best valid/loss" in tree.findtext("pre")
