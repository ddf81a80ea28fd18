import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch

from stoker.data import Loader
from stoker.data._source import as_source
from stoker.data._tables import table_columns
from stoker.data._view import View
from stoker.errors import BadData

CONTENT = {"x": [1.5, 2.5, 3.5], "n": [1, 2, 3], "yes": [True, False, True]}
MAKERS = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "arrow": pyarrow.table}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_a_table_is_a_mapping_of_its_columns(maker):
    source = as_source(maker(CONTENT))
    assert isinstance(source, View)
    assert source.vectorised
    batch = source.gather(torch.tensor([2, 0]))
    assert batch["x"].tolist() == [3.5, 1.5]
    assert batch["n"].tolist() == [3, 1]
    assert batch["yes"].tolist() == [True, True]
    assert batch["n"].dtype == torch.int64


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_tables_are_walked(maker):
    batches = list(Loader(maker(CONTENT), batch_size=2))
    assert [batch["n"].tolist() for batch in batches] == [[1, 2], [3]]


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_text_is_refused_by_the_columns_name(maker):
    with pytest.raises(BadData, match=r"column \['word'\] has dtype .*; encode it as numbers"):
        as_source(maker({"n": [1, 2], "word": ["a", "b"]}))


@pytest.mark.parametrize("maker", [polars.DataFrame, pyarrow.table], ids=["polars", "arrow"])
def test_missing_values_are_refused(maker):
    with pytest.raises(BadData, match=r"column \['n'\] has 1 missing values; fill or drop them first"):
        as_source(maker({"n": [1, None]}))


def test_missing_values_in_pandas_integers_are_refused():
    with pytest.raises(BadData, match=r"column \['n'\] has dtype object"):
        as_source(pandas.DataFrame({"n": pandas.array([1, None], dtype="Int64")}).astype(object))


@pytest.mark.parametrize("series", [pandas.Series([1, 2]), polars.Series([1, 2]), pyarrow.array([1, 2])])
def test_one_column_is_a_source_and_a_part_of_one(series):
    assert as_source(series)[1] == 2
    x, y = as_source((np.zeros((2, 3)), series))[1]
    assert x.shape == (3,)
    assert y == 2


def test_a_frame_in_a_tuple_is_a_mapping_in_a_tuple():
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]})
    inputs, label = as_source((frame[["a", "b"]], frame["label"])).slice(0, 2)
    assert inputs["b"].tolist() == [3.0, 4.0]
    assert label.tolist() == [0, 1]


def test_what_is_no_table_is_none():
    assert table_columns([1, 2]) is None
    assert table_columns({"x": 1}) is None


def hugging_face(content=CONTENT):
    return datasets.Dataset.from_dict(content)


def test_hugging_face_numbers_are_columns_with_its_own_dtypes():
    source = as_source(hugging_face())
    assert isinstance(source, View)
    batch = source.slice(0, 3)
    assert [batch[name].dtype for name in CONTENT] == [torch.float32, torch.int64, torch.bool]
    by_sample = next(iter(Loader(hugging_face(), batch_size=3, batcher=None, transform=dict)))
    for name, column in batch.items():
        assert torch.equal(column, by_sample[name])
        assert column.dtype == by_sample[name].dtype


def test_hugging_face_selections_and_formats_are_kept():
    dataset = hugging_face().select([2, 0]).with_format("torch", columns=["n"])
    assert [batch["n"].tolist() for batch in Loader(dataset, batch_size=2)] == [[3, 1]]
    assert list(next(iter(Loader(dataset, batch_size=2)))) == ["n"]


def test_hugging_face_text_and_transforms_go_sample_by_sample():
    words = hugging_face({"n": [1, 2], "word": ["a", "b"], "row": [[1.0, 2.0], [3.0, 4.0]]})
    batch = next(iter(Loader(words, batch_size=2)))
    assert batch["word"] == ["a", "b"]
    assert batch["row"].tolist() == [[1, 2], [3, 4]]
    changed = hugging_face()
    changed.set_transform(lambda rows: {"n": [10 * n for n in rows["n"]]})
    assert next(iter(Loader(changed, batch_size=3)))["n"].tolist() == [10, 20, 30]


def test_hugging_face_missing_values_are_not_turned_into_nan():
    with pytest.raises(BadData, match=r"NoneType"):
        next(iter(Loader(hugging_face({"n": [1, None]}), batch_size=2)))


def test_hugging_face_streams_are_told_the_epoch():
    stream = datasets.Dataset.from_dict({"n": list(range(8))}).to_iterable_dataset().shuffle(seed=0, buffer_size=8)
    loader = Loader(stream, batch_size=4)
    first, second = ([n for batch in loader for n in batch["n"].tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert [n for batch in loader.at(epoch=1) for n in batch["n"].tolist()] == second
