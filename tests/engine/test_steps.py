"""What a step may give: a bare loss, an output of ours or the user's own, objectives; and what it may not."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stoker
from stoker import Objective, RegressionOutput, WrongType, callbacks, metrics, optim
from tests.engine.fits import line, linear, same


class Base(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)


class Bare(Base):
    def train_step(self, batch):
        x, y = batch
        return F.mse_loss(self(x), y)


class Typed(Base):
    def train_step(self, batch):
        x, y = batch
        predictions = self(x)
        return RegressionOutput(F.mse_loss(predictions, y), predictions, y)


class Own(Base):
    def train_step(self, batch):
        x, y = batch
        return SimpleNamespace(loss=F.mse_loss(self(x), y), mine="kept")


class Yielding(Base):
    def train_step(self, batch):
        yield Objective("*", F.mse_loss(self(batch[0]), batch[1]))


def trained(model, **settings):
    learner = stoker.Learner(model, optimizer=optim.SGD(), lr=0.05, seed=0, **settings)
    return learner.fit(line(50), valid=line(30), epochs=3, batch_size=16, show=False)


def reference():
    return trained(Base, loss=F.mse_loss)


@pytest.mark.parametrize("model", [Bare, Typed, Own, Yielding])
def test_every_kind_of_step_trains_to_the_same_bits(model):
    assert same(trained(model).model, reference().model)


@pytest.mark.parametrize("model", [Bare, Typed, Own])
def test_a_missing_valid_step_is_the_train_step_on_the_view(model):
    """50 in batches of 16 leave 2: the numbers weigh samples, so they are those of the supervised default."""
    for name in ("train/loss", "valid/loss"):
        assert trained(model).history[name] == pytest.approx(reference().history[name], rel=1e-6)


def test_the_valid_step_is_asked_where_there_is_one():
    class Two(Bare):
        def valid_step(self, batch):
            assert not self.training
            return torch.tensor(7.0)

    assert trained(Two).history["valid/loss"] == [7.0] * 3


def test_metrics_read_the_typed_output():
    result = trained(Typed, metrics=[metrics.MAE()])
    assert {"train/mae", "valid/mae"} <= set(result.history.columns)


def test_an_output_of_the_users_own_reaches_the_hooks():
    seen = []
    watch = callbacks.on(train_batch_after_loss=lambda ctx: seen.append(ctx.output.mine))
    linear(model=Own(), loss=None).fit(line(), updates=1, callbacks=[watch], show=False)
    assert seen == ["kept"]


def test_objectives_are_counted_in_validation_under_their_names():
    result = stoker.Learner(Yielding, seed=0).fit(line(), valid=line(), epochs=1, show=False)
    assert {"train/*", "valid/*"} <= set(result.history.columns)


def test_the_value_that_a_generator_returns_is_the_output():
    class Judged(Base):
        def train_step(self, batch):
            predictions = self(batch[0])
            loss = F.mse_loss(predictions, batch[1])
            yield Objective("*", loss)
            return RegressionOutput(loss, predictions, batch[1])

    result = stoker.Learner(Judged, seed=0, metrics=[metrics.MAE()]).fit(line(), epochs=1, show=False)
    assert result.history["train/mae"][0] > 0


@dataclass
class Pair:
    x: Tensor
    y: Tensor


def test_a_batch_of_any_type_reaches_the_users_step():
    class Free(Base):
        def train_step(self, batch):
            return F.mse_loss(self(batch.x), batch.y)

    def batcher(items):
        xs, ys = zip(*items, strict=True)
        return Pair(torch.stack(xs), torch.stack(ys))

    loader = stoker.data.Loader(line(50), batch_size=16, shuffle=0, batcher=batcher)
    result = stoker.Learner(Free, optimizer=optim.SGD(), lr=0.05, seed=0).fit(loader, epochs=3, show=False)
    assert same(result.model, reference().model)
    assert result.history["train/loss"] == pytest.approx(reference().history["train/loss"])  # weighed by samples


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, r"Wrong.train_step returned NoneType; expected a loss \(a tensor\), an output with a .loss"),
        ({"loss": 1}, "Wrong.train_step returned dict"),
        (0.5, "Wrong.train_step returned float"),
    ],
)
def test_what_a_step_may_not_return(answer, text):
    class Wrong(Base):
        def train_step(self, batch):
            return answer

    with pytest.raises(WrongType, match=text):
        linear(model=Wrong(), loss=None).fit(line(), epochs=1, show=False)


def test_a_wrong_valid_step_is_named():
    class Wrong(Bare):
        def valid_step(self, batch):
            return "fine"

    with pytest.raises(WrongType, match="Wrong.valid_step returned str"):
        linear(model=Wrong(), loss=None).fit(line(), valid=line(), epochs=1, show=False)


def test_only_objectives_may_be_yielded():
    class Wrong(Base):
        def train_step(self, batch):
            yield F.mse_loss(self(batch[0]), batch[1])

    with pytest.raises(WrongType, match=r"yielded Tensor; expected stoker.Objective\(name, loss\)"):
        linear(model=Wrong(), loss=None).fit(line(), epochs=1, show=False)


def test_a_hook_may_change_the_loss_and_the_predictions():
    doubled = callbacks.on(train_batch_after_loss=lambda ctx: setattr(ctx, "loss", ctx.loss * 2))
    halved = linear(model=None, lr=0.025)
    with_grad = torch.enable_grad()

    class Twice(callbacks.Callback):
        def on_train_batch_after_loss(self, ctx):
            with with_grad:
                ctx.loss = ctx.loss * 2

    torch.manual_seed(0)
    a, b = nn.Linear(3, 1), nn.Linear(3, 1)
    b.load_state_dict(a.state_dict())
    linear(model=a).fit(line(), epochs=1, show=False)
    linear(model=b, lr=0.025).fit(line(), epochs=1, callbacks=[Twice()], show=False)
    torch.testing.assert_close(a.weight, b.weight)
    with pytest.raises(stoker.NotDifferentiable):  # callbacks run without gradients: a loss made there has none
        halved.fit(line(), epochs=1, callbacks=[doubled], show=False)


def test_a_loss_that_a_hook_took_away_is_an_error():
    gone = callbacks.on(train_batch_after_loss=lambda ctx: setattr(ctx, "loss", None))
    with pytest.raises(WrongType, match="a callback set ctx.loss to NoneType"):
        linear().fit(line(), epochs=1, callbacks=[gone], show=False)
