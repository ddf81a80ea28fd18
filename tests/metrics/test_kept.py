import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.metrics._kept import keep, keep_all, kept


@given(st.lists(st.integers(0, 20), max_size=40))
def test_rows_come_back_in_order_from_few_pieces(sizes):
    rows = torch.arange(sum(sizes))
    state = {}
    for part in rows.split(sizes) if sizes else ():
        state = keep(state, {"a": part, "b": -part})
    found = kept(state)
    if len(rows):
        assert torch.equal(found["a"], rows) and torch.equal(found["b"], -rows)
    else:
        assert found == {}
    assert len(state) <= 2 * len(rows).bit_length()


def test_an_older_state_stays_what_it_was():
    first = keep({}, {"a": torch.ones(1)})
    keep(first, {"a": torch.zeros(8)})
    assert kept(first)["a"].tolist() == [1]


def test_states_are_joined_and_rows_padded_to_one_width():
    a, b = keep({}, {"a": torch.ones(1, 2)}), keep({}, {"a": torch.zeros(2, 3)})
    assert kept(keep_all(a, b))["a"].tolist() == [[1, 1, -1], [0, 0, 0], [0, 0, 0]]
    assert keep_all({}, b).keys() == b.keys() and keep_all(b, {}) == b
