"""From what the user said to what the loop works with."""

import pytest
import torch
from torch import nn

import stoker
from stoker import InvalidArgument, WrongType, callbacks, metrics, optim, schedule
from stoker.learner._prepare import fastest
from tests.engine.fits import copied, learner, line, linear, same, samples


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"loss": None}, InvalidArgument, "there is nothing to train Linear on: give Learner"),
        ({"optimizer": optim.Adam}, WrongType, "optim.Adam()"),
        ({"optimizer": torch.optim.Adam}, WrongType, "optim.Adam()"),
        ({"optimizer": "adam"}, WrongType, "optim.Adam()"),
        ({"optimizer": {"wieght": optim.SGD(), "*": optim.Adam()}}, stoker.NoSuchParameter, "'weight'"),
        ({"optimizer": {"weight": optim.SGD()}}, stoker.UnmatchedParameter, "bias"),
        ({"lr": {"wieght": 0.1, "*": 0.2}}, stoker.NoSuchParameter, "'weight'"),
        ({"lr": {"weight": 0.1}}, stoker.UnmatchedParameter, "bias"),
        ({"lr": "fast"}, stoker.StokerError, "fast|str"),
        ({"lr": -0.1}, stoker.StokerError, "-0.1"),
        ({"metrics": [metrics.MAE]}, WrongType, "MAE"),
        ({"metrics": [metrics.MAE(), metrics.MAE()]}, InvalidArgument, "two metrics are called 'mae'"),
        ({"device": "abacus"}, InvalidArgument, "device='abacus' can't be used here"),
        ({"device": "meta"}, InvalidArgument, "device='meta' computes nothing"),
    ],
)
def test_what_only_the_model_can_tell_is_refused_before_anything_is_trained(settings, error, text, tmp_path):
    given = linear(**settings)
    before = copied(given._spec.model)
    with pytest.raises(error, match=text):
        given.fit(line(), epochs=1, run=tmp_path / "run", show=False)
    assert same(given._spec.model, before)
    assert not (tmp_path / "run").exists()  # the next try finds its place free


def test_parameters_without_values_are_refused():
    with torch.device("meta"):
        model = nn.Linear(3, 1)
    with pytest.raises(InvalidArgument, match="the parameters of Linear have no values"):
        linear(model=model).fit(line(), epochs=1, show=False)


def test_the_device_that_was_named_is_used_and_told():
    seen = []
    watch = callbacks.on(train_batch_begin=lambda ctx: seen.append((ctx.device, ctx.batch[0].device)))
    result = linear(device="cpu").fit(line(), updates=1, callbacks=[watch], show=False)
    assert seen == [(torch.device("cpu"),) * 2]
    assert result.record.events_of("begin")[0].extra["device"] == "cpu"


def test_a_mapping_that_is_no_dict_will_do():
    from types import MappingProxyType

    rates = MappingProxyType({"bias": 0.1, "*": schedule.constant(0.05)})
    recipe = MappingProxyType({"bias": optim.SGD(), "*": optim.Adam()})
    given = linear(lr=rates, optimizer=recipe)
    assert given.fit(line(), epochs=1, show=False).updates == 2
    assert "bias" in given.explain(line(), epochs=1)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_rate_in_a_mapping_that_can_t_be_one(rate):
    with pytest.raises(InvalidArgument, match="a learning rate is at least 0 and finite, got lr="):
        linear(lr={"bias": rate, "*": 0.1}).fit(line(), epochs=1, show=False)


def test_the_fused_form_is_chosen_where_there_is_one_and_the_user_has_not_chosen():
    model, cpu = nn.Linear(3, 1), torch.device("cpu")
    assert fastest(optim.AdamW(), model, cpu).fused is True
    assert fastest(optim.AdamW(foreach=False), model, cpu).fused is None
    assert fastest(optim.AdamW(fused=False), model, cpu).fused is False
    assert fastest({"*": optim.SGD()}, model, cpu)["*"].fused is True
    wrapped = optim.wrap(torch.optim.RMSprop)
    assert fastest(wrapped, model, cpu) is wrapped
    assert fastest(optim.SGD(), nn.Embedding(3, 2, sparse=True), cpu).fused is None


def test_a_loss_with_class_weights_stays_the_users_on_the_cpu():
    loss = nn.CrossEntropyLoss(weight=torch.ones(4))
    result = learner(loss=loss).fit(samples(), updates=1, show=False)
    assert result._prepared.fit.supervised.loss is loss


def test_the_loss_asked_for_as_a_metric_adds_nothing():
    result = linear(metrics=[metrics.Loss()]).fit(line(), epochs=1, show=False)
    assert result.history.columns.count("train/loss") == 1


def test_a_torchmetric_goes_in_as_it_is_and_twice():
    import torchmetrics

    mae = torchmetrics.MeanAbsoluteError()
    result = linear(metrics=[mae, metrics.MAE()]).fit(
        line(), valid=line(), epochs=2, batch_size=8, validate_every=3, show=False
    )
    names = [name for name in result.history.columns if "absolute" in name]
    assert len(names) == 2
    for name in names:
        assert result.history[name] == pytest.approx(result.history[f"{name.split('/')[0]}/mae"], rel=1e-5)
