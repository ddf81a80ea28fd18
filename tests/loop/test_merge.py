import torch

from stoker.distributed import World
from stoker.loop._merge import added, merged
from stoker.loop._tally import Tally
from stoker.metrics import Accuracy
from stoker.steps import ClassificationOutput

CPU = torch.device("cpu")


def tally(*shares):
    """Has counted some samples: their loss, and how many of them are right."""
    found = Tally([Accuracy()], CPU)
    for loss, right, count in shares:
        logits = torch.eye(2)[torch.tensor([0] * right + [1] * (count - right))]
        found.add(ClassificationOutput(torch.tensor(loss), logits, torch.zeros(count, dtype=torch.long)))
        found.add_loss("loss", torch.tensor(loss), count)
        found.samples += count
    return found


def test_alone_a_tally_is_its_own_whole():
    own = tally((1.0, 1, 2))
    assert merged(own, World()) is own


def test_shares_of_any_size_add_up_to_the_whole_also_empty_ones():
    whole = tally((1.0, 1, 2), (4.0, 3, 6))
    parts = [tally((1.0, 1, 2)), tally(), tally((4.0, 3, 6))]
    found = whole.empty()
    found.load_state_dict(added(whole.metrics, [part.state_dict() for part in parts]))
    assert found.values("train") == whole.values("train") == {"train/loss": 3.25, "train/accuracy": 0.5}
    assert found.samples == 8
    assert found.losses == ["loss"]


def test_a_loss_that_one_rank_alone_has_is_there():
    other = Tally([], CPU)
    other.add_loss("critic", torch.tensor(2.0), 4)
    states = [Tally([], CPU).state_dict(), other.state_dict()]
    assert added([], states)["sums"] == {"critic": 8.0}
