"""The table of epochs, with pandas as its judge."""

import math
import sys

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import MissingExtra, NoSuchMetric
from stoker.record import Event, History, Record
from tests.record.stories import fill, same, story


def test_columns_rows_and_epochs():
    history = History(story())
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
    fill(record)
    assert len(history) == 5


def test_a_wrong_name_is_answered_with_a_near_one():
    history = History(story())
    with pytest.raises(
        NoSuchMetric, match=r"no number is called 'valid/los'; did you mean 'valid/loss' .*There are: train/loss, "
    ):
        history["valid/los"]
    with pytest.raises(KeyError, match=r"no number is called 'zzz'\. There are: train/loss"):
        history["zzz"]
    with pytest.raises(NoSuchMetric, match="There are: none yet"):
        History(Record())["loss"]


table = st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(), min_size=1), min_size=1, max_size=6)


@settings(deadline=None)
@given(table)
def test_it_is_the_table_that_pandas_makes_of_the_rows(rows):
    record = Record()
    for epoch, row in enumerate(rows, 1):
        record.append(Event("epoch", epoch=epoch, values=row))
    history = History(record)
    expected = pandas.DataFrame(rows, index=range(1, len(rows) + 1), dtype=float)[history.columns]
    found = history.to_pandas()
    assert found.index.name == "epoch" and list(found.index) == list(expected.index)
    for name in history.columns:
        assert same(list(found[name]), list(expected[name])) and same(history[name], list(expected[name]))
        assert same(history.to_dict()[name], history[name]) and same([row[name] for row in history], history[name])


def test_without_pandas_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"to_pandas needs pandas: pip install pandas \(to_dict needs nothing\)"):
        History(story()).to_pandas()


def test_several_validations_in_an_epoch_are_rows_of_their_own():
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
    history = History(story(valid_every=2))
    assert math.isnan(history["valid/loss"][0]) and "nan" not in str(history)
