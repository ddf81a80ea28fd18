import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.data import windows
from stoker.errors import BadData, InvalidArgument


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 5))
def test_windows_are_those_that_torch_unfolds(count, size, stride):
    x = torch.arange(count * 2.0).view(count, 2)
    if size > count:
        with pytest.raises(BadData, match=f"windows of {size} don't fit into {count} samples; there would be none"):
            windows(x, size, stride)
        return
    made = windows(x, size, stride)
    expected = x.unfold(0, size, stride).transpose(1, 2)  # [windows, size, 2]
    assert torch.equal(made.gather(torch.arange(len(made))), expected)
    assert torch.equal(torch.stack(list(made)), expected)


def test_windows_of_samples_are_stacked():
    made = windows([(1, "a"), (2, "b"), (3, "c")], 2)
    numbers, words = made[1]
    assert numbers.tolist() == [2, 3]
    assert words == ["b", "c"]


@pytest.mark.parametrize(
    ("size", "stride", "text"),
    [(0, 1, "a size of 1 or more; got 0"), (2, 0, "a stride of 1"), (True, 1, "size"), (1.5, 1, "got 1.5")],
)
def test_sizes_are_whole_numbers(size, stride, text):
    with pytest.raises(InvalidArgument, match=text):
        windows(range(5), size, stride)
