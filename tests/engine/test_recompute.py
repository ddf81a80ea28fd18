"""Recomputed activations give the same bits with less memory, and the model is unchanged afterwards."""

import copy
import gc
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Callback, metrics
from stoker.errors import InvalidArgument, WrongType
from tests.device import size

CALLS = []  # of the forward passes of blocks


class Residual(nn.Module):
    """Has running statistics and random numbers, which a second forward pass must not change."""

    def __init__(self, width=8, dropout=0.3):
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(dropout)

    def forward(self, x, *, scale=1.0):
        return x + scale * self.dropout(self.norm(self.linear(x)).relu())


class Block(Residual):
    """Counts its forward passes."""

    def forward(self, x, *, scale=1.0):
        CALLS.append(self.training)
        return super().forward(x, scale=scale)


class Net(nn.Module):
    def __init__(self, dropout=0.3, block=Block):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList([block(dropout=dropout) for _ in range(3)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(F.dropout(x, 0.1, self.training))


def samples():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(52, 6, generator=generator), torch.randint(0, 4, (52,), generator=generator)


def fit(model=None, *, fit_callbacks=(), arguments=None, **settings):
    torch.manual_seed(0)
    model = Net() if model is None else model
    learner = stoker.Learner(model, loss=F.cross_entropy, lr=1e-2, seed=3, metrics=[metrics.Accuracy()], **settings)
    given = {"batch_size": 16, "epochs": 2, "show": False, **(arguments or {})}
    return learner.fit(samples(), callbacks=list(fit_callbacks), **given)


def assert_same(found, expected):
    for name, value in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
    columns = [name for name in expected.history.columns if name.startswith(("train/", "valid/"))]
    assert [found.history[name] for name in columns] == [expected.history[name] for name in columns]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ema": 0.8, "accumulate": 2, "clip_norm": 0.1},
        pytest.param({"precision": "bf16"}, marks=pytest.mark.soak),
        {"arguments": {"micro_batch": 5}},
        {"arguments": {"valid": 0.3}},
    ],
    ids=str,
)
def test_the_bits_are_those_of_kept_activations(settings):
    assert_same(fit(recompute=Block, **settings), fit(**settings))


@pytest.mark.parametrize("wanted", [Block, (Block, nn.Linear), "blocks.*", ["blocks.0", "blocks.[12]"], "a module"])
def test_modules_are_selected_by_class_by_name_or_themselves(wanted):
    model = Net()
    CALLS.clear()
    fit(model, recompute=list(model.blocks) if wanted == "a module" else wanted, arguments={"epochs": 1, "valid": 0.5})
    assert CALLS.count(True) == 2 * 3 * 2  # twice for each of two batches and three blocks
    assert CALLS.count(False) == 3 * (2 + 1)  # validations recompute nothing; the first one is a check


def test_the_model_is_unchanged_after_a_fit_and_after_an_exception():
    class Fails(Callback):
        def on_train_batch_end(self, ctx):
            raise KeyError("stop")

    model = Net()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    names = list(model.state_dict())
    with pytest.raises(KeyError):
        fit(model, recompute=Block, fit_callbacks=[Fails()])
    fit(model, recompute=Block)
    assert [type(block) for block in model.blocks] == [Block] * 3
    assert list(model.state_dict()) == names
    for name, module in model.named_modules():
        assert vars(module).keys() == before[name].keys()
    copy.deepcopy(model)(samples()[0])


@pytest.mark.soak
def test_a_run_may_be_resumed_with_other_modules_recomputed(tmp_path):
    expected = fit(arguments={"epochs": 3})
    fit(recompute=Block, arguments={"run": tmp_path / "run", "epochs": 1})
    assert_same(fit(recompute="blocks.1", arguments={"run": tmp_path / "run", "epochs": 3, "resume": True}), expected)


def test_the_plan_names_what_is_recomputed():
    text = stoker.Learner(Net(), loss=F.cross_entropy, recompute=Block).explain(samples(), epochs=1)
    assert "recompute  the activations of 3 modules (Block) are computed twice, and not kept" in text


def test_copies_and_pickles_made_during_a_fit_have_the_classes_of_the_model():
    copies = []

    class Copies(Callback):
        def on_epoch_end(self, ctx):
            file = io.BytesIO()
            torch.save(ctx.model, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            copies.extend([loaded, pickle.loads(pickle.dumps(ctx.model)), copy.deepcopy(ctx.model)])
            copies.append(copy.deepcopy(ctx.model.blocks[0]))

    fitted = fit(recompute=(Block, "head"), fit_callbacks=[Copies()], arguments={"epochs": 1})
    *models, block = copies
    assert type(block) is Block
    for model in models:
        assert [type(module) for module in model.modules()] == [type(module) for module in Net().modules()]
        x = samples()[0]
        assert torch.equal(model.eval()(x), fitted.model.eval()(x))


@pytest.mark.soak
def test_random_numbers_can_not_be_recomputed_in_a_compiled_step():
    fitted = fit(recompute=Block, compile=True, arguments={"epochs": 1})
    (warning,) = {event.text for event in fitted.record.events_of("warning") if "runs eager" in event.text}
    assert "recompute= has to draw the random numbers of Block twice (native_dropout)" in warning


@pytest.mark.parametrize(
    ("wanted", "error", "text"),
    [
        (nn.Conv2d, InvalidArgument, "nothing below the model matches Conv2d; it has BatchNorm1d, Block, Dropout"),
        ("block.*", InvalidArgument, "nothing below the model matches 'block.*'; did you mean 'blocks.*'|it has"),
        ("blocks", InvalidArgument, "'blocks' has no forward of its own; for what it contains, use \"blocks.*\""),
        (3, WrongType, "recompute takes classes of modules .*; got 3"),
        (nn.Linear(2, 2), InvalidArgument, "nothing below the model matches this module"),
    ],
)
def test_what_matches_nothing_is_refused(wanted, error, text):
    with pytest.raises(error, match=text):
        fit(recompute=wanted)


def test_a_forward_that_was_replaced_on_the_module_is_refused():
    model = Net()
    model.blocks[0].forward = lambda x, scale: x
    with pytest.raises(InvalidArgument, match=r"the forward of 'blocks\.0' was replaced on the module itself"):
        fit(model, recompute=Block)


@pytest.mark.cuda
def test_recomputation_saves_memory_and_is_captured_if_no_random_numbers_are_drawn():
    def peak(**settings):
        gc.collect()  # the memory of earlier fits
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.manual_seed(0)
        width, batch, depth = size((512, 4096, 16), simulated=(64, 4096, 32))
        blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)) for _ in range(depth)]
        model = nn.Sequential(*blocks)
        x = torch.randn(2 * batch, width)
        learner = stoker.Learner(model, loss=F.mse_loss, seed=0, device="cuda", **settings)
        fitted = learner.fit((x, x), batch_size=batch, epochs=3, show=False)
        return fitted, torch.cuda.max_memory_allocated() - before

    (kept, whole), (recomputed, less) = peak(), peak(recompute="[0-9]*")
    assert less < 0.7 * whole
    assert recomputed._prepared.fit.plan.mode == "captured"
    for name, value in kept.model.state_dict().items():
        assert torch.equal(recomputed.model.state_dict()[name], value), name


@pytest.mark.cuda
def test_dropout_is_recomputed_eagerly_on_a_gpu():
    expected, found = (
        fit(_with_residuals(), device="cuda", **more)
        for more in ({"fit_callbacks": [_Eager()]}, {"recompute": Residual})
    )
    assert_same(found, expected)
    plan = found._prepared.fit.plan
    assert plan.mode == "eager"
    assert "recompute= has to draw the random numbers of Residual twice" in plan.reason


def _with_residuals():
    """A network whose code depends on nothing that changes: a list that grows would keep its steps eager."""
    torch.manual_seed(0)
    return Net(block=Residual)


class _Eager(Callback):
    def on_train_batch_after_loss(self, ctx):
        """Keeps the step eager."""
