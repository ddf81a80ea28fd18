"""What a signal does inside the process. tests/resume/test_signals.py sends signals to other processes."""

import signal

import pytest
from torch import nn

from stoker import InvalidArgument
from stoker.callbacks import Context, Requests
from stoker.engine import StopSignals


def new_signals(**fields):
    requests = Requests()
    for name, value in fields.items():
        setattr(requests, name, value)
    ctx = Context(model=nn.Linear(1, 1), requests=requests)
    ctx.epoch = ctx.batch_number = 1
    signals = StopSignals()
    signals.attach(ctx, requests)
    return signals, ctx, requests


def test_the_first_reason_to_stop_is_kept():
    signals, ctx, _ = new_signals()
    ctx.stop("enough")
    signals.request_interrupt("Interrupted")
    assert ctx.stopping == "enough" and signals.interrupted and signals.reason is None


def test_with_several_processes_a_signal_is_a_request():
    signals, ctx, requests = new_signals(pending={})
    signals.request_interrupt("Terminated", terminated=True)
    signals.request_interrupt("Interrupted")
    assert requests.pending == {"interrupt": "Terminated", "terminated": True}
    assert not signals.interrupted and ctx.stopping is None
    signals.interrupt("Terminated", terminated=True)
    assert signals.interrupted and signals.terminated and ctx.stopping == signals.reason == "Terminated"


def test_sigusr1_requests_a_checkpoint_while_one_can_be_saved():
    signals, ctx, requests = new_signals(can_save=True)
    with signals.handle(can_save=False):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    with signals.handle(can_save=True):
        signals.hold()
        signal.raise_signal(signal.SIGUSR1)
        assert requests.save_reason == "requested by SIGUSR1" and ctx.stopping is None
        requests.can_save, requests.save_reason = False, None
        signal.raise_signal(signal.SIGUSR1)
        assert requests.save_reason is None
    with pytest.raises(InvalidArgument):
        ctx.save("a callback gets an error")


# --- waiting for batches


class FakeLoader:
    """What `interruptible` reads of a loader."""

    def __init__(self, workers, source):
        self.workers, self.source = workers, source


def two_batches(signals):
    """A signal arrives while the second batch is computed."""
    yield 1
    signals.request_interrupt("Interrupted")
    yield 2


@pytest.mark.parametrize(
    ("loader", "batches"),
    [
        (FakeLoader(2, [1]), [1]),  # computed by a worker: the wait ends at once
        (FakeLoader(0, [1]), [1, 2]),  # computed here: it may have drawn random numbers
        (FakeLoader(2, iter(())), [1, 2]),  # a stream, of which a sample would be lost
    ],
    ids=["workers", "no workers", "stream"],
)
def test_a_signal_ends_the_wait_for_a_worker_only(loader, batches):
    signals, _, _ = new_signals()
    assert list(signals.interruptible_batches(loader, two_batches(signals))) == batches
    assert signals.interrupted


def test_a_signal_between_two_batches_ends_them():
    signals, _, _ = new_signals()
    batches = signals.interruptible_batches(FakeLoader(2, [1]), iter([1, 2]))
    assert next(batches) == 1
    signals.request_interrupt("Interrupted")
    assert list(batches) == []


def test_an_exception_of_a_worker_is_raised():
    def broken():
        yield 1
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        list(new_signals()[0].interruptible_batches(FakeLoader(2, [1]), broken()))
