"""A run does what somebody who watches asks for, between two updates, and can be gone on with afterwards."""

import time

import torch
from torch import nn

import stoker
from stoker.record import send_request

X, Y = torch.randn(64, 3), torch.randn(64, 1)


def learner():
    return stoker.Learner(nn.Linear, loss=nn.MSELoss(), lr=1e-2, seed=0).hparams(in_features=3, out_features=1)


class Asks(stoker.Callback):
    """Asks for something in the second epoch, and lets the time go by in which the loop does not look."""

    transient = True

    def __init__(self, run, what):
        self.run, self.what = run, what

    def on_epoch_begin(self, ctx):
        if ctx.epoch == 2:
            send_request(self.run, self.what, by="watch")
            time.sleep(0.3)


def test_a_run_that_is_asked_to_stop_stops_and_can_be_gone_on_with(tmp_path):
    whole = learner().fit((X, Y), epochs=5, batch_size=16, show=False)
    first = learner().fit(
        (X, Y), epochs=5, batch_size=16, run=tmp_path / "run", callbacks=[Asks(tmp_path / "run", "stop")], show=False
    )
    assert first.stopped == "Asked to stop by watch, in epoch 2, batch 1"
    rest = learner().fit((X, Y), epochs=5, batch_size=16, run=tmp_path / "run", resume=True, show=False)
    assert rest.epochs == 5 and torch.equal(rest.model.weight, whole.model.weight)


def test_a_run_that_is_asked_to_save_saves_and_goes_on(tmp_path):
    asks = Asks(tmp_path / "run", "save")
    fitted = learner().fit((X, Y), epochs=3, batch_size=16, run=tmp_path / "run", callbacks=[asks], show=False)
    saved = [event.extra["reason"] for event in fitted.record.events_of("checkpoint")]
    assert "asked for by watch" in saved and fitted.epochs == 3
