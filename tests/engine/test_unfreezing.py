"""Parameters that a callback freezes or unfreezes during a fit train as in a plain loop, also in a resumed run."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Callback, Checkpoint, callbacks, data, optim
from stoker.errors import UnmatchedParameter
from tests.hooks import Crash, crash_at

EPOCHS, SIZE = 4, 16


def samples():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(48, 6, generator=generator), torch.randint(0, 4, (48,), generator=generator)


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    model[:4].requires_grad_(False)
    return model


class Unfreeze(Callback):
    """Calls `requires_grad_` in a hook, once `when(ctx)` is true; it has no state."""

    def __init__(self, hook, when, part="2", flag=True):
        self._when, self._part, self._flag = when, part, flag
        setattr(self, hook, self._change)

    def _change(self, ctx):
        if self._when(ctx):
            ctx.model.get_submodule(self._part).requires_grad_(self._flag)


def fit(model, hooks, *, run=None, resume=False, frozen="auto", fit_settings=None, **settings):
    given = {"loss": F.cross_entropy, "optimizer": optim.AdamW(fused=False), "lr": 0.01, "seed": 0, **settings}
    arguments = {"keep": "last", **(fit_settings or {})}
    every = Checkpoint(every=2, background=False, frozen=frozen) if run is not None else None
    return stoker.Learner(model, **given).fit(
        data.Loader(samples(), batch_size=SIZE),
        epochs=EPOCHS,
        callbacks=hooks,
        run=run,
        resume=resume,
        checkpoint=every,
        show=False,
        **arguments,
    )


def plain_loop(changes):
    """A loop without stoker; `changes` are the flags of parts by the number of updates before them."""
    model, (x, y) = network(), samples()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for update in range(EPOCHS * 3):
        for part, flag in changes.get(update, {}).items():
            model.get_submodule(part).requires_grad_(flag)
        rows = slice(update % 3 * SIZE, (update % 3 + 1) * SIZE)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model


HOOKS = {
    "on_epoch_begin": ([Unfreeze("on_epoch_begin", lambda ctx: ctx.epoch == 3)], {6: {"2": True}}),
    "on_epoch_end": ([Unfreeze("on_epoch_end", lambda ctx: ctx.epoch == 2)], {6: {"2": True}}),
    "on_update": ([Unfreeze("on_update", lambda ctx: ctx.update == 4)], {4: {"2": True}}),
    "on_train_batch_begin": (
        [
            Unfreeze("on_train_batch_begin", lambda ctx: ctx.update == 4),
            Unfreeze("on_train_batch_begin", lambda ctx: ctx.update == 8, "4", flag=False),
        ],
        {4: {"2": True}, 8: {"4": False}},
    ),
    "on_validation": ([Unfreeze("on_validation", lambda ctx: ctx.update == 5)], {5: {"2": True}}),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_requires_grad_that_a_callback_sets_is_noticed_at_once(hook):
    hooks, changes = HOOKS[hook]
    validating = {"valid": samples(), "validate_every": 5} if hook == "on_validation" else {}
    fitted = fit(network(), hooks, fit_settings=validating)
    for name, value in plain_loop(changes).state_dict().items():
        assert torch.equal(fitted.model.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("kind", "stop", "frozen"),
    [
        ("a callback of one's own", 5, "save"),
        *(pytest.param("FreezeUntil", stop, "save", marks=pytest.mark.soak) for stop in (1, 5, 8)),
        *(pytest.param("a callback of one's own", stop, "save", marks=pytest.mark.soak) for stop in (1, 8)),
        ("a callback of one's own", 8, "fingerprint"),
        pytest.param("a callback of one's own", 5, "fingerprint", marks=pytest.mark.soak),
    ],
)
def test_a_resumed_run_has_the_same_bits(tmp_path, kind, stop, frozen):
    def hooks():
        if kind == "FreezeUntil":
            return [callbacks.FreezeUntil("2", epoch=3)]
        return [Unfreeze("on_epoch_begin", lambda ctx: ctx.epoch == 3)]

    def model():
        made = network()
        made[2].requires_grad_(kind == "FreezeUntil")
        return made

    settings = {"ema": 0.5, "frozen": frozen, "fit_settings": {"keep": "best", "valid": samples()}}
    whole = fit(model(), hooks(), run=tmp_path / "whole", **settings)
    with pytest.raises(Crash):
        fit(model(), [*hooks(), crash_at(update=stop)], run=tmp_path / "cut", **settings)
    resumed = fit(model(), hooks(), run=tmp_path / "cut", resume=True, **settings)
    assert resumed.best == whole.best
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


def test_the_average_follows_parameters_that_are_unfrozen():
    hooks = [Unfreeze("on_epoch_begin", lambda ctx: ctx.epoch == 3)]
    average = copy.deepcopy(network())

    class Averages(Callback):
        def on_update(self, ctx):
            decay = min(0.9, (1 + ctx.update - 1) / (10 + ctx.update - 1))
            for own, new in zip(average.parameters(), ctx.model.parameters(), strict=True):
                own.lerp_(new, 1 - decay)

    with torch.no_grad():
        fitted = fit(network(), [*hooks, Averages()], ema=0.9)
    for name, value in average.state_dict().items():
        torch.testing.assert_close(fitted.model.state_dict()[name], value, rtol=1e-5, atol=1e-7)
    assert not torch.equal(average[2].weight, network()[2].weight)


def test_a_parameter_that_no_optimizer_was_chosen_for_is_named_when_it_is_unfrozen():
    hooks = [Unfreeze("on_epoch_begin", lambda ctx: ctx.epoch == 2)]
    with pytest.raises(UnmatchedParameter, match=r"2\.weight"):
        fit(network(), hooks, optimizer={"4": optim.SGD()})
    with pytest.raises(UnmatchedParameter, match=r"2\.weight"):
        fit(network(), hooks, lr={"4": 0.1})


@pytest.mark.parametrize("frozen", ["save", "fingerprint"])
def test_the_best_weights_of_an_epoch_before_come_back(tmp_path, frozen):
    """Also those of parameters that were frozen then, and trained later."""
    found = {}

    class Keeps(Callback):
        def on_epoch_end(self, ctx):
            found[ctx.epoch] = copy.deepcopy(ctx.model.state_dict())
            ctx.lr_scale = 1.0 if ctx.epoch < 2 else 300.0  # makes everything worse

    hooks = [Unfreeze("on_epoch_begin", lambda ctx: ctx.epoch == 3), Keeps()]
    fitted = fit(
        network(), hooks, run=tmp_path / "run", frozen=frozen, fit_settings={"keep": "best", "valid": samples()}
    )
    assert fitted.best.epoch <= 2
    assert not torch.equal(found[4]["2.weight"], network()[2].weight)
    for name, value in found[fitted.best.epoch].items():
        assert torch.equal(fitted.model.state_dict()[name], value), name
