"""What a Learner says, checked where it is written; and the model that it makes."""

import pytest
from torch import nn

from stoker import InvalidArgument, Learner, WrongType, metrics
from tests.engine.fits import learner, samples


def test_hparams_merge_and_give_a_new_learner():
    class Sized(nn.Module):
        def __init__(self, width, depth=1, *, bias=True):
            super().__init__()
            self.made = (width, depth, bias)
            self.layer = nn.Linear(6, 4)

        def forward(self, x):
            return self.layer(x)

    base = learner(Sized)
    narrow = base.hparams(width=3)
    deep = narrow.hparams(depth=5, bias=False).hparams(width=8)
    assert deep.fit(samples(), updates=1, show=False).model.made == (8, 5, False)
    assert narrow.fit(samples(), updates=1, show=False).model.made == (3, 1, True)
    assert "hparams={'width': 3}" in repr(narrow) and "hparams" not in repr(base)
    with pytest.raises(TypeError, match="width") as caught:
        base.fit(samples(), updates=1, show=False)
    assert "learner.hparams(...)" in "".join(caught.value.__notes__)


def test_a_function_that_makes_the_model_is_as_good_as_a_class():
    given = learner(lambda width: nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 4)))
    assert given.hparams(width=9).fit(samples(), updates=1, show=False).model[0].out_features == 9
    with pytest.raises(WrongType, match="the model's maker gave dict, expected a torch.nn.Module"):
        learner(dict).fit(samples(), updates=1, show=False)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"model": "net"}, WrongType, "the model is a torch.nn.Module or a class of them, got str"),
        ({"loss": "mse"}, WrongType, r"the loss is a function of \(predictions, targets\), got str"),
        ({"loss": nn.MSELoss}, WrongType, r"the loss is the class MSELoss: make one, loss=MSELoss\(\)"),
        ({"clip_norm": 0}, InvalidArgument, "clip_norm needs a limit above 0, got 0"),
        ({"clip_value": -1.0}, InvalidArgument, "clip_value needs a limit above 0"),
        ({"clip_norm": "1"}, WrongType, "clip_norm is a number, got '1'"),
        ({"clip_norm": float("nan")}, InvalidArgument, "clip_norm needs a limit above 0, got nan"),
        ({"accumulate": 0}, InvalidArgument, "accumulate is a number of batches to an update, at least 1; got 0"),
        ({"accumulate": 1.5}, InvalidArgument, "accumulate is a number of batches"),
        ({"accumulate": True}, InvalidArgument, "accumulate is a number of batches"),
        ({"precision": "fp8"}, InvalidArgument, "precision is one of"),
        ({"ema": 1.0}, InvalidArgument, "ema is a decay of at least 0 and below 1"),
        ({"ema": "yes"}, WrongType, "ema is a number, got 'yes'"),
        ({"on_nan": "ignore"}, InvalidArgument, 'on_nan is "stop" or "skip", got \'ignore\''),
        ({"seed": "0"}, WrongType, "seed is a whole number, got '0'"),
        ({"seed": 1.5}, WrongType, "seed is a whole number"),
        ({"metrics": metrics.MAE()}, WrongType, "metrics is a list, got MAE; put it into brackets"),
        ({"metrics": "mae"}, WrongType, "metrics is a list, got str"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(settings, error, text):
    given = {"model": nn.Linear(3, 1), "loss": nn.MSELoss(), **settings}
    with pytest.raises(error, match=text):
        Learner(given.pop("model"), **given)
