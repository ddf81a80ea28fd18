"""One training and its ends before its end: started again after each, until it is over."""

import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torture._children import Child
from torture._look import litter, look
from torture._programs import counted, counter_of, train

_TERMINATED = 143  # the exit code of a fit that has obeyed a SIGTERM
_AT_START = 0.2  # of the kills: at any moment from the fork on, before there is a training
_POLITE = 0.15  # of the others: a SIGTERM, after which nothing may be lost
_SHARE = 0.4  # of the time that a training takes in peace, at most, until the next kill


class Whole(NamedTuple):
    """How a kind of training goes when nobody kills it."""

    kind: str
    end: str  # what it prints
    start: float  # seconds from the fork until its fit begins
    seconds: float  # that the fit takes then


@dataclass
class Story:
    """What became of one training."""

    kind: str
    kills: int = 0
    terminated: int = 0  # SIGTERMs that were obeyed
    resumes: int = 0
    in_a_save: int = 0
    litter: int = 0
    lost: list[int] = field(default_factory=list)  # updates, for each kill
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        end = "the same bits" if not self.faults else "NOT AS IT SHOULD BE"
        return f"{self.kind}: killed {self.kills} times, {sum(self.lost)} updates done again, {end}"


def whole(kind: str, folder: Path) -> Whole:
    """Trains in peace."""
    began = time.monotonic()
    child = Child(train, kind, folder, prints=folder.with_suffix(".txt"))
    _await_fit(child, folder)
    ready = time.monotonic()
    if child.wait() != 0:
        raise SystemExit(f"{kind} fails without a kill:\n{child.printed()}")
    return Whole(kind, child.printed(), ready - began, time.monotonic() - ready)


def killed(peaceful: Whole, folder: Path, chance: random.Random, *, most: int) -> Story:
    """Trains until it is over, with at most so many kills."""
    story, code = Story(peaceful.kind), -1
    while code != 0 and not story.faults:
        counter_of(folder).unlink(missing_ok=True)
        child = Child(train, peaceful.kind, folder, prints=folder.with_suffix(".txt"))
        if story.kills < most:
            _sleep_until(chance, peaceful, child, folder)
            child.send(signal.SIGTERM if chance.random() < _POLITE else signal.SIGKILL)
        try:
            code = child.wait()
        except TimeoutError as error:
            story.faults.append(f"{folder}, after {story.kills} kills: {error}")
            break
        if code == 0:
            _note_end(story, folder, child.printed(), peaceful.end)
        elif code in (-signal.SIGKILL, -signal.SIGTERM, _TERMINATED):
            _note_kill(story, folder, code)
        else:
            story.faults.append(f"{folder} could not go on, after {story.kills} kills:\n{child.printed()}")
    return story


def _note_end(story: Story, folder: Path, printed: str, expected: str) -> None:
    if printed != expected:
        story.faults.append(f"{folder} ended in other bits: {printed}, expected {expected}")
    left = litter(folder)
    story.litter += len(left)
    if counted(folder) is not None:  # else the run was over already, and the start only read it
        story.faults += [f"{name} is left in {folder}" for name in left]


def _note_kill(story: Story, folder: Path, code: int) -> None:
    left = look(folder)
    if code == _TERMINATED:
        story.terminated += 1
        if left.lost > 1:  # one is that of a window which was stopped in, and is gone on with
            left.faults.append(f"{left.lost} updates are lost after a SIGTERM")
    else:
        story.kills += 1
        story.lost.append(left.lost)
        story.in_a_save += left.in_a_save
    story.resumes += left.resumes
    story.faults += [f"{folder}, after {story.kills} kills: {fault}" for fault in left.faults]


def _sleep_until(chance: random.Random, peaceful: Whole, child: Child, folder: Path) -> None:
    """Until a moment for a kill; measured by what it took in peace, so that a slow machine is no other torture."""
    if chance.random() < _AT_START:
        time.sleep(chance.uniform(0, peaceful.start))
        return
    _await_fit(child, folder)
    time.sleep(chance.uniform(0, _SHARE * peaceful.seconds))


def _await_fit(child: Child, folder: Path) -> None:
    while counted(folder) is None and not child.is_over():
        time.sleep(0.002)
