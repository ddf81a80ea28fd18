"""The worker processes of a loader: what they are asked for, ahead of its being wanted."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from stoker.data._batches import Recipe, Task
from stoker.data._pool import Pool
from stoker.data._wire import packed
from stoker.errors import WorkerDied

_AHEAD = 2  # batches that each worker has been asked for and that nobody has taken yet

Start = tuple[int, int]  # epoch and batch


class Workers:
    """The worker processes of one loader: started when first needed, kept for later epochs, one set for each walk."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.recipe, self.count = recipe, count
        self._idle: list[Pool] = []
        self._runs: list[_Run] = []  # those that are being walked; the latest is last
        self._prepared: tuple[Start, _Run] | None = None  # its pool is idle, or in use by the run that it follows

    def __reduce__(self) -> tuple[Any, ...]:  # processes are not part of a copy
        return Workers, (self.recipe, self.count)

    def build(self, tasks: Iterable[Task], *, start: Start | None = None) -> Iterator[Any]:
        """The batches of the tasks, in their order; a walk that is left early gives its processes back."""
        run = self._taken_up(start) or _Run(self._acquired(), iter(tasks))
        self._runs.append(run)
        try:
            yield from run.batches()
        finally:
            self._runs.remove(run)
            self._release(run.pool)

    def prepare(self, tasks: Iterable[Task], *, start: Start) -> None:
        """Has the first batches made of a walk that is to begin at `start`: at once, or after those of the last walk.

        May be called while another thread walks: where that walk ends at this moment nothing is made ahead.
        """
        if self._prepared is not None and self._prepared[0] == start and self._prepared[1].pool.usable():
            return
        self._forget()
        walked = self._runs[-1:]
        run = _Run(walked[0].pool if walked else self._acquired(), iter(tasks))
        self._prepared = start, run
        if walked:
            walked[0].following = run
            return
        try:
            with suppress(WorkerDied):  # a walk then begins with other processes
                run.ask(run.room)
        finally:
            self._release(run.pool)

    def close(self) -> None:
        """Ends the processes that nobody walks with; the next walk starts others."""
        self._forget()
        while self._idle:
            self._idle.pop().close()

    def _taken_up(self, start: Start | None) -> "_Run | None":
        """The run that was prepared for this start, with its processes; any other is forgotten."""
        prepared = self._prepared
        self._forget()
        if prepared is None or prepared[0] != start:
            return None
        run = prepared[1]
        try:
            self._idle.remove(run.pool)
        except ValueError:  # somebody walks with it
            return None
        if run.pool.usable() and run.is_latest():
            return run
        self._release(run.pool)
        return None

    def _forget(self) -> None:
        self._prepared = None
        for run in self._runs:
            run.following = None

    def _acquired(self) -> Pool:
        while True:
            try:
                pool = self._idle.pop()  # which only one thread can get
            except IndexError:
                return Pool(self.recipe, self.count)
            if pool.usable():
                return pool
            pool.close()

    def _release(self, pool: Pool) -> None:
        if self._idle or not pool.usable():  # of walks side by side, only one set of processes is kept
            pool.close()
        else:
            self._idle.append(pool)


class _Run:
    """Some tasks on their way through the processes of a pool."""

    def __init__(self, pool: Pool, tasks: Iterator[Task]) -> None:
        self.pool, self.tasks = pool, tasks
        self.room = _AHEAD * pool.count
        self.following: _Run | None = None  # whose tasks are next, on the same pool, when these are all asked for
        self._awaited: deque[int] = deque()  # the pool's numbers of what has been asked for
        self._more = True
        self._failed: Exception | None = None

    def is_latest(self) -> bool:
        """Whether no other run has used the pool since, and dropped the answers to this one's tasks."""
        return not self._awaited or self._awaited[-1] == self.pool.asked - 1

    def batches(self) -> Iterator[Any]:
        """The tasks' batches in order, some of them always being made ahead."""
        while True:
            self.ask(self.room)
            if not self._awaited:
                break
            yield self.pool.answer(self._awaited.popleft())
        if self._failed is not None:
            raise self._failed

    def ask(self, room: int) -> None:
        """Asks until so many batches are awaited, of these tasks and then of those that follow."""
        while self._more and len(self._awaited) < room:
            try:
                message = packed(next(self.tasks))
            except StopIteration:
                self._more = False
            except Exception as error:  # of a stream's reader, which is ahead of the batches that it has earned
                self._more, self._failed = False, error
            else:
                self._awaited.append(self.pool.ask(message))
        following = self.following
        if not self._more and following is not None:
            following.ask(room - len(self._awaited))
