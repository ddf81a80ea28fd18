"""The end of a fit: Ctrl-C, requests from outside, exceptions; the model has the best weights afterwards."""

import os
import signal
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks
from stoker.record import Record, send_request
from tests.learner.fits import copy_state, line, linear, same
from torture.processes import Child


class Watch(callbacks.Callback):
    """Sends signals to its process in the fourth epoch, and notes what is called from then on."""

    def __init__(self, model, signals):
        self.model, self.signals, self.calls, self.best = model, signals, [], None

    def on_validation(self, ctx):
        if ctx.best.epoch == ctx.epoch:
            self.best = self.model.weight.detach().clone()

    def on_train_batch_begin(self, ctx):
        if (ctx.epoch, ctx.batch_number) == (4, 2):
            for _ in range(self.signals):
                os.kill(os.getpid(), signal.SIGINT)

    def on_train_batch_end(self, ctx):
        if ctx.epoch == 4:
            self.calls.append(f"end of batch {ctx.batch_number}")

    def on_epoch_end(self, ctx):
        if ctx.epoch == 4:
            self.calls.append("end of epoch")

    def on_interrupt(self, ctx):
        self.calls.append("interrupt")

    def on_exception(self, ctx):
        self.calls.append("exception")

    def on_fit_end(self, ctx):
        self.calls.append("end of fit")


def print_fit(run, signals):
    """The second epoch has the best weights: from the third on the learning rate is far too large."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    model, y = nn.Linear(3, 1), x.sum(1, keepdim=True)
    watch = Watch(model, signals)
    learner = linear(model=model, lr=lambda update: 0.1 if update < 8 else 0.9)
    try:
        fitted = learner.fit((x, y), valid=(x, y), epochs=50, batch_size=16, callbacks=[watch], run=run, show=False)
        print("stopped:", fitted.stopped)
        print("fitted", fitted.best.epoch, fitted.epochs)
    except KeyboardInterrupt:
        print("KeyboardInterrupt")
    print("best", torch.equal(model.weight, watch.best))
    print("handler", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    print(watch.calls)


def run_program(signals, folder):
    """Runs the fit in a process of its own, which sends itself signals."""
    child = Child(print_fit, folder / "run", signals, prints=folder / "printed.txt")
    assert child.wait() == 0, child.printed()
    return child.printed().splitlines(), Record.open(folder / "run")


def test_one_interrupt_completes_the_batch_and_fit_returns(tmp_path):
    printed, record = run_program(1, tmp_path)
    assert printed == [
        "stopped: Interrupted in epoch 4, batch 2",
        "fitted 2 4",
        "best True",
        "handler True",
        "['end of batch 1', 'end of batch 2', 'end of epoch', 'interrupt', 'end of fit']",
    ]
    assert record.events_of("stop")[-1].text == "Interrupted in epoch 4, batch 2"
    assert record.events_of("end")[-1].extra["updates"] == 14
    assert len(record.all("valid/loss")) == 3  # no validation after the interrupt


def test_a_second_interrupt_raises_at_once(tmp_path):
    printed, record = run_program(2, tmp_path)
    assert printed == ["KeyboardInterrupt", "best True", "handler True", "['end of batch 1', 'exception']"]
    assert record.events_of("error")[-1].text.startswith("KeyboardInterrupt")
    assert record.events_of("end")


def test_an_interrupt_in_a_validation_ends_it_after_the_batch_without_a_score():
    seen = []

    class Interrupt(callbacks.Callback):
        def on_valid_batch_begin(self, ctx):
            seen.append(ctx.batch_number)
            if ctx.epoch == 2 and ctx.batch_number == 1:
                os.kill(os.getpid(), signal.SIGINT)

        def on_validation(self, ctx):
            seen.append("validated")

    result = linear().fit(line(), valid=line(), epochs=5, batch_size=32, callbacks=[Interrupt()], show=False)
    assert seen == [1, 2, "validated", 1]
    assert result.stopped.startswith("Interrupted in epoch 2")
    assert len(result.record.all("valid/loss")) == 1


class Boom(ZeroDivisionError):
    pass


def failing_parts(where):
    """The loss, data and callback of a fit that fails in its third epoch."""
    state = {"losses": 0}

    def loss(predictions, targets):
        state["losses"] += torch.is_grad_enabled() and len(targets) == 16  # trials of the loss have fewer rows
        if where == "loss" and state["losses"] == 10:
            raise Boom("in the loss")
        return F.mse_loss(predictions, targets)

    def transform(x, y):
        state["samples"] = state.get("samples", 0) + 1
        if where == "data" and state["samples"] == 2 * 64 + 20:
            raise Boom("in the data")
        return x, y

    def hook(ctx):
        if where == "hook" and ctx.epoch == 3:
            raise Boom("in the hook")

    return loss, stoker.data.Loader(line(), batch_size=16, shuffle=0, transform=transform), callbacks.on(update=hook)


@pytest.mark.parametrize("where", ["loss", "data", "hook"])
def test_an_exception_is_raised_and_the_model_has_the_best_weights(where, tmp_path):
    loss, train, hook = failing_parts(where)
    model, best, reasons = nn.Linear(3, 1), {}, []
    # The second epoch is worse than the first, so that best and last weights differ.
    keep = callbacks.on(validation=lambda ctx: best.update(copy_state(model)) if ctx.epoch == 1 else None)
    listen = callbacks.on(exception=lambda ctx: reasons.append(ctx.stopping))
    learner = linear(model=model, loss=loss, lr=lambda update: 0.1 if update < 4 else 1.5)
    with pytest.raises(Boom, match=f"in the {where}") as caught:
        learner.fit(train, valid=line(), epochs=5, callbacks=[hook, keep, listen], run=tmp_path / "run", show=False)
    assert same(model, best)
    assert reasons == [f"Boom: in the {where}"]
    record = Record.open(tmp_path / "run")
    (error,) = record.events_of("error")
    assert error.text == f"Boom: in the {where}" and error.epoch == 3 and "Boom" in error.extra["traceback"]
    assert record.events_of("end")[-1].extra["best"]["epoch"] == 1
    assert "Boom" in (tmp_path / "run" / "log.txt").read_text()
    if where == "hook":
        assert "epoch 3, batch 1" in "".join(caught.value.__notes__)


def test_precision_random_numbers_and_signals_are_restored_after_an_exception():
    learner = linear(precision="tf32")
    before, state = torch.get_float32_matmul_precision(), torch.get_rng_state()
    broken = callbacks.on(update=lambda ctx: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learner.fit(line(), epochs=1, callbacks=[broken], show=False)
    assert torch.get_float32_matmul_precision() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- requests from `stoker watch` or another process


class SendRequest(callbacks.Callback):
    """Sends a request in the second epoch, and waits until the loop reads requests again."""

    transient = True

    def __init__(self, run, action):
        self.run, self.action = run, action

    def on_epoch_begin(self, ctx):
        if ctx.epoch == 2:
            send_request(self.run, self.action, by="watch")
            time.sleep(0.3)  # seconds: requests are read a few times a second


def fit_with_request(run, action=None):
    send = [SendRequest(run, action)] if action else []
    learner = stoker.Learner(nn.Linear, loss=nn.MSELoss(), lr=1e-2, seed=0).hparams(in_features=3, out_features=1)
    return learner.fit(line(), epochs=5, batch_size=16, run=run, resume=True, callbacks=send, show=False)


def test_a_run_stops_on_request_and_resumes(tmp_path):
    first = fit_with_request(tmp_path / "run", "stop")
    assert first.stopped == "Stop requested by watch, in epoch 2, batch 1"
    rest = fit_with_request(tmp_path / "run")
    assert rest.epochs == 5 and same(rest.model, fit_with_request(tmp_path / "whole").model)


def test_a_run_saves_on_request_and_continues(tmp_path):
    fitted = fit_with_request(tmp_path / "run", "save")
    reasons = [event.extra["reason"] for event in fitted.record.events_of("checkpoint")]
    assert "requested by watch" in reasons and fitted.epochs == 5
