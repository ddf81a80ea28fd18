"""However a fit ends: signals to a real process, exceptions from everywhere, and the best weights in the model."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks
from stoker.record import Record
from tests.engine.fits import copied, line, linear, same

# The best weights are known ahead: the learning rate of the third epoch on is far too large.
PROGRAM = """
import os, signal, sys, torch, stoker
from torch import nn
from stoker import Callback, optim

x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)
model = nn.Linear(3, 1)

class Watch(Callback):
    said = []
    best = None
    def on_validation(self, ctx):
        if ctx.best.epoch == ctx.epoch: self.best = model.weight.detach().clone()
    def on_train_batch_begin(self, ctx):
        if ctx.epoch == 4 and ctx.batch_number == 2: {act}
    def on_train_batch_end(self, ctx):
        if ctx.epoch == 4: self.said.append(f"end of batch {{ctx.batch_number}}")
    def on_epoch_end(self, ctx):
        if ctx.epoch == 4: self.said.append("end of epoch")
    def on_interrupt(self, ctx): self.said.append("interrupt")
    def on_exception(self, ctx): self.said.append("exception")
    def on_fit_end(self, ctx): self.said.append("end of fit")

watch = Watch()
learner = stoker.Learner(model, loss=nn.MSELoss(), optimizer=optim.SGD(), lr=lambda n: 0.1 if n < 8 else 0.9, seed=0)
try:
    fitted = learner.fit((x, y), valid=(x, y), epochs=50, batch_size=16, callbacks=[watch], run=sys.argv[1], show=False)
    print("stopped:", fitted.stopped)
    print("fitted", fitted.best.epoch, fitted.epochs)
except KeyboardInterrupt:
    print("KeyboardInterrupt")
print("best", torch.equal(model.weight, watch.best))
print("handler", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(watch.said)
"""


def interrupted(act, folder):
    """The program as a process of its own, in which a real SIGINT arrives."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(PROGRAM.format(act=act)))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, folder / "run"], capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), Record.open(folder / "run")


def test_one_interrupt_ends_the_batch_and_gives_a_fitted(tmp_path):
    said, record = interrupted("os.kill(os.getpid(), signal.SIGINT)", tmp_path)
    assert said == [
        "stopped: Interrupted in epoch 4, batch 2",
        "fitted 2 4",
        "best True",
        "handler True",
        "['end of batch 1', 'end of batch 2', 'end of epoch', 'interrupt', 'end of fit']",
    ]
    assert record.events_of("stop")[-1].text == "Interrupted in epoch 4, batch 2"
    assert record.events_of("end")[-1].extra["updates"] == 14
    assert len(record.all("valid/loss")) == 3  # a fit that is to end does not validate once more


def test_a_second_interrupt_stops_at_once(tmp_path):
    said, record = interrupted("[os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]", tmp_path)
    assert said == ["KeyboardInterrupt", "best True", "handler True", "['end of batch 1', 'exception']"]
    assert record.events_of("error")[-1].text.startswith("KeyboardInterrupt")
    assert record.events_of("end")


def test_an_interrupt_in_a_validation_ends_it_after_the_batch():
    seen = []

    class Press(callbacks.Callback):
        def on_valid_batch_begin(self, ctx):
            seen.append(ctx.batch_number)
            if ctx.epoch == 2 and ctx.batch_number == 1:
                os.kill(os.getpid(), signal.SIGINT)

        def on_validation(self, ctx):
            seen.append("validated")

    result = linear().fit(line(), valid=line(), epochs=5, batch_size=32, callbacks=[Press()], show=False)
    assert seen == [1, 2, "validated", 1]
    assert result.stopped.startswith("Interrupted in epoch 2")
    assert len(result.record.all("valid/loss")) == 1  # half a set has no number


def test_the_handler_of_the_user_is_left_alone():
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        press = callbacks.on(train_begin=lambda ctx: os.kill(os.getpid(), signal.SIGINT))
        result = linear().fit(line(), epochs=2, callbacks=[press], show=False)
        assert pressed == [1, 1] and result.epochs == 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_fit_works_in_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(linear().fit(line(), epochs=2, show=False)))
    thread.start()
    thread.join()
    assert found[0].epochs == 2


class Boom(ZeroDivisionError):
    pass


def failing(where):
    """Data, loss and callbacks of a fit that fails in its third epoch, after 8 good updates in two epochs."""
    state = {"losses": 0}

    def loss(predictions, targets):
        state["losses"] += torch.is_grad_enabled()
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
def test_an_exception_keeps_its_type_and_the_model_its_best_weights(where, tmp_path):
    loss, train, hook = failing(where)
    model, best, told = nn.Linear(3, 1), {}, []
    # The second epoch is worse than the first, so that best and last weights differ.
    keep = callbacks.on(validation=lambda ctx: best.update(copied(model)) if ctx.epoch == 1 else None)
    hear = callbacks.on(exception=lambda ctx: told.append(ctx.stopping))
    learner = linear(model=model, loss=loss, lr=lambda update: 0.1 if update < 4 else 1.5)
    with pytest.raises(Boom, match=f"in the {where}") as caught:
        learner.fit(train, valid=line(), epochs=5, callbacks=[hook, keep, hear], run=tmp_path / "run", show=False)
    assert same(model, best)
    assert told == [f"Boom: in the {where}"]
    record = Record.open(tmp_path / "run")
    (error,) = record.events_of("error")
    assert error.text == f"Boom: in the {where}" and error.epoch == 3 and "Boom" in error.extra["traceback"]
    assert record.events_of("end")[-1].extra["best"]["epoch"] == 1
    assert "Boom" in (tmp_path / "run" / "log.txt").read_text()
    if where == "hook":
        assert "epoch 3, batch 1" in "".join(caught.value.__notes__)


def test_a_fit_can_be_repeated_after_an_exception():
    """Nothing is left held: precision, signals, random numbers."""
    learner = linear(precision="tf32")
    before, state = torch.get_float32_matmul_precision(), torch.get_rng_state()
    broken = callbacks.on(update=lambda ctx: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learner.fit(line(), epochs=1, callbacks=[broken], show=False)
    assert torch.get_float32_matmul_precision() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
