"""Callbacks that the tests of several packages share."""

from stoker import callbacks


class Crash(Exception):
    """What `crash_at` raises."""


def crash_at(*, update=None, epoch=None, error=Crash):
    """A callback that raises after an update, or at the end of an epoch: what is recorded by then is not saved yet."""

    def crash(ctx):
        if ctx.update == update if epoch is None else ctx.epoch == epoch:
            raise error

    return callbacks.on(update=crash) if epoch is None else callbacks.on(epoch_end=crash)
