"""Training scripts for tests of signals; most send signals to themselves, so that they arrive at a known place."""

import functools
import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess

import torch
from torch import nn

import stoker
from stoker import callbacks, data, optim
from stoker.checkpoint import _disk
from torture.runs import checkpoints_of, digest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
FRESH = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
LONG = 600  # seconds: longer than the timeout of a test


class Net(nn.Module):
    """Has dropout and running statistics; calls `in_forward` in each training forward."""

    def __init__(self, in_forward=None):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
        self.in_forward = in_forward

    def forward(self, x):
        if self.in_forward is not None and self.training:
            self.in_forward()
        return self.body(x)


def noisy(x, label):
    return x + 0.1 * torch.randn(6), label


def send(*signals):
    for number in signals:
        os.kill(os.getpid(), number)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


def unchanged(x, label):
    return x, label


def fit(run, *, hooks=(), transform=noisy, valid_transform=unchanged, model=Net, **settings):
    """3 epochs of 8 batches, two batches to an update, without regular checkpoints."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(64, 6, generator=generator)
    y = torch.randint(0, 4, (64,), generator=generator)
    workers = settings.pop("workers", 0)
    learner = stoker.Learner(model, loss=nn.CrossEntropyLoss(), optimizer=optim.AdamW(), lr=1e-2, accumulate=2, seed=1)
    return learner.fit(
        data.Loader((x, y), batch_size=8, shuffle=7, transform=transform, workers=workers),
        valid=data.Loader((x[:32], y[:32]), batch_size=16, transform=valid_transform, workers=workers and 1),
        run=run,
        callbacks=list(hooks),
        show=False,
        **{"epochs": 3, "resume": True, "checkpoint": stoker.Checkpoint(every=1000), **settings},
    )


def script(run, **settings):
    """A fit; prints how it ended, also if it exits."""
    torch.set_num_threads(1)
    ends = []
    hooks = [*settings.pop("hooks", ())]
    ended = callbacks.on(interrupt=lambda ctx: ends.append("interrupt"), fit_end=lambda ctx: ends.append("fit end"))
    before = handlers()
    try:
        fitted = fit(run, hooks=[*hooks, ended], **settings)
        print("stopped:", fitted.stopped)
        print("digest:", digest(fitted, run))
    finally:
        print("ends:", ", ".join(ends))
        print("handlers as before:", handlers() == before)


def at(hook, epoch, batch, signals):
    """A callback that sends the signals in a hook at a position, once."""

    def act(ctx):
        if (ctx.epoch, ctx.batch_number) == (epoch, batch) and not sent:
            sent.append(True)
            send(*signals)

    sent = []
    return callbacks.on(**{hook: act})


def signalled(run, hook, epoch, batch, signals):
    script(run, hooks=[at(hook, epoch, batch, signals)])


def validate_inside(run, place=None):
    hooks = [at(*place, [signal.SIGTERM])] if place else []
    script(run, hooks=hooks, validate_every=3)


def signal_in_all_hooks(run):
    """Sends SIGTERM in every hook from the second epoch on, to the end."""
    hooks = [name.removeprefix("on_") for name in callbacks.HOOK_NAMES if name != "on_exception"]
    act = dict.fromkeys(hooks, lambda ctx: send(signal.SIGTERM) if ctx.epoch == 2 else None)
    script(run, hooks=[callbacks.on(**act)])


def train_slowly(run):
    script(run, hooks=[callbacks.on(train_batch_end=lambda ctx: time.sleep(0.02))])


def signal_in_forward(run):
    """Stands for any long call, such as a compilation."""
    calls = []

    def in_forward():
        calls.append(1)
        if len(calls) == 4:
            send(signal.SIGTERM)
            time.sleep(0.2)  # seconds; the call continues after the signal

    script(run, model=lambda: Net(in_forward))


def signal_in_save(run, background):
    """Sends SIGTERM in the first write of the second checkpoint, which then takes some time."""
    write, sent = _disk.write, []

    def slow(file, content):
        if len(checkpoints_of(run).saved()) == 1 and not sent:
            sent.append(1)
            send(signal.SIGTERM)
            time.sleep(0.1)
        return write(file, content)

    _disk.write = slow
    script(run, checkpoint=stoker.Checkpoint(every=3, background=background))


def sleepy(folder, usual, x, label):
    """The transform of a worker process that sends SIGTERM to the main process and then sleeps."""
    flag = folder / "asleep"
    if int(label) == 3 and not flag.exists():
        flag.write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(LONG)
    return usual(x, label)


def wait_for_worker(run, argument):
    usual = {"transform": noisy, "valid_transform": unchanged}
    script(run, workers=2, **{argument: functools.partial(sleepy, run.parent, usual[argument])})


def signal_at_worker_start(run):
    """Sends SIGTERM when the first of two worker processes has started."""
    start, started = BaseProcess.start, []

    def start_and_signal(self):
        start(self)
        if not started:
            started.append(self)
            send(signal.SIGTERM)

    BaseProcess.start = start_and_signal
    script(run, workers=2)


def signal_group_with_workers(run, signals=()):
    def act(ctx):
        if signals and (ctx.epoch, ctx.batch_number) == (2, 3):
            for number in signals:
                os.killpg(0, number)

    script(run, hooks=[callbacks.on(train_batch_begin=act)], workers=2)


def with_own_handlers(run):
    received = []
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: received.append(signal.Signals(number).name))
    script(run, hooks=[at("train_batch_begin", 2, 3, SIGNALS)])
    print("received:", *received)


def ignore_signals(run):
    """As `nohup` or a background job of a shell starts a process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    script(run, hooks=[at("train_batch_begin", 2, 3, SIGNALS)])


def fit_in_thread(run):
    seen = []
    hooks = [callbacks.on(train_begin=lambda ctx: seen.append(handlers()))]
    thread = threading.Thread(target=script, args=(run,), kwargs={"hooks": hooks})
    thread.start()
    thread.join()
    print("installed:", seen != [FRESH] * 3)


def near_deadline(run):
    """A deadline that is nearer than a save takes; the job ends later."""
    os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 10_000)
    script(run, checkpoint=stoker.Checkpoint(every=1000, deadline=time.time() + 5))


def near_job_end(run):
    os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 5)
    script(run)


def limit_minutes(run):
    script(run, minutes=1e-9)


def distant_job_end(run):
    os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 10_000)
    script(run)


def train_and_wait(run):
    """Creates a file when it trains, and then waits."""

    def wait(ctx):
        if (ctx.epoch, ctx.batch_number) == (2, 3):
            ctx.save("before a long wait")
        if (ctx.epoch, ctx.batch_number) == (2, 4):
            (run.parent / "trains").touch()
            time.sleep(LONG)

    script(run, hooks=[callbacks.on(train_batch_begin=wait)], workers=2)
