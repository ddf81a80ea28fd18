"""Kills trainings and resumes them; exits with 1 if one of them ends with other bits."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torture import programs
from torture.processes import Attempt, End, SeveralRanks, SingleProcess, start_server
from torture.runs import counter_path, inspect_run, leftovers, updates_done

Start = Callable[[str, Path], Attempt]  # starts a kind of training in a directory

_DURING_START = 0.2  # share of kills at any moment after the start of the process, before training begins
_LARGEST_STRETCH = 0.4  # share of a training's updates, at most, until the next kill


class Reference(NamedTuple):
    """An uninterrupted training."""

    kind: str
    digest: str  # the line that it prints
    start: float  # seconds until its fit begins
    seconds: float  # from then until its last update
    updates: int


@dataclass
class Result:
    """What happened to one training."""

    kind: str
    kills: int = 0
    terminated: int = 0  # SIGTERMs after which the fit saved and ended
    resumes: int = 0
    in_a_save: int = 0
    leftovers: int = 0
    lost: list[int] = field(default_factory=list)  # updates, for each kill
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        end = "the same bits" if not self.faults else "FAULTS"
        return f"{self.kind}: killed {self.kills} times, {sum(self.lost)} updates repeated, {end}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains each kind in turn, from its start to its end, until there were enough kills."""
    options = _parse(arguments)
    kinds = _kinds(options)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    chance, began = random.Random(seed), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    start_server(folder)
    start: Start = SingleProcess if options.ranks == 1 else partial(SeveralRanks, ranks=options.ranks)
    references: dict[str, Reference] = {}
    results: list[Result] = []
    while not any(each.faults for each in results):
        remaining = options.kills - sum(each.kills for each in results)
        if remaining <= 0 or (results and time.monotonic() - began > options.seconds):
            break
        kind = kinds[len(results) % len(kinds)]
        if kind not in references:
            references[kind] = train_uninterrupted(start, kind, folder / f"{kind}-reference")
        run = folder / f"{kind}-{len(results)}"
        results.append(train_with_kills(start, references[kind], run, chance, most=remaining))
        print(results[-1], flush=True)
    _print_table(results, seed, time.monotonic() - began)
    faults = [fault for each in results for fault in each.faults]
    if faults:
        print(*faults, sep="\n")
        command = f"--ranks {options.ranks} --seed {seed}" + (f" --kind {options.kind}" if options.kind else "")
        print(f"repeat it with: python -m torture {command}; the runs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def train_uninterrupted(start: Start, kind: str, folder: Path) -> Reference:
    began = time.time()
    attempt = start(kind, folder)
    _wait_for_fit(attempt, folder)
    ready = time.time()
    if attempt.wait() != "finished":
        raise SystemExit(f"{kind} fails without a kill:\n{attempt.printed()}")
    seconds = counter_path(folder).stat().st_mtime - ready
    return Reference(kind, _digest_line(attempt), ready - began, seconds, updates_done(folder) or 1)


def train_with_kills(start: Start, reference: Reference, folder: Path, chance: random.Random, *, most: int) -> Result:
    """Trains to the end, with at most `most` kills."""
    result, end = Result(reference.kind), None
    while end != "finished" and not result.faults:
        counter_path(folder).unlink(missing_ok=True)
        attempt = start(reference.kind, folder)
        if result.kills < most:
            _sleep_until_kill(chance, reference, attempt, folder)
            attempt.strike(chance)
        try:
            end = attempt.wait()
        except TimeoutError as error:
            result.faults.append(f"{folder}, after {result.kills} kills: {error}")
            break
        if end == "finished":
            _check_end(result, folder, _digest_line(attempt), reference.digest)
        elif end == "failed":
            result.faults.append(f"{folder} could not resume, after {result.kills} kills:\n{attempt.printed()}")
        else:
            _check_kill(result, folder, end)
    return result


def _digest_line(attempt: Attempt) -> str:
    return next((line for line in attempt.printed().splitlines() if line.startswith("digest")), "no digest")


def _check_end(result: Result, folder: Path, digest: str, expected: str) -> None:
    if digest != expected:
        result.faults.append(f"{folder} ended with other bits: {digest}, expected {expected}")
    found = leftovers(folder)
    result.leftovers += len(found)
    if updates_done(folder) is not None:  # else the run had already finished, and this attempt only read it
        result.faults += [f"{name} is left in {folder}" for name in found]


def _check_kill(result: Result, folder: Path, end: End) -> None:
    found = inspect_run(folder)
    if end == "terminated":
        result.terminated += 1
        if found.lost > 1:  # one may be that of an unfinished accumulation window, which is resumed
            found.faults.append(f"{found.lost} updates are lost after a SIGTERM")
    else:
        result.kills += 1
        result.lost.append(found.lost)
        result.in_a_save += found.in_a_save
    result.resumes += found.resumes
    result.faults += [f"{folder}, after {result.kills} kills: {fault}" for fault in found.faults]


def _sleep_until_kill(chance: random.Random, reference: Reference, attempt: Attempt, folder: Path) -> None:
    """Sleeps until a random moment, chosen in units of the reference, so that a slow machine changes nothing."""
    if chance.random() < _DURING_START:
        time.sleep(chance.uniform(0, reference.start))
        return
    _wait_for_fit(attempt, folder)
    goal = (updates_done(folder) or 0) + chance.randint(0, int(_LARGEST_STRETCH * reference.updates))
    while (updates_done(folder) or 0) < goal and not attempt.is_over():
        time.sleep(0.001)
    time.sleep(chance.uniform(0, reference.seconds / reference.updates))


def _wait_for_fit(attempt: Attempt, folder: Path) -> None:
    while updates_done(folder) is None and not attempt.is_over():
        time.sleep(0.002)


def _kinds(options: argparse.Namespace) -> list[str]:
    known = list(programs.PROGRAMS if options.ranks == 1 else programs.RANKED_PROGRAMS)
    kinds = [kind for kind in known if options.kind in (None, kind)]
    if not kinds:
        raise SystemExit(f"--kind {options.kind}: there are {', '.join(known)}")
    return kinds


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torture", description=sys.modules[__package__ or "torture"].__doc__
    )
    parser.add_argument("--kills", type=int, default=300, help="kills in total (default: 300)")
    parser.add_argument("--seconds", type=float, default=300, help="start no new run after this time (default: 300)")
    parser.add_argument("--ranks", type=int, default=1, help="processes of a training; several run under torchrun")
    parser.add_argument("--kind", help="the training to kill (default: each in turn)")
    parser.add_argument("--seed", type=int, help="of the moments of the kills (default: random)")
    return parser.parse_args(arguments)


def _print_table(results: Sequence[Result], seed: int, seconds: float) -> None:
    lost = [updates for each in results for updates in each.lost]
    kills = sum(each.kills for each in results)
    rows = {
        "seed": seed,
        "runs": len(results),
        "kills": kills,
        "during a save": sum(each.in_a_save for each in results),
        "SIGTERMs": sum(each.terminated for each in results),
        "resumes": sum(each.resumes for each in results),
        "lost updates": f"{sum(lost) / max(1, len(lost)):.2f} for each kill, {max(lost, default=0)} at most",
        "leftovers": sum(each.leftovers for each in results),
        "mismatches": sum(bool(each.faults) for each in results),
        "seconds": f"{seconds:.0f}, {seconds / max(1, kills):.2f} for each kill",
    }
    for name, value in rows.items():
        print(f"{name:<20}{value}")


if __name__ == "__main__":
    sys.exit(main())
