"""Building a batch out of single samples, in the same way in the main process and in every worker."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from stoker.data._batch import PaddingBatch, call_with_parts
from stoker.data._collate import Stack, collate
from stoker.data._rng import BATCH, SAMPLE, preserve_generators, random_key, seed_generators
from stoker.data._source import Source


class Task(NamedTuple):
    """One batch to build: its position, and its samples by number; of a stream also the samples themselves."""

    epoch: int
    batch: int
    numbers: list[int]
    samples: list[Any] | None = None
    rank: int = 0  # the rank that gets it
    is_padding: bool = False


@dataclass(frozen=True)
class Recipe:
    """How a task becomes a batch: a pure function of (seed, epoch, sample numbers)."""

    source: Source[Any]  # empty for a stream, whose tasks hold their samples
    transform: Callable[..., Any] | None
    batcher: Callable[[list[Any]], Any] | None
    seed: int

    def build(self, task: Task, stack: Stack = torch.stack) -> Any:
        """Reads, transforms and collates the samples; leaves torch's, numpy's and Python's generators seeded."""
        samples = [self._load(task, place) for place in range(len(task.numbers))]
        # Rank 0 draws what a single process draws; every other rank has random numbers of its own.
        rank = (task.rank,) if task.rank else ()
        seed_generators(random_key(BATCH, self.seed, task.epoch, task.batch, *rank))
        try:
            batch = collate(samples, stack=stack) if self.batcher is None else self.batcher(samples)
        except Exception as error:
            listed = ", ".join(map(str, task.numbers[:8])) + (", …" if len(task.numbers) > 8 else "")
            error.add_note(f"while collating samples {listed} to batch {task.batch} (epoch {task.epoch})")
            raise
        return PaddingBatch(batch) if task.is_padding else batch

    def _load(self, task: Task, place: int) -> Any:
        number = task.numbers[place]
        seed_generators(random_key(SAMPLE, self.seed, task.epoch, number))
        try:
            sample = self.source[number] if task.samples is None else task.samples[place]
            return sample if self.transform is None else call_with_parts(self.transform, sample)
        except Exception as error:
            error.add_note(f"while loading sample {number} (epoch {task.epoch}, batch {task.batch})")
            raise


@dataclass(frozen=True)
class InProcess:
    """Builds batches in this process when they are requested; `Workers` has the same methods."""

    recipe: Recipe

    def build(self, tasks: Iterable[Task], *, start: tuple[int, int] | None = None) -> Iterator[Any]:
        """Yields the batches of the tasks; the global random state of this process does not change."""
        for task in tasks:
            with preserve_generators():
                batch = self.recipe.build(task)
            yield batch

    def prepare(self, tasks: Iterable[Task], *, start: tuple[int, int]) -> None:
        """Does nothing: building in this process would only delay training."""

    def close(self) -> None:
        """Does nothing: there are no processes to stop."""
