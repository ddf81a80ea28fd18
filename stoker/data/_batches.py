"""Samples to a batch, where there is per-sample work: the same in the main process and in any worker."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stoker.data._collate import Stack, collate
from stoker.data._ghost import Ghost
from stoker.data._order import BATCH, SAMPLE, key, own_random_numbers, seed_everything
from stoker.data._source import Source, Stream
from stoker.data._views import applied
from stoker.errors import BadData, InvalidArgument


class Task(NamedTuple):
    """One batch to be made: its place, and its samples by their numbers, or themselves where a stream was read."""

    epoch: int
    batch: int
    numbers: list[int]
    samples: list[Any] | None = None
    rank: int = 0  # whose share of the batch it is
    ghost: bool = False


@dataclass(frozen=True)
class Recipe:
    """How a task becomes a batch: a pure function of (seed, epoch, sample numbers)."""

    source: Source[Any]  # empty for a stream, whose tasks bring their samples
    transform: Callable[..., Any] | None
    batcher: Callable[[list[Any]], Any] | None
    seed: int

    def build(self, task: Task, stack: Stack = torch.stack) -> Any:
        """Fetches, transforms and joins the samples; leaves torch's, numpy's and Python's generators seeded."""
        samples = [self._sample(task, place) for place in range(len(task.numbers))]
        share = (task.rank,) if task.rank else ()  # the first draws what one process draws, and each its own
        seed_everything(key(BATCH, self.seed, task.epoch, task.batch, *share))
        try:
            batch = collate(samples, stack=stack) if self.batcher is None else self.batcher(samples)
        except Exception as error:
            shown = ", ".join(map(str, task.numbers[:8])) + (", …" if len(task.numbers) > 8 else "")
            error.add_note(f"while joining samples {shown} to batch {task.batch} (epoch {task.epoch})")
            raise
        return Ghost(batch) if task.ghost else batch

    def _sample(self, task: Task, place: int) -> Any:
        number = task.numbers[place]
        seed_everything(key(SAMPLE, self.seed, task.epoch, number))
        try:
            sample = self.source[number] if task.samples is None else task.samples[place]
            return sample if self.transform is None else applied(self.transform, sample)
        except Exception as error:
            error.add_note(f"while loading sample {number} (epoch {task.epoch}, batch {task.batch})")
            raise


def tasks_in_order(cuts: Iterable[tuple[int, int]], order: Tensor | None, *, epoch: int, batch: int) -> Iterator[Task]:
    """The batches of an epoch from `batch` on, of samples that have numbers."""
    for place, (start, stop) in enumerate(cuts, start=batch):
        yield Task(epoch, place, list(range(start, stop)) if order is None else order[start:stop].tolist())


def tasks_of_stream(stream: Stream, *, size: int, drop_last: bool, epoch: int, batch: int) -> Iterator[Task]:
    """The batches of an epoch from `batch` on, as they are read; those before are read too, and dropped."""
    reader = stream.read(epoch)
    with own_random_numbers():
        skipped = sum(1 for _ in islice(reader, batch * size))
    if batch and skipped <= (batch - 1) * size:
        raise InvalidArgument(f"there is no batch {batch} in epoch {epoch}: the source ended after {skipped} samples")
    place = batch
    while True:
        with own_random_numbers():
            samples = list(islice(reader, size))
        if not samples and place == 0:
            raise BadData(
                f"the source gave no samples in epoch {epoch}; an iterable has to start again each time that iter() "
                "is called on it"
            )
        if not samples or (drop_last and len(samples) < size):
            return
        yield Task(epoch, place, list(range(place * size, place * size + len(samples))), samples)
        place += 1


class Maker(Protocol):
    """Who makes batches: `Here` or `Workers`."""

    def build(self, tasks: Iterable[Task], *, start: tuple[int, int] | None = None) -> Iterator[Any]:
        """The batches of the tasks, in their order; `start` is the epoch and batch that the first of them has."""
        ...

    def prepare(self, tasks: Iterable[Task], *, start: tuple[int, int]) -> None:
        """Has the first of the batches made ahead, for the `build` with the same `start`."""
        ...

    def close(self) -> None:
        """Ends the processes, if there are any."""
        ...


@dataclass(frozen=True)
class Here:
    """Makes batches in this process, when they are asked for."""

    recipe: Recipe

    def build(self, tasks: Iterable[Task], *, start: tuple[int, int] | None = None) -> Iterator[Any]:
        """The batches of the tasks; this process's random numbers are never seen to change."""
        for task in tasks:
            with own_random_numbers():
                batch = self.recipe.build(task)
            yield batch

    def prepare(self, tasks: Iterable[Task], *, start: tuple[int, int]) -> None:
        """Nothing: what is made here is made when training stands still."""

    def close(self) -> None:
        """Nothing to close."""
