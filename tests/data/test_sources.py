"""What a loader takes: tensors, arrays, tables, lists, datasets, streams; and errors for everything else."""

import math
from collections import namedtuple
from types import MappingProxyType, SimpleNamespace

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from stoker.data import Loader, Source, concat, take, windows
from stoker.errors import BadData, WrongType
from tests.data.batches import Letters, is_in_memory, plain

X, Y = torch.arange(8.0).view(4, 2), torch.arange(4)
Pair = namedtuple("Pair", ["x", "y"])


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return number**2


class Doubled(TensorDataset):
    def __getitem__(self, number):
        return tuple(2 * tensor[number] for tensor in self.tensors)


class Again:
    """An iterable that is not a torch dataset."""

    def __iter__(self):
        return iter([1, 2])


class Endless:
    def __getitem__(self, number):
        return number


def numbers():
    yield 1


def whole(source):
    """All samples of a source in one batch."""
    return next(iter(Loader(source, batch_size=100)))


@pytest.mark.parametrize(
    ("source", "batch"),
    [
        (X, X),
        (X.numpy(), X),
        ((X, Y), (X, Y)),
        ((X.numpy(), Y), (X, Y)),
        ({"x": X}, {"x": X}),
        (MappingProxyType({"x": X}), {"x": X}),
        (Pair(X, Y), Pair(X, Y)),
        ({"in": (X, {"deep": Y}), "out": Y}, {"in": (X, {"deep": Y}), "out": Y}),
        (TensorDataset(X, Y), (X, Y)),
        (X.T.contiguous().T, X),
    ],
)
def test_columns_in_memory_give_batches_of_their_structure(source, batch):
    assert is_in_memory(source)
    for shuffle in (None, 0):
        found = next(iter(Loader(source, batch_size=4, shuffle=shuffle)))
        assert type(found) is type(batch)
    assert plain(whole(source)) == plain(batch)


def test_datasets_lists_and_iterables_are_read_sample_by_sample():
    assert whole(Squares()).tolist() == [0, 1, 4, 9]
    assert whole([1, 2]).tolist() == whole(range(1, 3)).tolist() == whole(Again()).tolist() == [1, 2]
    assert whole(Letters()) == list("abcdefg")
    assert whole(Doubled(X, Y))[1].tolist() == [0, 2, 4, 6]  # a subclass's own __getitem__ is called
    assert not any(map(is_in_memory, (Squares(), [1, 2], Letters(), Again(), Doubled(X, Y))))


class Fetches(TensorDataset):
    """Its own `__getitems__` replaces what `__getitem__` returns, as in a torch DataLoader."""

    def __getitems__(self, numbers):
        return [(-self.tensors[0][number], number + torch.rand(())) for number in numbers]


class OnlyFetches(Dataset):
    def __len__(self):
        return 4

    def __getitems__(self, numbers):
        return [number * 10 for number in numbers]


class Newer(Fetches):
    def __getitem__(self, number):
        return "newer"


def test_a_dataset_with_its_own_getitems_is_read_with_it():
    fetches = Fetches(X, Y)
    assert torch.equal(whole(fetches)[0], next(iter(DataLoader(fetches, batch_size=4)))[0])
    assert torch.equal(whole(Subset(fetches, [2, 1]))[0], -X[[2, 1]])
    assert whole(take(OnlyFetches(), [3, 1])).tolist() == [30, 10]
    assert whole(Subset(OnlyFetches(), [3, 1])).tolist() == [30, 10]
    assert whole(Newer(X, Y)) == ["newer"] * 4
    by_one, by_two = (torch.cat([y for _, y in Loader(fetches, batch_size=size, shuffle=1)]) for size in (1, 2))
    assert torch.equal(by_one, by_two)  # draws are those of the sample


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_unsigned_integers_can_be_shuffled(dtype, shape):
    column = torch.arange(8)[: math.prod(shape)].view(shape).to(dtype)
    for source in ((column, Y), column, take((column, Y), [3, 2, 1, 0]), concat(column, column), windows(column, 2)):
        batches = list(Loader(source, batch_size=3, shuffle=0))
        found = torch.cat([batch[0] if isinstance(batch, tuple) else batch for batch in batches]).long()
        by_sample = Loader(source, batch_size=3, shuffle=0, batcher=list)
        expected = torch.stack([row[0] if isinstance(row, tuple) else row for rows in by_sample for row in rows]).long()
        assert torch.equal(found, expected)


def test_subsets_of_tensors_stay_in_memory():
    part, _ = random_split(TensorDataset(X, Y), [0.5, 0.5], generator=torch.Generator().manual_seed(0))
    assert is_in_memory(part)
    assert torch.equal(whole(part)[1], torch.stack([y for _, y in part]))
    assert whole(Subset(Squares(), [3, 1])).tolist() == [9, 1]


def test_the_source_protocol_is_len_and_indexing():
    for source in ([1], Squares(), TensorDataset(X), take(X, 2)):
        assert isinstance(source, Source)
    assert not isinstance(Letters(), Source)


@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {0: x}], ids=["alone", "tuple", "mapping"])
def test_batches_and_samples_are_copies(make, wrap):
    x = make((6, 2))
    for shuffle in (None, 0):
        for batch in Loader(wrap(x), batch_size=4, shuffle=shuffle):
            (batch if isinstance(batch, torch.Tensor) else batch[0]).fill_(1)
    sample = take(wrap(x), slice(1, 3))[0]
    (sample if isinstance(sample, torch.Tensor) else sample[0]).fill_(1)
    assert x.sum() == 0


@pytest.mark.parametrize("how", ["transform", "batcher"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_or_batcher_that_writes_in_place_does_not_change_the_source(how, workers):
    x, y = torch.ones(4, 2), torch.arange(4)

    def double(x, y):
        return x.mul_(2), y

    def joined(samples):
        return torch.stack([double(*sample)[0] for sample in samples])

    options = {"transform": double} if how == "transform" else {"batcher": joined}
    loader = Loader((x, y), batch_size=2, workers=workers, **options)
    for _ in range(2):
        assert all((batch[0] if how == "transform" else batch).unique().tolist() == [2.0] for batch in loader)
    assert (x == 1).all()


def test_read_only_arrays_are_neither_copied_nor_written_to(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10.0).reshape(5, 2))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    for shuffle in (None, 0):
        for batch in Loader((x, np.arange(5)), batch_size=2, shuffle=shuffle):
            batch[0].fill_(-1)  # a segmentation fault, if it were the file
    assert next(iter(Loader(take((x, x), [4, 1]), batch_size=2)))[0].tolist() == [[8, 9], [2, 3]]


def test_arrays_that_torch_cannot_share_are_copied():
    assert whole(np.arange(3).astype(">i4")).tolist() == [0, 1, 2]
    assert whole(np.arange(3)[::-1]).tolist() == [2, 1, 0]


def test_columns_need_no_python_per_sample():
    class Column(torch.Tensor):
        """A tensor that counts how often it is indexed."""

        calls = 0

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.calls += function in (torch.Tensor.__getitem__, torch.Tensor.index_select)
            return super().__torch_function__(function, types, args, kwargs or {})

    for shuffle in (None, 0):
        Column.calls = 0
        assert len(list(Loader((torch.arange(20).as_subclass(Column),), batch_size=6, shuffle=shuffle, workers=2))) == 4
        assert Column.calls == 4


# --- tables

CONTENT = {"x": [1.5, 2.5, 3.5], "n": [1, 2, 3], "yes": [True, False, True]}
TABLES = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "arrow": pyarrow.table}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_is_a_mapping_of_its_columns(table):
    assert is_in_memory(table(CONTENT))
    batch = next(iter(Loader(take(table(CONTENT), [2, 0]), batch_size=2)))
    assert plain(batch) == {"x": [3.5, 1.5], "n": [3, 1], "yes": [True, True]}
    assert batch["n"].dtype == torch.int64


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_text_in_a_table_raises_with_the_name_of_the_column(table):
    with pytest.raises(BadData, match=r"column \['word'\] has dtype .*; encode it as numbers"):
        whole(table({"n": [1, 2], "word": ["a", "b"]}))


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (polars.DataFrame({"n": [1, None]}), r"column \['n'\] has 1 missing values; fill or drop them first"),
        (pyarrow.table({"n": [1, None]}), r"column \['n'\] has 1 missing values; fill or drop them first"),
    ],
)
def test_missing_values_raise(table, text):
    with pytest.raises(BadData, match=text):
        whole(table)


NOT_KNOWN = {
    "Int64": pandas.Series([1, None], dtype="Int64"),  # to_numpy would give a float with NaN
    "Float64": pandas.Series([1.5, None], dtype="Float64"),
    "boolean": pandas.Series([True, None], dtype="boolean"),
    "arrow": pandas.Series([1, None], dtype="int64[pyarrow]"),
}


@pytest.mark.parametrize("series", NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_missing_values_of_pandas_own_types_raise(series):
    for source in (series, (np.zeros(2), series), pandas.DataFrame({"n": series})):
        with pytest.raises(BadData, match="has 1 missing values; fill or drop them first"):
            whole(source)
    assert whole(series.dropna()).dtype in (torch.int64, torch.float64, torch.bool)
    assert whole(pandas.Series([1.0, None])).isnan().tolist() == [False, True]  # a NaN in numpy's floats is a number


@pytest.mark.parametrize(
    "table",
    [
        pandas.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]),
        pyarrow.table([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"]),
    ],
)
def test_columns_of_the_same_name_raise(table):
    with pytest.raises(BadData, match="the table has 2 columns named 'a'; give each its own name"):
        whole(table)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_inside_a_tuple_raises(table):
    text = (
        r"column \[0\] is a \w+, and a model takes tensors: use .to_numpy\(\) for a matrix of its columns, or a mapping"
    )
    with pytest.raises(BadData, match=text):
        whole((table(CONTENT), np.zeros(3)))


@pytest.mark.parametrize("series", [pandas.Series([1, 2]), polars.Series([1, 2]), pyarrow.array([1, 2])])
def test_a_series_is_a_source_and_a_column(series):
    assert whole(series).tolist() == [1, 2]
    assert whole((np.zeros((2, 3)), series))[1].tolist() == [1, 2]


# --- Hugging Face


def hugging_face(content=CONTENT):
    return datasets.Dataset.from_dict(content)


def test_hugging_face_numbers_are_columns_with_the_dtypes_of_its_torch_format():
    assert is_in_memory(hugging_face())
    batch = whole(hugging_face())
    assert [batch[name].dtype for name in CONTENT] == [torch.float32, torch.int64, torch.bool]
    by_sample = next(iter(Loader(hugging_face(), batch_size=3, transform=dict)))
    for name, column in batch.items():
        assert torch.equal(column, by_sample[name])
        assert column.dtype == by_sample[name].dtype


def test_hugging_face_text_and_transforms_are_read_sample_by_sample():
    words = hugging_face({"n": [1, 2], "word": ["a", "b"], "row": [[1.0, 2.0], [3.0, 4.0]]})
    assert plain(whole(words)) == {"n": [1, 2], "word": ["a", "b"], "row": [[1, 2], [3, 4]]}
    changed = hugging_face()
    changed.set_transform(lambda rows: {"n": [10 * n for n in rows["n"]]})
    assert whole(changed)["n"].tolist() == [10, 20, 30]


def test_hugging_face_missing_values_are_not_turned_into_nan():
    with pytest.raises(BadData, match=r"NoneType"):
        whole(hugging_face({"n": [1, None]}))


def test_hugging_face_streams_get_the_epoch():
    stream = hugging_face({"n": list(range(8))}).to_iterable_dataset().shuffle(seed=0, buffer_size=8)
    loader = Loader(stream, batch_size=4)
    first, second = ([n for batch in loader for n in batch["n"].tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert [n for batch in loader.at(epoch=1) for n in batch["n"].tolist()] == second


# --- errors


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (numbers(), "a generator can be read only once, but every epoch reads the source from its start; pass a list"),
        (numbers, "got the function numbers; put what it yields into a list, or into the __iter__ of a torch Iterable"),
        (Squares, "got the class Squares; create an instance of it"),
        ({1, 2}, "got a set, which has no order; make it a list"),
        ("abc", "a source is a tensor or array, .*; got a str"),
        (None, "got a NoneType"),
        (
            datasets.DatasetDict(test=datasets.Dataset.from_dict({"x": [1]})),
            r"got a DatasetDict: give one of its parts, \['test'\]",
        ),
        (
            SimpleNamespace(train_dataloader=list),
            r"give its loaders: train_dataloader\(\), and val_dataloader\(\) as valid",
        ),
        (Endless(), "Endless has __getitem__ but no __len__; add a __len__"),
    ],
)
def test_what_is_not_a_source_raises(source, text):
    with pytest.raises(WrongType, match=text):
        whole(source)


@pytest.mark.parametrize("source", [[], torch.zeros(0, 3), np.zeros((0,)), (X[:0], Y[:0]), TensorDataset(X[:0])])
def test_a_source_without_samples_raises(source):
    with pytest.raises(BadData, match="the source has no samples"):
        whole(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ((X, Y[:3]), r"same number of rows, but \[0\] has 4, \[1\] has 3"),
        ((Y, Y.to("meta")), r"\[0\] is on cpu, \[1\] is on meta; move them with .to\(\)"),
        (torch.tensor(1.0), "the source is a single number"),
        ({}, "the source is an empty dict"),
        ({"y": np.array(["a", "b"])}, r"column \['y'\] has dtype <U1, which is not numeric; encode it as numbers"),
        ({"y": np.zeros(2, dtype=np.longdouble)}, "which torch does not have; convert it with .astype"),
        ({"y": np.broadcast_to(np.longdouble(1), (2,))}, "which torch does not have"),
        ({"y": np.ma.array([1, 2], mask=[0, 1])}, "is a masked array; fill the masked values first"),
        ({"y": torch.tensor(3)}, "is a single number; it needs a first dimension"),
        ({"y": torch.eye(2).to_sparse()}, r"which has no rows to index; use .to_dense\(\)"),
        ({"y": [1, 2]}, "is a list; a tuple or mapping holds columns, which are tensors or arrays"),
    ],
)
def test_what_is_not_a_column_raises(source, text):
    with pytest.raises(BadData, match=text):
        whole(source)
