import pytest
import torch
from torch import nn

import stoker
from stoker import InvalidArgument, Parallel, WrongType, callbacks
from stoker.distributed import World
from stoker.learner._parallel import heard_here, spread
from tests.engine.fits import line, linear


def test_alone_nothing_is_shared_and_the_average_is_a_twin():
    model = nn.Linear(2, 1)
    assert spread(model, Parallel(), World(), ema=None) is None
    average = spread(model, Parallel(), World(), ema=0.9)
    assert average is not None and average.model is not model


def test_what_writes_the_numbers_down_is_rank_0_s(tmp_path):
    given = [callbacks.EarlyStopping(), callbacks.CSV(tmp_path / "numbers.csv")]
    assert heard_here(given, World()) == given
    assert heard_here(given, World(rank=1, size=2)) == given[:1]


def test_how_to_be_parallel_is_checked_where_it_is_written():
    with pytest.raises(InvalidArgument, match="did you mean 'fsdp'"):
        stoker.Learner(nn.Linear(1, 1), loss=nn.MSELoss(), parallel="fspd")
    with pytest.raises(WrongType, match="parallel has to be"):
        stoker.Learner(nn.Linear(1, 1), loss=nn.MSELoss(), parallel=2)


def test_ddp_alone_is_a_fit_of_one_process():
    weights = []
    for mode in ("auto", "ddp"):
        torch.manual_seed(0)
        weights.append(linear(parallel=mode).fit(line(), epochs=2, show=False).model.weight)
    assert torch.equal(*weights)
