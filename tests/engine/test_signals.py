"""The signal handlers of a fit. Signals to other processes are tested in tests/resume/test_signals.py."""

import signal
import threading

import pytest
from torch import nn

from stoker import InvalidArgument
from stoker.callbacks import Context, Requests
from stoker.engine import StopSignals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def new_signals(**requests):
    own = Requests()
    for name, value in requests.items():
        setattr(own, name, value)
    ctx = Context(model=nn.Linear(1, 1), requests=own)
    ctx.epoch = ctx.batch_number = 1
    return StopSignals(ctx, own), ctx, own


def handlers():
    return {number: signal.getsignal(number) for number in NUMBERS}


def test_handlers_are_installed_and_restored():
    (signals, _, _), before = new_signals(), handlers()
    with signals.installed(can_save=True):
        now = handlers()
        assert all(now[number] is not before[number] for number in NUMBERS)
    assert handlers() == before
    with pytest.raises(ValueError, match="boom"), signals.installed(can_save=True):
        raise ValueError("boom")
    assert handlers() == before


def test_sigusr1_is_not_handled_without_a_run():
    with new_signals()[0].installed(can_save=False):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_another_thread_installs_no_handlers():
    (signals, _, _), before, seen = new_signals(), handlers(), []

    def work():
        with signals.installed(can_save=True):
            seen.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_ctrl_c_stops_in_order_and_a_second_one_at_once():
    signals, ctx, _ = new_signals()
    with signals.installed(can_save=False):
        signal.raise_signal(signal.SIGINT)
        assert signals.interrupted and not signals.terminated
        assert ctx.stopping == "Interrupted in epoch 1, batch 1"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_several_sigterms_are_one():
    signals, ctx, _ = new_signals()
    with signals.installed(can_save=False):
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
    assert signals.terminated and signals.interrupted
    assert ctx.stopping == "Terminated (SIGTERM) in epoch 1, batch 1"


def test_the_first_reason_to_stop_is_kept():
    signals, ctx, _ = new_signals()
    ctx.stop("enough")
    signals.leave("Interrupted")
    assert ctx.stopping == "enough" and signals.interrupted and signals.reason is None


def test_with_several_processes_a_signal_is_a_request():
    signals, ctx, requests = new_signals(pending={})
    signals.leave("Terminated", terminated=True)
    signals.leave("Interrupted")
    assert requests.pending == {"leave": "Terminated", "terminated": True}
    assert not signals.interrupted and ctx.stopping is None
    signals.accept("Terminated", terminated=True)
    assert signals.interrupted and signals.terminated and ctx.stopping == signals.reason == "Terminated"


def test_sigusr1_requests_a_checkpoint_as_long_as_one_can_be_saved():
    signals, ctx, requests = new_signals(can_save=True)
    with signals.installed(can_save=True):
        signal.raise_signal(signal.SIGUSR1)
        assert requests.save_reason == "requested by SIGUSR1" and ctx.stopping is None
        requests.can_save, requests.save_reason = False, None
        signal.raise_signal(signal.SIGUSR1)
        assert requests.save_reason is None
    with pytest.raises(InvalidArgument):
        ctx.save("a callback gets an error")


class Workers:
    """What `interruptible` reads of a loader."""

    def __init__(self, workers, source):
        self.workers, self.source = workers, source


def interrupted_batches(signals, at):
    """Two batches; a signal arrives while one of them is being made."""
    for number in (1, 2):
        if number == at:
            signals.leave("Interrupted")
        yield number


def test_a_wait_for_workers_ends_at_once():
    signals, _, _ = new_signals()
    assert list(signals.interruptible(Workers(2, [1]), interrupted_batches(signals, 2))) == [1]
    assert signals.interrupted


@pytest.mark.parametrize("loader", [Workers(0, [1]), Workers(2, iter(()))], ids=["no workers", "a stream"])
def test_a_batch_made_in_this_process_is_completed(loader):
    """It may have drawn random numbers, or consumed a sample of a stream."""
    signals, _, _ = new_signals()
    assert list(signals.interruptible(loader, interrupted_batches(signals, 2))) == [1, 2]
    assert signals.interrupted


def test_a_signal_between_two_batches_raises_nothing():
    signals, _, _ = new_signals()
    batches = signals.interruptible(Workers(2, [1]), iter([1, 2]))
    assert next(batches) == 1
    signals.leave("Interrupted")
    assert list(batches) == [2]


def test_an_exception_of_a_worker_is_raised():
    def broken():
        yield 1
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        list(new_signals()[0].interruptible(Workers(2, [1]), broken()))
