import pytest
import torch

from stoker.data import concat
from stoker.errors import BadData, InvalidArgument


def test_nothing_is_copied_until_it_is_asked_for():
    x = torch.zeros(3, 2)
    both = concat((x,), (x,))
    x.fill_(7)
    assert both[4][0].tolist() == [7, 7]


def test_lists_and_columns_go_together_sample_by_sample():
    both = concat(torch.arange(2), [torch.tensor(7)])
    assert not both.vectorised
    assert [int(each) for each in both] == [0, 1, 7]


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (
            torch.zeros(2, 4),
            r"a row is torch.float32 \[3\] on cpu in the first and torch.float32 \[4\] on cpu in source 2",
        ),
        (torch.zeros(2, 3).double(), r"torch.float64 \[3\] on cpu in source 2"),
        ((torch.zeros(2, 3),), r"missing in source 2"),
    ],
)
def test_rows_have_to_be_alike(second, text):
    with pytest.raises(BadData, match=text):
        concat(torch.zeros(2, 3), second)


def test_columns_that_differ_are_named():
    with pytest.raises(
        BadData, match=r"column \['y'\] is missing in the first and torch.int64 \[\] on cpu in source 2"
    ):
        concat({"x": torch.zeros(2)}, {"x": torch.zeros(2), "y": torch.arange(2)})


def test_nothing_is_not_a_source():
    with pytest.raises(InvalidArgument, match="concat needs at least one source"):
        concat()
    with pytest.raises(BadData, match="the source has no samples"):
        concat([1], [])
