"""The handlers by themselves; signals to real processes are in tests/resume/test_signals.py."""

import signal
import threading

import pytest

from stoker import InvalidArgument, callbacks, data
from stoker.loop._signals import _Interrupted, awaited, interruptible, leave
from tests.engine.fits import learner, samples

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def made(saver=None):
    """A fit that is over, to ask its parts."""
    fit = learner().fit(samples(32), epochs=1, show=False)._prepared.fit
    fit.ctx.stopping, fit.saver = None, saver
    return fit


def handlers():
    return {number: signal.getsignal(number) for number in NUMBERS}


def test_they_are_taken_and_preserve_rng():
    fit, before = made(saver=object()), handlers()
    with interruptible(fit):
        now = handlers()
        assert all(now[number] is not before[number] for number in NUMBERS)
    assert handlers() == before
    with pytest.raises(ValueError, match="boom"), interruptible(fit):
        raise ValueError("boom")
    assert handlers() == before


def test_without_a_run_there_is_nothing_to_ask_for():
    with interruptible(made()):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_handler_of_the_users_own_stays():
    mine = []
    before = signal.signal(signal.SIGTERM, lambda *_: mine.append(1))
    try:
        with interruptible(made()):
            signal.raise_signal(signal.SIGTERM)
        assert mine == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_touches_none():
    fit, before, seen = made(), handlers(), []

    def work():
        with interruptible(fit):
            seen.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_ctrl_c_once_and_twice():
    fit = made()
    with interruptible(fit):
        signal.raise_signal(signal.SIGINT)
        assert fit.interrupted and not fit.terminated
        assert fit.ctx.stopping == "Interrupted in epoch 1, batch 1"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_sigterm_as_often_as_it_comes():
    fit = made()
    with interruptible(fit):
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
    assert fit.terminated and fit.interrupted
    assert fit.ctx.stopping == "Terminated (SIGTERM) in epoch 1, batch 1"


def test_the_first_reason_is_kept():
    fit = made()
    fit.ctx.stop("enough")
    leave(fit, "Interrupted")
    assert fit.ctx.stopping == "enough" and fit.interrupted


def test_sigusr1_asks_for_a_checkpoint_and_does_nothing_once_it_is_too_late():
    fit = made(saver=object())
    with interruptible(fit):
        fit.ctx._requests.can_save = True
        signal.raise_signal(signal.SIGUSR1)
        assert fit.ctx._requests.save_reason == "asked for by SIGUSR1" and fit.ctx.stopping is None
        fit.ctx._requests.can_save, fit.ctx._requests.save_reason = False, None
        signal.raise_signal(signal.SIGUSR1)
        assert fit.ctx._requests.save_reason is None
    with pytest.raises(InvalidArgument):
        fit.ctx.save("by a hook, that is an error")


# --- waiting for a batch


class Workers:
    """What `awaited` looks at."""

    def __init__(self, workers, source):
        self.workers, self.source = workers, source


def batches(fit, at, seen):
    """Two batches; an interrupt arrives while the second is being made."""
    for number in (1, 2):
        if number == at:
            seen.append(fit.waiting)
            leave(fit, "Interrupted")
        yield number


def test_a_wait_for_workers_is_left_at_once():
    fit, seen = made(), []
    assert list(awaited(fit, Workers(2, [1]), batches(fit, 2, seen))) == [1]
    assert seen == [True] and fit.interrupted and not fit.waiting


@pytest.mark.parametrize("loader", [Workers(0, [1]), Workers(2, iter(()))], ids=["no workers", "a stream"])
def test_what_is_made_in_this_process_is_made_to_its_end(loader):
    """It may have drawn random numbers, or taken a sample out of a stream."""
    fit, seen = made(), []
    assert list(awaited(fit, loader, batches(fit, 2, seen))) == [1, 2]
    assert seen == [False] and fit.interrupted


def test_between_two_batches_nothing_is_left():
    fit = made()
    walk = awaited(fit, Workers(2, [1]), iter([1, 2]))
    assert next(walk) == 1 and not fit.waiting
    leave(fit, "Interrupted")  # in the middle of the user's batch: no exception
    assert list(walk) == [2]


def test_an_exception_of_a_worker_goes_through():
    def broken():
        yield 1
        raise ValueError("boom")

    fit = made()
    with pytest.raises(ValueError, match="boom"):
        list(awaited(fit, Workers(2, [1]), broken()))
    assert not fit.waiting and not issubclass(_Interrupted, Exception)


def test_real_loaders_say_what_is_asked_of_them():
    loader = data.Loader(samples(8), batch_size=4)
    assert loader.workers == 0 and hasattr(loader.source, "__len__")


def test_a_hook_may_interrupt_as_ctrl_c_does():
    """The batch and the epoch end in order, the interrupt's hook comes, and a Fitted comes out."""
    said = []
    at = callbacks.on(
        train_batch_begin=lambda ctx: signal.raise_signal(signal.SIGINT) if ctx.batch_number == 2 else None,
        train_batch_end=lambda ctx: said.append(ctx.batch_number),
        epoch_end=lambda ctx: said.append("epoch"),
        interrupt=lambda ctx: said.append("interrupt"),
        fit_end=lambda ctx: said.append("end"),
    )
    fitted = learner().fit(samples(96), epochs=3, batch_size=16, callbacks=[at], show=False)
    assert said == [1, 2, "epoch", "interrupt", "end"]
    assert fitted.stopped == "Interrupted in epoch 1, batch 2"
