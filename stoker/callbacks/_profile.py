"""A trace of some updates, as torch's profiler sees them."""

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

    It starts once the first number of updates was applied, so that warming up is not measured, and ends with the
    second. A path that ends in `.gz` is compressed. A fit that ends in between writes what there is, and one that is
    resumed later than that leaves the trace alone.
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
        """Waits for its updates, unless they are over."""
        self._done = ctx.update >= self.updates[1]

    def on_train_batch_begin(self, ctx: Context) -> None:
        """Starts, when its updates have come."""
        if not self._done and self._profiler is None and ctx.update >= self.updates[0]:
            from torch.profiler import ProfilerActivity, profile

            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            # there is one cycle only; acc_events keeps torch 2.11 from warning about several
            self._profiler = profile(activities=activities, record_shapes=True, acc_events=True)
            self._profiler.start()
            self._first = ctx.update + 1

    def on_update(self, ctx: Context) -> None:
        """Ends, when its updates are over."""
        if self._profiler is not None and ctx.update >= self.updates[1]:
            self._write(ctx)

    def on_exception(self, ctx: Context) -> None:
        """Writes what there is."""
        if self._profiler is not None:
            self._write(ctx)

    def on_fit_end(self, ctx: Context) -> None:
        """Writes what there is, or says that there is nothing."""
        if self._profiler is not None:
            self._write(ctx)
        elif not self._done:
            ctx.warn(f"{self!r} wrote nothing: the fit ended after {ctx.update} updates")

    def _write(self, ctx: Context) -> None:
        profiler, self._profiler, self._done = self._profiler, None, True
        profiler.stop()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self._path))
        ctx.note(f"the trace of updates {self._first} to {ctx.update} is in {self._path}")

    def __repr__(self) -> str:
        return f"Profile({str(self._path)!r}, updates={self.updates})"
