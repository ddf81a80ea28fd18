"""Fits that consist of events only, and the terminals they are shown on."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pyte

from stoker.record import Event

ROOT = Path(__file__).parents[3]
METRICS = {"accuracy": {"direction": "max", "unit": ""}, "gpu_memory": {"direction": None, "unit": "GB"}}


def begin(record, *, at=1000.0, **extra):
    facts = {"model": "Net", "parameters": 1234, "device": "cpu", "epochs": 4, "batches": 10, "monitor": "valid/loss"}
    record.append(Event("begin", at, extra={**facts, "metrics": METRICS, **extra}))


def progress(record, epoch, batch, *, at, phase="train", batches=10, values=None):
    values = {f"{phase}/loss": 1.0} if values is None else values
    extra = {"phase": phase, "batches": batches, "samples_per_second": 12345.0}
    update = 10 * (epoch - 1) + batch
    record.append(Event("progress", at, epoch=epoch, batch=batch, update=update, values=values, extra=extra))


def epoch(record, number, *, at=None, train=None, valid=None, **others):
    """The events at the end of an epoch; `train` and `valid` are losses, or values by name."""
    train = train if isinstance(train, dict) else {"loss": 1 / number if train is None else train}
    valid = valid if isinstance(valid, dict) else {} if valid is None else {"loss": valid}
    place = {"epoch": number, "batch": 10, "update": 10 * number}
    at = 1000.0 + 2 * number if at is None else at
    numbers = {f"train/{name}": value for name, value in train.items()}
    record.append(Event("train", at, values=numbers, **place))
    if valid:
        validated = {f"valid/{name}": value for name, value in valid.items()}
        record.append(Event("valid", at, values=validated, extra={"name": "valid"}, **place))
        numbers = {**numbers, **validated}
    record.append(Event("epoch", at, values={**numbers, **others}, extra={"seconds": 2.0}, **place))


def end(record, epochs, *, best=None, interrupted=False):
    best = best and {"epoch": best[0], "value": best[1], "monitor": "valid/loss"}
    extra = {"epochs": epochs, "updates": 10 * epochs, "seconds": 2.0 * epochs, "best": best}
    extra["interrupted"] = interrupted
    record.append(Event("end", 1000.0 + 2 * epochs, epoch=epochs, update=10 * epochs, extra=extra))


def cut_short(record):
    """A fit that was killed after its third epoch; its last checkpoint is from the middle of that epoch."""
    begin(record)
    epoch(record, 1, valid=0.5)
    epoch(record, 2, valid=0.25)
    progress(record, 3, 5, at=1005.0)
    kept = len(record.events)
    epoch(record, 3, valid=0.125, lr=0.1)
    progress(record, 4, 5, at=1007.0)
    return kept


def resume(record, kept, *, at=5000.0, checkpoint="00000025"):
    place = {"epoch": 3, "batch": 5, "update": 25} if checkpoint else {}
    record.rewind(kept, Event("resume", at, **place, extra={"checkpoint": checkpoint, "batches": 10}))


def screen_of(text, *, columns=80, lines=24):
    """A terminal that has received this text."""
    screen = pyte.HistoryScreen(columns, lines, history=1000)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    return screen


def visible(screen):
    """Every line on the screen and in its scrollback, without empty ones at the end."""
    scrolled = ["".join(line[x].data for x in range(screen.columns)) for line in screen.history.top]
    return "\n".join(line.rstrip() for line in [*scrolled, *screen.display]).rstrip("\n").split("\n")


class Terminal:
    """A program on a real pseudo-terminal; it waits for the test in `pause`."""

    PREAMBLE = """
        import sys, os, logging
        sys.modules["torch"] = None  # the console must not import it
        from stoker.record import Event, Record
        from stoker.view.console import console
        from tests.view.console.scenes import begin, cut_short, end, epoch, progress, resume
        record = Record()
        listener = console(record, interval=0)  # every event draws
        record.subscribe(listener)
        def pause():  # everything so far is on the screen, and the test looks at it
            print("\\x1b]0;here\\x07", end="", file=sys.__stdout__, flush=True)
            os.read(answers, 1)
        answers = int(sys.argv[1])
    """

    def __init__(self, program, *, columns=80, lines=24, **environment):
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self.feed = pyte.ByteStream(self.screen)
        self.raw = b""
        self.master, slave = pty.openpty()
        self.resize(columns, lines)
        answers, self.answers = os.pipe()
        base = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        preamble = textwrap.dedent(self.PREAMBLE)
        self.process = subprocess.Popen(
            [sys.executable, "-c", preamble + textwrap.dedent(program), str(answers)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=[answers],
            cwd=ROOT,
            env={**base, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment},
            preexec_fn=_own_terminal,
        )
        os.close(slave)
        os.close(answers)

    def resize(self, columns, lines):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def until_pause(self):
        """Reads until the program pauses, and returns the visible lines."""
        seen = self.raw.count(b"\x1b]0;here")
        while self.raw.count(b"\x1b]0;here") == seen:
            if not self._read():
                raise AssertionError("the program ended:\n" + "\n".join(visible(self.screen)))
        return visible(self.screen)

    def resume_program(self):
        os.write(self.answers, b".")

    def until_end(self):
        """Reads to the end, and returns the visible lines and the exit code."""
        while self._read():
            pass
        return visible(self.screen), self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.answers)
        os.close(self.master)
        self.process.kill()
        self.process.wait()

    def _read(self):
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            return False
        self.raw += data
        self.feed.feed(data)
        return bool(data)


def _own_terminal():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C then comes from the terminal
