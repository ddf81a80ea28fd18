"""Presses Ctrl-C at random moments of fits in one process, as in a notebook; exits with 1 if something is left behind.

    python -m torture.interrupts --interrupts 2000

Each fit resumes the same run, so a background writer that is still running, a lock or a signal handler that was not
given back, or another grad mode shows in the next fit, and a lost value in the bits of the finished run.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

import stoker
from stoker import data, optim
from torture.runs import digest

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PRESSES = (1, 2, 2, 2, 3, 5)  # Ctrl-C's of one attempt
_LONGEST_PAUSE = 0.02  # seconds between two of them


@dataclass
class Report:
    """What happened."""

    interrupts: int = 0
    raised: int = 0  # attempts that ended with KeyboardInterrupt
    finished: int = 0  # runs
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = f"{self.interrupts} interrupts, {self.raised} fits raised, {self.finished} runs finished"
        return f"{lines}, {len(self.faults)} faults"


def _make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))


def fit(folder: Path) -> stoker.Fitted:
    """Two epochs with validation, dropout, an average, and a checkpoint in the background after every second update."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(96, 6, generator=generator)
    y = torch.randint(0, 4, (96,), generator=generator)
    learner = stoker.Learner(_make_model, loss=nn.CrossEntropyLoss(), optimizer=optim.AdamW(), lr=1e-2, ema=0.9, seed=1)
    return learner.fit(
        data.Loader((x, y), batch_size=8, shuffle=7),
        valid=data.Loader((x[:32], y[:32]), batch_size=16),
        epochs=2,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=2),
        show=False,
    )


class Presser:
    """Sends interrupts to the main thread from another one, until it is stopped."""

    def __init__(self, moments: Sequence[float]) -> None:
        self.sent = 0
        self._moments = moments  # seconds since the start
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._press, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No interrupt comes after this."""
        with self._lock:
            self._is_stopped = True

    def _press(self) -> None:
        started = time.monotonic()
        for moment in self._moments:
            time.sleep(max(0.0, started + moment - time.monotonic()))
            with self._lock:
                if self._is_stopped:
                    return
                self.sent += 1
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def interrupt_fits(count: int, seed: int, folder: Path) -> Report:
    """Fits and interrupts until there were `count` interrupts."""
    torch.set_num_threads(1)
    chance, report = random.Random(seed), Report()
    expected = digest(fit(folder / "reference"), folder / "reference")
    started = time.monotonic()
    fit(folder / "timed")
    seconds = time.monotonic() - started
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    run = folder / "0"
    while report.interrupts < count and len(report.faults) < 20:
        first = chance.uniform(0, 1.1 * seconds)
        moments = [first]
        for _ in range(chance.choice(_PRESSES) - 1):
            moments.append(moments[-1] + chance.uniform(0, _LONGEST_PAUSE))
        fitted, presser = None, None
        try:
            presser = Presser(moments)
            fitted = fit(run)
            presser.stop()
        except KeyboardInterrupt:
            if presser is not None:
                presser.stop()
            report.raised += 1
        except Exception as error:
            if presser is not None:
                presser.stop()
            report.faults.append(f"{type(error).__name__}: {error}")
        report.interrupts += 0 if presser is None else presser.sent
        report.faults += _find_leftovers(handlers)
        if fitted is not None and not fitted.stopped.startswith("Interrupted"):
            if digest(fitted, run) != expected:
                report.faults.append(f"{run} ended with other bits")
            report.finished += 1
            run = folder / str(report.finished)
    return report


def _find_leftovers(handlers: Sequence[object]) -> list[str]:
    """What a fit has not given back; restores it for the next one."""
    faults: list[str] = []
    writers = [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker-checkpoint")]
    if writers:
        faults.append("the writer of checkpoints is still running")
        time.sleep(0.5)
    if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        faults.append("gradients are off, or autocast or the compiling flag is on")
        torch.set_grad_enabled(True)
    if [signal.getsignal(number) for number in _SIGNALS] != handlers:
        faults.append("a signal handler was left behind")
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a report; returns 1 if there were faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interrupts", type=int, default=2000, metavar="N", help="stop after N (default: 2000)")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="for the random moments")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="interrupts-"))
    report = interrupt_fits(options.interrupts, seed, folder)
    shutil.rmtree(folder)
    print(f"seed {seed}: {report}")
    for fault in report.faults:
        print(f"  {fault}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
