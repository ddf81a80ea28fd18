import torch

from stoker.metrics._hits import add_hits, fresh_hits, tally
from stoker.metrics._reading import Scored


def test_a_tally_is_a_weighted_bincount():
    numbers, weights = torch.tensor([2, 0, 2, 2]), torch.tensor([0.5, 1.0, 2.0, 0.0], dtype=torch.float64)
    assert torch.equal(tally(numbers, weights, 4), torch.bincount(numbers, weights, minlength=4))


def test_what_weighs_nothing_may_be_no_class():
    scores, targets = torch.eye(3), torch.tensor([0, 255, -100])
    scored = Scored("multiclass", scores, targets, torch.tensor([True, False, False]))
    state = add_hits(fresh_hits(torch.device("cpu")), scored, threshold=0.0)
    assert state["present"].tolist() == [1, 0, 0] == state["chosen"].tolist() == state["hits"].tolist()
    assert state["count"] == 1
