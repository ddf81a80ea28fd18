"""Kills trainings, prints what that did to them, and ends with 1 where one of them ended in other bits."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torture import _programs, _ranked
from torture._children import warm_up
from torture._starts import Ranked, Single
from torture._story import Starter, Story, Whole, killed, whole


def main(given: Sequence[str] | None = None) -> int:
    """Until there were enough kills: each kind of training in turn, from its start to its end."""
    asked = _asked(given)
    kinds = _kinds(asked)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    chance, began = random.Random(seed), time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="torture-"))
    warm_up(home)
    starter: Starter = Single if asked.ranks == 1 else partial(Ranked, ranks=asked.ranks)
    peaceful: dict[str, Whole] = {}
    stories: list[Story] = []
    while (left := asked.kills - sum(story.kills for story in stories)) > 0 and not any(
        each.faults for each in stories
    ):
        if stories and time.monotonic() - began > asked.seconds:
            break
        kind = kinds[len(stories) % len(kinds)]
        if kind not in peaceful:
            peaceful[kind] = whole(starter, kind, home / f"{kind}-whole")
        story = killed(starter, peaceful[kind], home / f"{kind}-{len(stories)}", chance, most=left)
        stories.append(story)
        print(story, flush=True)
    _print_table(stories, seed, time.monotonic() - began)
    faults = [fault for story in stories for fault in story.faults]
    if faults:
        print(*faults, sep="\n")
        again = f"--ranks {asked.ranks} --seed {seed}" + (f" --kind {asked.kind}" if asked.kind else "")
        print(f"repeat it with: python -m torture {again}; the runs are in {home}")
        return 1
    shutil.rmtree(home)
    return 0


def _kinds(asked: argparse.Namespace) -> list[str]:
    known = list(_programs.KINDS if asked.ranks == 1 else _ranked.KINDS)
    kinds = [kind for kind in known if asked.kind in (None, kind)]
    if not kinds:
        raise SystemExit(f"--kind {asked.kind}: there are {', '.join(known)}")
    return kinds


def _asked(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torture", description=sys.modules[__package__ or "torture"].__doc__
    )
    parser.add_argument("--kills", type=int, default=300, help="how many, in all (300)")
    parser.add_argument("--seconds", type=float, default=300, help="no run is begun after so many (300)")
    parser.add_argument("--ranks", type=int, default=1, help="processes of a training; more than one under torchrun")
    parser.add_argument("--kind", help="of training; without one each in turn")
    parser.add_argument("--seed", type=int, help="of the moments; without one they are new each time")
    return parser.parse_args(given)


def _print_table(stories: Sequence[Story], seed: int, seconds: float) -> None:
    lost = [updates for story in stories for updates in story.lost]
    kills = sum(story.kills for story in stories)
    rows = {
        "seed": seed,
        "runs": len(stories),
        "kills": kills,
        "of them in a save": sum(story.in_a_save for story in stories),
        "SIGTERMs": sum(story.terminated for story in stories),
        "resumes": sum(story.resumes for story in stories),
        "lost updates": f"{sum(lost) / max(1, len(lost)):.2f} for each kill, {max(lost, default=0)} at most",
        "litter": sum(story.litter for story in stories),
        "mismatches": sum(bool(story.faults) for story in stories),
        "seconds": f"{seconds:.0f}, {seconds / max(1, kills):.2f} for each kill",
    }
    for name, value in rows.items():
        print(f"{name:<20}{value}")


if __name__ == "__main__":
    sys.exit(main())
