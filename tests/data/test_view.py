import pickle

import torch

from stoker.data._columns import as_columns
from stoker.data._view import Selected


def test_a_selection_of_a_selection_is_one_selection():
    columns = as_columns((torch.arange(10), torch.arange(10) * 2))
    once = Selected(columns, torch.tensor([9, 7, 5, 3]))
    twice = Selected(once, torch.tensor([3, 0]))
    assert twice.base is columns
    assert twice.numbers.tolist() == [3, 9]
    assert [int(a) for a, _ in twice] == [3, 9]
    assert twice.gather(torch.tensor([1, 1, 0]))[1].tolist() == [18, 18, 6]
    assert twice.slice(0, 2)[0].tolist() == [3, 9]


def test_choosing_rows_costs_nothing_per_batch():
    columns = as_columns(torch.arange(10))
    view, order = Selected(columns, torch.tensor([9, 7, 5])).resolve(torch.tensor([2, 0, 1]))
    assert view is columns
    assert order.tolist() == [5, 9, 7]
    assert Selected(columns, torch.tensor([9, 7])).resolve(None)[1].tolist() == [9, 7]
    assert columns.resolve(None) == (columns, None)


def test_samples_that_have_no_columns_are_selected_too():
    view = Selected(["a", "b", "c"], torch.tensor([2, 0]))
    assert not view.vectorised
    assert list(view) == ["c", "a"]
    assert view[-1] == "a"


def test_views_can_be_pickled():
    view = pickle.loads(pickle.dumps(Selected(as_columns(torch.arange(4)), torch.tensor([2, 1]))))
    assert view.gather(torch.tensor([0, 1])).tolist() == [2, 1]
