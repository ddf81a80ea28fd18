from collections import namedtuple

import numpy as np
import pytest
import torch

from stoker.data._columns import as_column, as_columns
from stoker.errors import BadData

Pair = namedtuple("Pair", ["x", "y"])


def test_a_batch_has_the_structure_of_the_source():
    x, y = torch.arange(12.0).view(6, 2), torch.arange(6)
    rows = torch.tensor([4, 0])
    assert torch.equal(as_columns(x).gather(rows), x[[4, 0]])
    a, b = as_columns((x, y)).gather(rows)
    assert torch.equal(a, x[[4, 0]])
    assert b.tolist() == [4, 0]
    nested = as_columns({"in": (x, {"deep": y}), "out": y}).gather(rows)
    assert nested["in"][1]["deep"].tolist() == nested["out"].tolist() == [4, 0]
    assert as_columns(Pair(x, y)).gather(rows).y.tolist() == [4, 0]
    assert as_columns((x,)).gather(rows)[0].shape == (2, 2)


@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
@pytest.mark.parametrize("wrap", [lambda x: (x,), lambda x: {0: x}])
def test_slices_and_samples_are_copies_of_the_rows(make, wrap):
    x = make((6, 2))
    columns = as_columns(wrap(x))
    columns.slice(0, 2)[0].fill_(1)
    columns[5][0].fill_(5)
    columns.gather(torch.tensor([3]))[0].fill_(3)
    columns.narrow(1, 3).slice(0, 1)[0].fill_(2)
    assert x.sum() == 0


def test_arrays_are_shared_and_not_copied():
    x = np.zeros((4, 3), dtype=np.float32)
    columns = as_columns((x,))
    x[2] = 7
    assert columns[2][0].tolist() == [7, 7, 7]
    assert columns.slice(2, 3)[0].dtype == torch.float32


def test_read_only_arrays_are_neither_copied_nor_written_to(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10.0).reshape(5, 2))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    columns = as_columns((x, np.arange(5)))
    for batch in (columns.slice(0, 2)[0], columns[0][0], columns.gather(torch.tensor([0, 1]))[0]):
        batch.fill_(-1)  # would be a segmentation fault, were it the file
    assert columns.gather(torch.tensor([4, 1]))[0].tolist() == [[8, 9], [2, 3]]
    assert np.shares_memory(columns.narrow(1, 3).tree[0], x)


def test_arrays_that_torch_cannot_share_are_copied():
    swapped = np.arange(3).astype(">i4")
    assert as_columns(swapped)[2] == 2
    assert as_columns(np.arange(3)[::-1])[0] == 2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.complex64, torch.uint16, torch.int8])
def test_dtypes_stay(dtype):
    x = torch.ones(4, 2).to(dtype)
    columns = as_columns((x, x))
    assert columns.gather(torch.tensor([1, 2]))[0].dtype == columns.slice(0, 2)[1].dtype == dtype


def test_numbers_count_from_both_ends_and_end_with_an_index_error():
    columns = as_columns(torch.arange(3))
    assert [int(columns[number]) for number in (0, -1, np.int64(1))] == [0, 2, 1]
    assert [int(each) for each in columns] == [0, 1, 2]
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=f"sample {wrong} of 3"):
            columns[wrong]


def test_columns_of_different_lengths_are_named():
    x, y = torch.zeros(4, 2), torch.zeros(5)
    with pytest.raises(BadData, match=r"same number of rows, but \[0\] has 4, \[1\] has 5"):
        as_columns((x, y))
    with pytest.raises(BadData, match=r"\['x'\] has 4, \['more'\]\['y'\] has 5"):
        as_columns({"x": x, "more": {"y": y}})


def test_columns_on_different_devices_are_named():
    with pytest.raises(BadData, match=r"\[0\] is on cpu, \[1\] is on meta; move them with .to\(\)"):
        as_columns((torch.zeros(4), torch.zeros(4, device="meta")))


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (np.array(["a", "b"]), r"column \['y'\] has dtype <U1, which is no kind of number; encode it as numbers"),
        (np.array([None, 1], dtype=object), "has dtype object"),
        (np.array(["2024-01-01"], dtype="datetime64[D]"), "has dtype datetime64"),
        (np.zeros(2, dtype=np.longdouble), "which torch does not have; convert it with .astype"),
        (np.broadcast_to(np.longdouble(1), (2,)), "which torch does not have"),
        (np.ma.array([1, 2], mask=[0, 1]), "is a masked array; fill the masked values first"),
        (torch.tensor(3), "is a single number: it needs a first dimension"),
        (torch.eye(2).to_sparse(), "whose rows can't be taken; make it dense"),
        ([1, 2], "is a list; a tuple or mapping holds columns, which are tensors or arrays"),
        (3, "is a int; a tuple or mapping holds columns"),
        ("ab", "is a str; a tuple or mapping holds columns"),
    ],
)
def test_what_is_no_column_is_named_with_what_to_do(column, text):
    with pytest.raises(BadData, match=text):
        as_columns({"y": column})


def test_a_source_by_itself_is_called_the_source():
    with pytest.raises(BadData, match=r"the source is a single number"):
        as_column(torch.tensor(1.0))
    with pytest.raises(BadData, match=r"the source is an empty tuple"):
        as_columns(())
    with pytest.raises(BadData, match=r"the source is an empty dict"):
        as_columns({})


def test_narrowing_shares_memory():
    x = torch.arange(5)
    part = as_columns((x, x)).narrow(1, 3)
    assert len(part) == 2
    assert part.tree[0].data_ptr() == x[1:].data_ptr()
