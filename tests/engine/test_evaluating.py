"""A fit evaluates the model itself, in eval mode and with the weights that are kept; afterwards all is as before."""

import copy
import random
import signal
import threading

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, optim
from tests.distributed.processes import run

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def fit(model, *hooks, epochs=2, valid=(X, Y), fit_settings=None, **settings):
    learner = stoker.Learner(
        model, **{"loss": nn.MSELoss(), "optimizer": optim.SGD(), "lr": 0.01, "seed": 0, **settings}
    )
    given = {"batch_size": 16, "keep": "last", "show": False, **(fit_settings or {})}
    return learner.fit((X, Y), valid=valid, epochs=epochs, callbacks=hooks, **given)


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def everything_of(model):
    """What an evaluation may not change."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    numbers = torch.get_rng_state(), torch.tensor(random.getstate()[1]), torch.tensor(numpy.random.get_state()[1])
    return modes(model), tensors, numbers


def assert_unchanged(model, before):
    torch.testing.assert_close(everything_of(model), before, rtol=0, atol=0)


def around_validation(look):
    """A callback that looks before and after every validation, and what it saw: [before, after] of each."""
    seen = []
    before = callbacks.on(train_end=lambda ctx: seen.append([look(ctx)]))
    return seen, [before, callbacks.on(validation=lambda ctx: seen[-1].append(look(ctx)))]


# --- the model itself


def test_parts_that_were_in_eval_mode_are_so_afterwards_and_the_others_train():
    def switch(ctx):
        ctx.model[2].eval()

    inside = []
    seen, hooks = around_validation(lambda ctx: modes(ctx.model))
    watch = callbacks.on(train_begin=switch, valid_batch_end=lambda ctx: inside.append(modes(ctx.model)))
    fit(stoker.freeze(network(), "1", eval=True), watch, *hooks)
    for before, after in seen:
        assert before == after == {"": True, "0": True, "1": False, "2": False, "3": True}
    assert inside and not any(any(each.values()) for each in inside)


def test_an_overridden_train_is_called_once_before_and_once_after():
    calls = []

    class Own(nn.Sequential):
        def train(self, mode=True):
            calls.append(mode)
            super().train(mode)
            self[1].eval()
            return self

    seen, hooks = around_validation(lambda ctx: (modes(ctx.model), len(calls)))
    fit(Own(*network()), *hooks, epochs=1)
    (before, count), (after, later) = seen[0]
    assert before == after and not after["1"] and after["2"]
    assert calls[count:later] == [False, True]


class Noisy(nn.Module):
    """Draws from all generators and writes a buffer, also in eval mode; fails where it is told to."""

    def __init__(self, error=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.error = nn.Linear(4, 1), nn.BatchNorm1d(4), error
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        if not self.training:
            torch.rand(1), random.random(), numpy.random.rand()
            if self.error is not None:
                raise self.error
        return self.layer(self.norm(x))


def fitted_noisy():
    fitted = fit(Noisy(), epochs=1)
    fitted.model.train()
    fitted.model.norm.eval()
    return fitted


@pytest.mark.parametrize("act", ["evaluate", "predict"])
def test_evaluating_a_fitted_model_changes_nothing(act):
    fitted = fitted_noisy()
    before = everything_of(fitted.model)
    getattr(fitted, act)((X, Y), batch_size=16)
    assert_unchanged(fitted.model, before)
    fitted.model.norm.train()  # the comparison would notice
    with pytest.raises(AssertionError):
        assert_unchanged(fitted.model, before)


@pytest.mark.parametrize("act", ["evaluate", "predict"])
@pytest.mark.parametrize("error", [ValueError("of the model"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_an_exception_in_an_evaluation_changes_nothing(act, error):
    fitted = fitted_noisy()
    fitted.model.error = error
    before = everything_of(fitted.model)
    with pytest.raises(type(error)):
        getattr(fitted, act)((X, Y), batch_size=16)
    assert_unchanged(fitted.model, before)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()], ids=["at its end", "after ctrl-c"])
def test_ctrl_c_while_the_model_is_restored_waits_until_it_is(error):
    class Slow(Noisy):
        presses = False

        def train(self, mode=True):
            if mode and self.presses:
                signal.raise_signal(signal.SIGINT)
            return super().train(mode)

    fitted = fit(Slow(error=None), epochs=1)
    fitted.model.train()
    fitted.model.norm.eval()
    fitted.model.presses, fitted.model.error = True, error
    before = everything_of(fitted.model)
    with pytest.raises(KeyboardInterrupt):
        fitted.predict(X)
    assert_unchanged(fitted.model, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_train_that_raises_does_not_keep_the_rest_from_coming_back():
    class Raises(Noisy):
        raises = False

        def train(self, mode=True):
            if mode and self.raises:
                raise ValueError("of train()")
            return super().train(mode)

    fitted = fit(Raises(), epochs=1)
    fitted.model.train()
    fitted.model.raises = True
    before = everything_of(fitted.model)
    with pytest.raises(ValueError, match="of train"):
        fitted.predict(X)
    assert_unchanged(fitted.model, before)


@pytest.mark.parametrize("hook", ["valid_begin", "valid_batch_begin", "valid_batch_after_pred", "valid_batch_end"])
def test_a_callback_that_switches_the_model_to_training_in_a_validation_is_an_error(hook):
    model = network()
    with pytest.raises(stoker.InvalidArgument, match="switched to training mode in a validation") as caught:
        fit(model, callbacks.on(**{hook: lambda ctx: ctx.model.train()}))
    assert "Do that after the validation, in on_validation" in str(caught.value)


def test_a_callback_may_switch_a_part_of_the_model_for_a_validation():
    """Dropout in a validation, as for an estimate of the uncertainty."""
    switch = callbacks.on(valid_begin=lambda ctx: ctx.model[2].train())
    with_dropout, without = fit(network(), switch), fit(network())
    assert with_dropout.history["valid/loss"] != without.history["valid/loss"]
    assert with_dropout.history["train/loss"] == without.history["train/loss"]


def test_every_validation_set_is_evaluated_with_the_buffers_of_the_training():
    counts = []

    class Counts(Noisy):
        def forward(self, x):
            counts.append((self.training, self.calls.item()))
            return super().forward(x)

    fit(Counts(), epochs=1, valid={"a": (X, Y), "b": (X, Y)})
    calls = [count for training, count in counts[-12:] if not training]
    assert calls == [*range(4, 8), *range(4, 8)]


@pytest.mark.parametrize("wrap", ["whole", "in place", "a part"])
def test_a_compiled_model_is_evaluated_eagerly_so_that_it_has_one_graph(wrap):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def forward(self, x):
            return self.layers(x)

    def compiled():
        torch._dynamo.reset()
        model = Own()
        if wrap == "whole":
            return torch.compile(model, backend=backend)
        if wrap == "in place":
            model.compile(backend=backend)
        else:
            model.layers = torch.compile(model.layers, backend=backend)
        return model

    found = fit(compiled())
    with_validation = len(graphs)
    found.evaluate((X, Y))
    assert len(graphs) == with_validation == 1
    graphs.clear()
    fit(compiled(), valid=None)
    assert len(graphs) == 1
    assert found.history["valid/loss"] == fit(network()).history["valid/loss"]


# --- other weights


def test_the_averaged_weights_are_evaluated_in_the_models_own_memory():
    """Addresses and version counters stay; the weights of the training come back."""

    def look(ctx):
        return [(each.data_ptr(), each._version, each.detach().clone()) for each in ctx.model.parameters()]

    inside = []
    seen, hooks = around_validation(look)
    watch = callbacks.on(valid_batch_end=lambda ctx: inside.append(look(ctx)))
    fitted = fit(network(), watch, *hooks, ema=0.9)
    for before, after in seen:
        for one, other in zip(before, after, strict=True):
            assert one[:2] == other[:2] and torch.equal(one[2], other[2])
    for one, other in zip(inside[-1], seen[-1][1], strict=True):
        assert one[:2] == other[:2]
    assert not torch.equal(inside[-1][0][2], seen[-1][1][0][2])  # of the first layer
    assert all(map(torch.equal, [each[2] for each in inside[-1]], fitted.model.parameters()))


def test_the_weights_of_the_training_come_back_after_an_exception_in_a_validation():
    seen = {}

    def fail(ctx):
        assert not torch.equal(ctx.model[0].weight, seen["trained"][1]["0.weight"])
        raise KeyboardInterrupt

    hooks = callbacks.on(
        train_end=lambda ctx: seen.update(trained=everything_of(ctx.model)),
        valid_batch_end=fail,
        exception=lambda ctx: assert_unchanged(ctx.model, seen["trained"]) or seen.update(checked=True),
    )
    with pytest.raises(KeyboardInterrupt):
        fit(network(), hooks, ema=0.9)
    assert seen["checked"]


def test_callbacks_evaluate_the_weights_that_are_kept():
    losses, trained = [], []

    def look(ctx):
        before = everything_of(ctx.model)
        with ctx.evaluating() as model:
            assert model is ctx.model and not model.training
            losses.append(F.mse_loss(model(X), Y).item())
        assert ctx.model.training
        assert_unchanged(ctx.model, before)
        trained.append(F.mse_loss(copy.deepcopy(ctx.model).eval()(X), Y).item())

    fitted = fit(network(), callbacks.on(validation=look), ema=0.9, epochs=3)
    assert losses == pytest.approx(fitted.history["valid/loss"], rel=1e-6)
    assert trained != pytest.approx(fitted.history["valid/loss"], rel=1e-3)


def test_a_callback_may_evaluate_inside_of_a_validation():
    seen = []

    def look(ctx):
        weights = ctx.model[0].weight.clone()
        with ctx.evaluating() as model:
            seen.append((model(ctx.batch[0]) - ctx.pred).abs().max().item())
        assert torch.equal(ctx.model[0].weight, weights) and not ctx.model.training

    watched = fit(network(), callbacks.on(valid_batch_end=look), ema=0.9)
    assert seen and not any(seen)
    assert watched.history["valid/loss"] == fit(network(), ema=0.9).history["valid/loss"]


def test_a_context_without_a_fit_has_nothing_to_evaluate():
    ctx = callbacks.Context(model=network())
    with pytest.raises(stoker.InvalidArgument, match="needs the context of a fit"), ctx.evaluating():
        pass


# --- several processes


def evaluate_alone(rank, size):
    """Rank 0 alone evaluates a model with batch norm, whose forward pass under DDP is a message to all ranks."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(network())
    found = []

    def look(ctx):
        if rank == 0:
            with ctx.evaluating() as evaluated:
                found.append((type(evaluated).__name__, F.mse_loss(evaluated(X), Y).item()))

    fitted = fit(model, callbacks.on(validation=look), fit_settings={"batch_size": 32})
    return found, fitted.history["valid/loss"]


def test_one_rank_alone_may_evaluate_a_model_with_batch_norm():
    (found, losses), (nothing, same_losses) = run(evaluate_alone, 2)
    assert nothing == [] and losses == same_losses
    assert [name for name, _ in found] == ["Sequential"] * 2
    assert [loss for _, loss in found] == pytest.approx(losses, rel=1e-6)


def plain_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def averaged_fit(ema, hooks=(), parallel="auto"):
    learner = stoker.Learner(
        plain_network(), loss=nn.MSELoss(), optimizer=optim.SGD(), lr=0.1, seed=0, ema=ema, parallel=parallel
    )
    data = X.double(), Y.double()
    return learner.fit(data, valid=data, batch_size=32, epochs=3, keep="last", callbacks=hooks, show=False)


def whole_weights(model):
    whole = {name: each.detach() for name, each in model.named_parameters()}
    return {name: each.full_tensor() if hasattr(each, "full_tensor") else each.clone() for name, each in whole.items()}


def sharded_fit(rank, size):
    """The validation losses, the weights and the predictions of a sharded model; its weights around a validation."""
    seen = {}

    def keep(name):
        return lambda ctx: seen.update({name: whole_weights(ctx.model)})

    hooks = [callbacks.on(train_end=keep("before"), valid_batch_end=keep("inside"), validation=keep("after"))]
    fitted = averaged_fit(0.9, hooks, parallel="fsdp")
    return fitted.history["valid/loss"], whole_weights(fitted.model), fitted.predict(X.double()), seen


def test_a_sharded_model_is_evaluated_with_the_average():
    expected, plain = averaged_fit(0.9), averaged_fit(None)
    assert expected.history["valid/loss"] != pytest.approx(plain.history["valid/loss"], rel=1e-3)
    for losses, weights, predictions, seen in run(sharded_fit, 2):
        assert losses == pytest.approx(expected.history["valid/loss"], rel=1e-9)
        torch.testing.assert_close(weights, whole_weights(expected.model))
        torch.testing.assert_close(predictions, expected.predict(X.double()))
        for name, before in seen["before"].items():
            assert torch.equal(before, seen["after"][name]) and not torch.equal(before, seen["inside"][name])


def test_fits_in_two_threads_leave_torchs_compiler_on():
    """While a loss function is tried, what is compiled runs eagerly; torch has one setting for all threads."""
    torch._dynamo.reset()
    first_tries, second_tries, first_ended = threading.Event(), threading.Event(), threading.Event()

    def first(predictions, targets):
        if len(targets) < 16:  # in a trial, which has fewer rows than the batches
            first_tries.set()
            second_tries.wait(60)
        return F.mse_loss(predictions, targets)

    def second(predictions, targets):
        if len(targets) < 16:
            first_tries.wait(60)
            second_tries.set()
            first_ended.wait(60)
        return F.mse_loss(predictions, targets)

    def train(loss):
        stoker.Learner(network(), loss=loss, lr=0.1, seed=0).fit((X, Y), epochs=1, batch_size=24, show=False)
        first_ended.set()

    threads = [threading.Thread(target=train, args=[loss]) for loss in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert second_tries.is_set()
    graphs = []
    torch.compile(torch.sin, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)(X)
    assert len(graphs) == 1
