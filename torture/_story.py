"""One training and its ends before its end: started again after each, until it is over."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torture._look import litter, look
from torture._programs import counted, counter_of
from torture._starts import End, Start

Starter = Callable[[str, Path], Start]  # of a kind of training, in a folder

_AT_START = 0.2  # of the kills: at any moment from the start on, before there is a training
_SHARE = 0.4  # of a training's updates, at most, until the next kill


class Whole(NamedTuple):
    """How a kind of training goes when nobody kills it."""

    kind: str
    end: str  # the digest that it prints
    start: float  # seconds until its fit begins
    seconds: float  # from then until its last update
    updates: int


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


def whole(starter: Starter, kind: str, folder: Path) -> Whole:
    """Trains in peace."""
    began = time.time()
    start = starter(kind, folder)
    _await_fit(start, folder)
    ready = time.time()
    if start.wait() != "over":
        raise SystemExit(f"{kind} fails without a kill:\n{start.printed()}")
    return Whole(kind, _end_of(start), ready - began, counter_of(folder).stat().st_mtime - ready, counted(folder) or 1)


def killed(starter: Starter, peaceful: Whole, folder: Path, chance: random.Random, *, most: int) -> Story:
    """Trains until it is over, with at most so many kills."""
    story, end = Story(peaceful.kind), None
    while end != "over" and not story.faults:
        counter_of(folder).unlink(missing_ok=True)
        start = starter(peaceful.kind, folder)
        if story.kills < most:
            _sleep_until(chance, peaceful, start, folder)
            start.strike(chance)
        try:
            end = start.wait()
        except TimeoutError as error:
            story.faults.append(f"{folder}, after {story.kills} kills: {error}")
            break
        if end == "over":
            _note_end(story, folder, _end_of(start), peaceful.end)
        elif end == "failed":
            story.faults.append(f"{folder} could not go on, after {story.kills} kills:\n{start.printed()}")
        else:
            _note_kill(story, folder, end)
    return story


def _end_of(start: Start) -> str:
    return next((line for line in start.printed().splitlines() if line.startswith("digest")), "no digest")


def _note_end(story: Story, folder: Path, end: str, expected: str) -> None:
    if end != expected:
        story.faults.append(f"{folder} ended in other bits: {end}, expected {expected}")
    left = litter(folder)
    story.litter += len(left)
    if counted(folder) is not None:  # else the run was over already, and the start only read it
        story.faults += [f"{name} is left in {folder}" for name in left]


def _note_kill(story: Story, folder: Path, end: End) -> None:
    left = look(folder)
    if end == "terminated":
        story.terminated += 1
        if left.lost > 1:  # one is that of a window which was stopped in, and is gone on with
            left.faults.append(f"{left.lost} updates are lost after a SIGTERM")
    else:
        story.kills += 1
        story.lost.append(left.lost)
        story.in_a_save += left.in_a_save
    story.resumes += left.resumes
    story.faults += [f"{folder}, after {story.kills} kills: {fault}" for fault in left.faults]


def _sleep_until(chance: random.Random, peaceful: Whole, start: Start, folder: Path) -> None:
    """Until a moment for a kill; measured by what is done in peace, so that a slow machine is no other torture."""
    if chance.random() < _AT_START:
        time.sleep(chance.uniform(0, peaceful.start))
        return
    _await_fit(start, folder)
    goal = (counted(folder) or 0) + chance.randint(0, int(_SHARE * peaceful.updates))
    while (counted(folder) or 0) < goal and not start.is_over():
        time.sleep(0.001)
    time.sleep(chance.uniform(0, peaceful.seconds / peaceful.updates))


def _await_fit(start: Start, folder: Path) -> None:
    while counted(folder) is None and not start.is_over():
        time.sleep(0.002)
