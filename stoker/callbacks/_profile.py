"""Profiling some updates with torch's profiler."""

import os
from pathlib import Path
from typing import Any

import torch

from stoker.callbacks._callback import Callback
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument


class Profile(Callback):
    """Records some updates with `torch.profiler`, and writes a trace for chrome://tracing or ui.perfetto.dev.

    >>> Profile("trace.json", updates=(10, 20))
    Profile('trace.json', updates=(10, 20))

    It records from after update `updates[0]` (so that the warm-up is not measured) to the end of update `updates[1]`.
    A path that ends in `.gz` is compressed. A fit that ends earlier writes the trace of the updates it has done. A run
    that is resumed after `updates[1]` does not change the trace.
    """

    transient = True

    def __init__(self, path: str | os.PathLike[str], *, updates: tuple[int, int] = (10, 20)) -> None:
        first, last = updates
        if not 0 <= first < last:
            raise InvalidArgument(f"updates is (first, last) with 0 <= first < last, got {updates!r}")
        self._path = Path(path)
        self.updates = (first, last)
        self._profiler: Any = None
        self._first = 0
        self._done = False

    def on_fit_begin(self, ctx: Context) -> None:
        """Prepares for the updates, unless they are done."""
        self._done = ctx.update >= self.updates[1]

    def on_train_batch_begin(self, ctx: Context) -> None:
        """Starts the profiler at the first update."""
        if not self._done and self._profiler is None and ctx.update >= self.updates[0]:
            from torch.profiler import ProfilerActivity, profile

            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            # There is only one cycle; acc_events keeps torch 2.11 from warning about several.
            self._profiler = profile(activities=activities, record_shapes=True, acc_events=True)
            self._profiler.start()
            self._first = ctx.update + 1

    def on_update(self, ctx: Context) -> None:
        """Writes the trace after the last update."""
        if ctx.update >= self.updates[1]:
            self._write(ctx)

    def on_exception(self, ctx: Context) -> None:
        """Writes the trace so far."""
        self._write(ctx)

    def on_fit_end(self, ctx: Context) -> None:
        """Writes the trace so far, or warns that there is none."""
        self._write(ctx)
        if not self._done:
            ctx.warn(f"{self!r} wrote nothing: the fit ended after {ctx.update} updates")

    def _write(self, ctx: Context) -> None:
        if self._profiler is None:
            return
        profiler, self._profiler, self._done = self._profiler, None, True
        profiler.stop()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self._path))
        ctx.note(f"wrote the trace of updates {self._first} to {ctx.update} to {self._path}")

    def __repr__(self) -> str:
        return f"Profile({str(self._path)!r}, updates={self.updates})"
