"""Scripts that train, and that signals arrive in; most send them to themselves, so that they arrive exactly there."""

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
LONG = 600  # seconds; a test that waits for this has failed long before


class Net(nn.Module):
    """With dropout and running statistics; `interrupted` is called in the forward of one batch."""

    def __init__(self, interrupted=None):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
        self.interrupted = interrupted

    def forward(self, x):
        if self.interrupted is not None and self.training:
            self.interrupted()
        return self.body(x)


def noisy(x, label):
    return x + 0.1 * torch.randn(6), label


def send(*signals):
    for number in signals:
        os.kill(os.getpid(), number)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


def plain(x, label):
    return x, label


def fit(run, *, hooks=(), transform=noisy, judged=plain, model=Net, **settings):
    """3 epochs of 8 batches, of which two make an update, and no checkpoint unless somebody asks for one."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(64, 6, generator=generator)
    y = torch.randint(0, 4, (64,), generator=generator)
    workers = settings.pop("workers", 0)
    made = stoker.Learner(model, loss=nn.CrossEntropyLoss(), optimizer=optim.AdamW(), lr=1e-2, accumulate=2, seed=1)
    return made.fit(
        data.Loader((x, y), batch_size=8, shuffle=7, transform=transform, workers=workers),
        valid=data.Loader((x[:32], y[:32]), batch_size=16, transform=judged, workers=workers and 1),
        run=run,
        callbacks=list(hooks),
        show=False,
        **{"epochs": 3, "resume": True, "checkpoint": stoker.Checkpoint(every=1000), **settings},
    )


def script(run, **settings):
    """What a user starts again and again; it says how it ended, also where the fit leaves it by an exit."""
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
    """A callback that sends the signals at a milestone, the first time that the training stands there."""

    def act(ctx):
        if (ctx.epoch, ctx.batch_number) == (epoch, batch) and not sent:
            sent.append(True)
            send(*signals)

    sent = []
    return callbacks.on(**{hook: act})


def signalled(run, hook, epoch, batch, signals):
    script(run, hooks=[at(hook, epoch, batch, signals)])


def in_between(run, place=None):
    hooks = [at(*place, [signal.SIGTERM])] if place else []
    script(run, hooks=hooks, validate_every=3)


def at_all_of_them(run):
    """From the second epoch on at every milestone, the last ones too."""
    milestones = [name.removeprefix("on_") for name in callbacks.HOOK_NAMES if name != "on_exception"]
    act = dict.fromkeys(milestones, lambda ctx: send(signal.SIGTERM) if ctx.epoch == 2 else None)
    script(run, hooks=[callbacks.on(**act)])


def slowly(run):
    script(run, hooks=[callbacks.on(train_batch_end=lambda ctx: time.sleep(0.02))])


def in_a_forward(run):
    """Stands for a compilation, which is no less deep in somebody else's code."""
    calls = []

    def interrupted():
        calls.append(1)
        if len(calls) == 4:
            send(signal.SIGTERM)
            time.sleep(0.2)  # goes on where it was, as any call of the operating system does

    script(run, model=lambda: Net(interrupted))


def in_a_save(run, background):
    """In the first write of the second checkpoint, which then takes a while."""
    write, creations = _disk.write, []

    def slow(file, given):
        if len(checkpoints_of(run).saved()) == 1 and not creations:
            creations.append(1)
            send(signal.SIGTERM)
            time.sleep(0.1)
        return write(file, given)

    _disk.write = slow
    script(run, checkpoint=stoker.Checkpoint(every=3, background=background))


def sleepy(folder, usual, x, label):
    """The transform of a worker process that tells the main one to end, and then has a rest."""
    mark = folder / "asleep"
    if int(label) == 3 and not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(LONG)
    return usual(x, label)


def while_waiting(run, for_what):
    usual = {"transform": noisy, "judged": plain}
    script(run, workers=2, **{for_what: functools.partial(sleepy, run.parent, usual[for_what])})


def starting_workers(run):
    """When the first of two processes is there, and the second one is not."""
    start, started = BaseProcess.start, []

    def interrupted(self):
        start(self)
        if not started:
            started.append(self)
            send(signal.SIGTERM)

    BaseProcess.start = interrupted
    script(run, workers=2)


def with_workers(run, signals=()):
    def act(ctx):
        if signals and (ctx.epoch, ctx.batch_number) == (2, 3):
            for number in signals:
                os.killpg(0, number)

    script(run, hooks=[callbacks.on(train_batch_begin=act)], workers=2)


def with_handlers_of_its_own(run):
    heard = []
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: heard.append(signal.Signals(number).name))
    script(run, hooks=[at("train_batch_begin", 2, 3, SIGNALS)])
    print("heard:", *heard)


def ignoring(run):
    """As `nohup`, or a shell's background job, starts a process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    script(run, hooks=[at("train_batch_begin", 2, 3, SIGNALS)])


def in_a_thread(run):
    seen = []
    hooks = [callbacks.on(train_begin=lambda ctx: seen.append(handlers()))]
    thread = threading.Thread(target=script, args=(run,), kwargs={"hooks": hooks})
    thread.start()
    thread.join()
    print("touched:", seen != [FRESH] * 3)


def past(run):
    """A deadline that is less far away than an orderly end takes; the cluster's own would come later."""
    os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 10_000)
    script(run, checkpoint=stoker.Checkpoint(every=1000, deadline=time.time() + 5))


def ending_job(run):
    os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 5)
    script(run)


def few_minutes(run):
    script(run, minutes=1e-9)


def far_away(run):
    os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 10_000)
    script(run)


def lingering(run):
    """Says that it trains, and goes on when it is told."""

    def linger(ctx):
        if (ctx.epoch, ctx.batch_number) == (2, 3):
            ctx.save("before a long wait")
        if (ctx.epoch, ctx.batch_number) == (2, 4):
            (run.parent / "trains").touch()
            time.sleep(LONG)

    script(run, hooks=[callbacks.on(train_batch_begin=linger)], workers=2)
