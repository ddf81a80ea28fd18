"""The arguments of Learner and fit: what they mean, and that wrong ones are rejected before anything happens."""

import copy
import re
from types import MappingProxyType

import pytest
import torch
from torch import nn

import stoker
from stoker import Checkpoint, InvalidArgument, Learner, WrongType, callbacks, metrics, optim, schedule
from tests.learner.fits import Net, copy_state, learner, line, linear, same, samples


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"model": "net"}, WrongType, "the model is a torch.nn.Module or a class of them, got str"),
        ({"loss": "mse"}, WrongType, r"the loss is a function of \(predictions, targets\), got str"),
        ({"loss": nn.MSELoss}, WrongType, r"the loss is the class MSELoss; create one: loss=MSELoss\(\)"),
        ({"clip_norm": 0}, InvalidArgument, "clip_norm must be above 0, got 0"),
        ({"clip_norm": "1"}, WrongType, "clip_norm is a number, got '1'"),
        ({"clip_norm": float("nan")}, InvalidArgument, "clip_norm must be above 0, got nan"),
        ({"accumulate": 0}, InvalidArgument, "accumulate is a number of batches per update, at least 1; got 0"),
        ({"precision": "fp8"}, InvalidArgument, "precision"),
        ({"compile": "yes"}, WrongType, "compile is True or False, got 'yes'"),
        ({"ema": 1.0}, InvalidArgument, "ema is a decay of at least 0 and below 1"),
        ({"on_nan": "ignore"}, InvalidArgument, 'on_nan is "stop" or "skip", got \'ignore\''),
        ({"seed": "0"}, WrongType, "seed is a whole number, got '0'"),
        (
            {"seed": 2**64},
            InvalidArgument,
            "seed has to fit into 64 bits, as torch's seeds do; got 1844674",
        ),
        ({"los": nn.MSELoss()}, WrongType, "Learner has no argument 'los'; did you mean 'loss'"),
        (
            {"criterion": None},
            WrongType,
            "has no argument 'criterion'; the arguments are: model, loss, optimizer",
        ),
        ({"metrics": metrics.MAE()}, WrongType, r"metrics takes a list, got MAE; write metrics=\[\.\.\.\]"),
        ({"parallel": "fspd"}, InvalidArgument, "did you mean 'fsdp'"),
        ({"lr": "fast"}, stoker.StokerError, "fast|str"),
        ({"lr": -0.1}, InvalidArgument, "a learning rate is at least 0 and finite, got lr=-0.1"),
        ({"lr": {"bias": float("nan"), "*": 0.1}}, InvalidArgument, "a learning rate is at least 0 and finite"),
    ],
)
def test_wrong_arguments_of_a_learner_are_rejected_at_once(arguments, error, text):
    given = {"model": nn.Linear(3, 1), "loss": nn.MSELoss(), **arguments}
    with pytest.raises(error, match=text):
        Learner(given.pop("model"), **given)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"loss": None}, InvalidArgument, "give Learner"),
        ({"optimizer": optim.Adam}, WrongType, "optim.Adam()"),
        ({"optimizer": {"wieght": optim.SGD(), "*": optim.Adam()}}, stoker.NoSuchParameter, "'weight'"),
        ({"optimizer": {"weight": optim.SGD()}}, stoker.UnmatchedParameter, "bias"),
        ({"lr": {"wieght": 0.1, "*": 0.2}}, stoker.NoSuchParameter, "'weight'"),
        ({"lr": {"weight": 0.1}}, stoker.UnmatchedParameter, "bias"),
        ({"metrics": [metrics.MAE]}, WrongType, "MAE"),
        ({"metrics": [metrics.MAE(), metrics.MAE()]}, InvalidArgument, "two metrics are called 'mae'"),
        ({"device": "abacus"}, InvalidArgument, "device='abacus' cannot be used here"),
        ({"device": "meta"}, InvalidArgument, "device='meta' computes nothing"),
    ],
)
def test_arguments_that_do_not_match_the_model_are_rejected_before_training(arguments, error, text, tmp_path):
    given = linear(**arguments)
    before = copy_state(given.model)
    with pytest.raises(error, match=text):
        given.fit(line(), epochs=1, run=tmp_path / "run", show=False)
    assert same(given.model, before)
    assert not (tmp_path / "run").exists()  # the next attempt can use it


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, InvalidArgument, "say how long to train: epochs=, updates= or minutes="),
        ({"epochs": 0}, InvalidArgument, "epochs must be above 0, got 0"),
        ({"epochs": 2.5}, WrongType, "epochs is a whole number, got 2.5"),
        ({"epochs": True}, WrongType, "epochs is a whole number, got True"),
        ({"updates": "9"}, WrongType, "updates is a whole number, got '9'"),
        ({"minutes": float("nan")}, InvalidArgument, "minutes must be above 0, got nan"),
        ({"keep": "all"}, InvalidArgument, 'keep is "best" or "last", got \'all\''),
        ({"validate_every": 0}, InvalidArgument, 'validate_every is "epoch" or a number of updates'),
        ({"batch_size": 0}, InvalidArgument, "batch_size"),
        ({"callbacks": callbacks.EarlyStopping()}, WrongType, "callbacks takes a list"),
        ({"callbacks": [callbacks.EarlyStopping]}, WrongType, r"create one: EarlyStopping\(...\)"),
        ({"config": {"a": 1}}, InvalidArgument, "config is written to the run directory: give run= as well"),
        ({"resume": True}, InvalidArgument, "resume needs a run directory: give run= as well"),
        ({"checkpoint": Checkpoint()}, InvalidArgument, "checkpoint needs a run directory"),
        ({"run": "runs/a", "checkpoint": "epoch"}, WrongType, "checkpoint is a stoker.Checkpoint.* got str"),
        ({"run": "runs/a", "resume": "yes"}, InvalidArgument, "resume is True, False or \"force\", got 'yes'"),
        ({"run": 5}, WrongType, "run is the path of a directory, got 5"),
        ({"run": ""}, InvalidArgument, "run is the path of a directory, got an empty string"),
        ({"run": "a\0b"}, InvalidArgument, "a path has no zero byte; got 'a.x00b'"),
        ({"num_workers": 3}, WrongType, "'num_workers'; it is one of data.Loader"),
        ({"val_data": 3}, WrongType, "'val_data'; did you mean 'valid'"),
        ({"max_epochs": 3}, WrongType, "Learner.fit has no argument 'max_epochs'; did you mean 'epochs'"),
    ],
)
def test_wrong_arguments_of_fit_are_rejected_and_nothing_is_written(tmp_path, monkeypatch, arguments, error, text):
    monkeypatch.chdir(tmp_path)
    has_limit = not arguments or {"epochs", "updates", "minutes"} & set(arguments)
    with pytest.raises(error, match=text):
        linear().fit(line(), show=False, **({} if has_limit else {"epochs": 1}), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_inputs_and_targets_are_one_argument():
    with pytest.raises(WrongType, match=r"Learner.fit takes one argument without a name, 'train', and got 2.*\(x, y\)"):
        linear().fit(*line(), epochs=1)


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1])
def test_every_seed_of_torch_is_accepted(seed):
    given = linear(seed=seed, model=lambda: nn.Linear(3, 1))
    assert same(*(given.fit(line(), epochs=1, show=False).model for _ in range(2)))


def test_parameters_on_the_meta_device_are_rejected():
    with torch.device("meta"):
        model = nn.Linear(3, 1)
    with pytest.raises(InvalidArgument, match="the parameters of Linear have no values"):
        linear(model=model).fit(line(), epochs=1, show=False)


def test_a_class_is_created_for_every_fit_and_two_fits_give_the_same_bits():
    given = learner()
    first, second = (given.fit(samples(), valid=0.2, epochs=2, show=False) for _ in range(2))
    assert first.model is not second.model and same(first.model, second.model)
    assert first.history["valid/loss"] == second.history["valid/loss"]


def test_an_instance_is_trained_in_place():
    model = Net()
    given = learner(model)
    assert given.fit(samples(), epochs=1, show=False).model is model
    after_one = copy_state(model)
    given.fit(samples(), epochs=1, show=False)
    assert not same(model, after_one)  # the second fit starts from the weights of the first
    assert model.head.weight.grad is None and not model.training


def test_fit_does_not_change_the_learner():
    rates, optimizers = {"head": 1e-2, "*": 1e-3}, {"head": optim.SGD(), "*": optim.AdamW()}
    given = learner(Net, loss=nn.CrossEntropyLoss(), lr=rates, optimizer=optimizers, metrics=[metrics.Accuracy()])
    text, before = repr(given), dict(vars(given))
    given.fit(samples(), epochs=1, show=False)
    given.explain(samples(), epochs=1)
    assert repr(given) == text and vars(given) == before
    assert rates == {"head": 1e-2, "*": 1e-3} and optimizers == {"head": optim.SGD(), "*": optim.AdamW()}
    assert re.fullmatch(r"Learner\(Linear, optimizer=SGD\(.*\), lr=0.5\)", repr(linear(lr=0.5)))


def test_hparams_are_merged_into_a_new_learner():
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
    assert "Sized(width=3)" in repr(narrow) and "Sized," in repr(base)
    with pytest.raises(TypeError, match="width") as caught:
        base.fit(samples(), updates=1, show=False)
    assert "learner.hparams(...)" in "".join(caught.value.__notes__)
    with pytest.raises(InvalidArgument, match="hparams are for a model class"):
        linear().hparams(width=3)


def test_a_function_that_creates_the_model_can_be_given():
    given = learner(lambda width: nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 4)))
    assert given.hparams(width=9).fit(samples(), updates=1, show=False).model[0].out_features == 9
    with pytest.raises(WrongType, match=r"dict\(\) returned dict, expected a torch.nn.Module"):
        learner(dict).fit(samples(), updates=1, show=False)


def test_any_mapping_of_selectors_can_be_given():
    rates = MappingProxyType({"bias": 0.1, "*": schedule.constant(0.05)})
    given = linear(lr=rates, optimizer=MappingProxyType({"bias": optim.SGD(), "*": optim.Adam()}))
    assert given.fit(line(), epochs=1, show=False).updates == 2
    assert "bias" in given.explain(line(), epochs=1)


@pytest.mark.parametrize(
    ("model", "optimizer", "expected"),
    [
        (nn.Linear(3, 1), optim.AdamW(), "AdamW(fused=True)"),
        (nn.Linear(3, 1), optim.AdamW(foreach=False), "AdamW(foreach=False)"),
        (nn.Linear(3, 1), optim.AdamW(fused=False), "AdamW(fused=False)"),
        (nn.Linear(3, 1), {"*": optim.SGD()}, "SGD(fused=True)"),
    ],
)
def test_the_fused_optimizer_is_used_unless_the_user_chose(model, optimizer, expected):
    assert expected in linear(model=model, optimizer=optimizer).explain(line(), epochs=1)


def test_16_bit_parameters_on_a_cpu_are_trained_by_the_sgd_that_updates_them():
    ours = nn.Linear(16, 16, dtype=torch.bfloat16)
    before, theirs, x = ours.weight.clone(), copy.deepcopy(ours), torch.randn(8, 16, dtype=torch.bfloat16)
    learner = stoker.Learner(ours, loss=nn.MSELoss(), optimizer=optim.SGD(momentum=0.9), lr=0.1, seed=0, device="cpu")
    learner.fit((x, x.flip(1)), epochs=3, batch_size=8, show=False)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(theirs(x), x.flip(1)).backward()
        optimizer.step()
    assert torch.allclose(ours.weight, theirs.weight, atol=0.01)
    assert not torch.allclose(ours.weight, before, atol=0.01)


def test_the_loss_is_measured_once_and_torchmetrics_work():
    import torchmetrics

    given = linear(metrics=[metrics.Loss(), torchmetrics.MeanAbsoluteError(), metrics.MAE()])
    result = given.fit(line(), valid=line(), epochs=2, batch_size=8, validate_every=3, show=False)
    assert result.history.columns.count("train/loss") == 1
    names = [name for name in result.history.columns if "absolute" in name]
    assert len(names) == 2
    for name in names:
        assert result.history[name] == pytest.approx(result.history[f"{name.split('/')[0]}/mae"], rel=1e-5)


def test_ddp_with_one_process_is_an_ordinary_fit():
    plain, ddp = (
        linear(model=lambda: nn.Linear(3, 1), parallel=mode).fit(line(), epochs=2) for mode in ("auto", "ddp")
    )
    assert same(plain.model, ddp.model)
