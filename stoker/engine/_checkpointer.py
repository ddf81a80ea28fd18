"""`Checkpointer`: saves a fit between two batches, when it ends, and as it last was after an exception."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker.callbacks import Requests
from stoker.checkpoint import Moment, Place, Unsaved
from stoker.engine._rank_state import gather_state
from stoker.engine._ranks import Ranks
from stoker.engine._signals import StopSignals
from stoker.engine._state import ResumePoint, TrainState, is_storable
from stoker.engine._weights import ModelWithLoss
from stoker.errors import CheckpointFailed, NotFinite
from stoker.record import Event

if TYPE_CHECKING:
    from stoker.checkpoint import Saver

_RESUME_POINTS = 4  # that are kept: a step that is not finite may be noticed some batches later
_NOT_SAVED = "the weights had changed since the last batch was done: that state was not saved"


class Checkpointer:
    """Decides when to save, and saves. Without a saver (a fit without a run directory) it does nothing.

    After every batch or span that leaves no window open it takes a resume point, the small part of the state. If an
    exception ends the fit, the last resume point whose weights are unchanged is saved. `is_timed`: saving is due by the
    clock, which only rank 0 reads.
    """

    def __init__(
        self,
        saver: "Saver | None",
        state: TrainState,
        ranks: Ranks,
        signals: StopSignals,
        requests: Requests,
        *,
        is_timed: bool = False,
    ) -> None:
        self._saver, self._state, self._ranks, self._signals, self._requests = saver, state, ranks, signals, requests
        self._ctx = state.ctx
        self._is_timed = is_timed
        self._is_requested = False  # rank 0 has asked all ranks to save, because the clock says so
        self._unsaved: Unsaved | None = None
        self._warned: set[str] = set()  # about state that no checkpoint can hold
        self._points: deque[ResumePoint] = deque(maxlen=_RESUME_POINTS)
        self._weights_are_unchanged = False  # since the newest resume point, whatever their version counters say
        self._last_saved: Any = None  # position, stage and kind of the last checkpoint: none is saved twice
        self._resumable_saved = False  # by `save_resumable_position`, so that the end is not resumable
        self.before_saving: Callable[[], None] = lambda: None  # the executor's `synchronize`: no bad step is saved

    @property
    def is_active(self) -> bool:
        """Whether anything is saved."""
        return self._saver is not None

    @property
    def seconds_to_save(self) -> float:
        """How long the slowest checkpoint took."""
        return 0.0 if self._saver is None else self._saver.slowest

    def count_updates_until_due(self, update: int) -> float:
        """After how many more updates a checkpoint is due; infinite if updates do not decide."""
        return math.inf if self._saver is None else self._saver.count_updates_until_due(update)

    def begin(self, *, is_resumed: bool) -> None:
        """Before the first batch: saves the beginning of a new run."""
        if self._saver is None:
            return
        self._resumable_saved = False
        self._requests.can_save = True
        state = self._state
        modules = state.model if state.loss is None else ModelWithLoss(state.model, state.loss)
        self._unsaved = Unsaved(modules, list(state.hooks))
        self._state.track_changes()
        self.take_resume_point()
        if not is_resumed:
            self._save(self._saver, self._requests.save_reason or "the beginning")
            with self._signals.uninterrupted():
                self._saver.wait()  # a full or read-only disk is reported now, not after the first epoch

    def take_resume_point(self) -> None:
        """Keeps a resume point of the current state, unless an accumulation window is open."""
        if self._saver is not None and not self._state.window_is_open():
            self._points.append(self._state.resume_point(self._stop_reason()))

    def save_if_due(self, *, epoch_ended: bool = False) -> None:
        """Between two batches or epochs: reports finished checkpoints, and saves if it is due."""
        saver, ctx = self._saver, self._ctx
        if saver is None:
            return
        self.take_resume_point()
        self._report_finished(saver)
        if self._ranks.world.size > 1 and saver.has_failed and ctx.stopping is None:
            ctx.save("to report one that failed")  # all ranks raise it together then
        if ctx.stopping is not None:
            return  # saved when the fit ends, or where it is cut short
        reason = self._requests.save_reason
        just_validated = self._state.progress.validated_update == ctx.update
        if reason is None and (epoch_ended or just_validated or saver.may_be_due(ctx.update)):
            moment = Moment(**self._place(), epoch_ended=epoch_ended)
            reason = self._reason_to_save(saver, moment, at_fixed_place=epoch_ended or just_validated)
        if reason is not None:
            self._save(saver, reason)

    def _reason_to_save(self, saver: "Saver", moment: Moment, *, at_fixed_place: bool) -> str | None:
        world = self._ranks.world
        if world.size == 1:
            return saver.save_reason(moment)
        if at_fixed_place or not self._is_timed:
            return world.broadcast_object(saver.save_reason(moment) if world.is_first else None)
        if world.is_first and not self._is_requested and (reason := saver.save_reason(moment)) is not None:
            self._is_requested = True  # requested once: all ranks know of it two batches later
            self._ctx.save(reason)
        return None

    def save_resumable_position(self, *, validating: bool = False) -> None:
        """Saves where a resumed run with larger limits continues, before the work that only an ending fit does.

        A fit that stops inside an epoch still validates and closes the epoch. The same fit with more epochs would not
        do that here, so the checkpoint of its end can't be resumed, and this one is. `validating`: the stop came during
        a validation, which the resumed run repeats; what its hooks have counted is not kept.
        """
        if self._saver is None or self._resumable_saved:
            return
        reason = f"stopped: {self._ctx.stopping}" if self._ctx.stopping else "before the last validation"
        if not validating:
            self._save(self._saver, reason)
        elif (point := self._usable_resume_point()) is not None:
            self._save(self._saver, reason, at=point._replace(random=None))  # a validation restores the random numbers
        else:
            self._ctx.note(_NOT_SAVED)
        self._resumable_saved = True

    def end(self) -> None:
        """Saves the outcome. No update can be lost any more, so a failure is a warning."""
        saver = self._saver
        self._requests.can_save = False
        if saver is None:
            return
        try:
            self._wait_for_earlier(saver)
            if not self._signals.interrupted:
                self._save(saver, "the end", ended=self._ctx.stopping, resumable=not self._resumable_saved)
            else:
                self.save_resumable_position()
            with self._signals.uninterrupted():
                saver.wait()
            self._report_finished(saver)
        except CheckpointFailed as error:
            self._ctx.warn(str(error))

    def discard_resume_points_from(self, position: tuple[int, int] | None, *, accumulate: int) -> None:
        """Drops resume points from a batch on whose values were not finite; no step since has changed a weight.

        A span takes a resume point at its end only: then the newest one left is not that of the update before.
        """
        if position is None:
            return
        self._points = deque((point for point in self._points if point.position < position), maxlen=_RESUME_POINTS)
        if self._points:
            (epoch, batch), (bad_epoch, bad_batch) = self._points[-1].position, position
            done = bad_batch - 1 - (batch if epoch == bad_epoch else 0)  # batches between the two
            self._weights_are_unchanged = done < accumulate

    def discard_resume_points(self) -> None:
        """Drops all resume points: the weights are not worth saving."""
        self._points.clear()

    def rescue(self, error: BaseException) -> None:
        """After an exception: saves the last resume point, if the weights have not changed since."""
        saver = self._saver
        if saver is None or self._unsaved is None:  # nothing was trained: `begin` was not called
            return
        if self._resumable_saved or isinstance(error, CheckpointFailed | KeyboardInterrupt):
            return
        if self._ranks.world.size > 1 and not (isinstance(error, NotFinite) and error.on_every_rank):
            return  # ranks that are elsewhere can't send their part of the state
        try:
            self._wait_for_earlier(saver)
            point = self._usable_resume_point()
            if point is None:
                self._ctx.note(_NOT_SAVED)
                return
            self._save(saver, f"exception: {type(error).__name__}", at=point)
            saver.wait()
            self._report_finished(saver)
        except Exception as problem:  # for example a lost device; the user's exception is still raised
            self._ctx.warn(f"the last good state could not be saved: {problem}")

    def close(self) -> None:
        """Waits for what is being written, and frees memory."""
        self._points.clear()
        if self._saver is not None:
            self._saver.close()

    def _usable_resume_point(self) -> ResumePoint | None:
        """The newest resume point from which the whole state can be built, on all ranks."""
        point = self._points[-1] if self._points else None
        is_unchanged = self._weights_are_unchanged or (point is not None and self._state.is_unchanged_since(point))
        return point if self._ranks.world.all(point is not None and is_unchanged) else None

    def _wait_for_earlier(self, saver: "Saver") -> None:
        """Waits for the checkpoint that is being written; its failure does not prevent the next one."""
        try:
            with self._signals.uninterrupted():
                saver.wait()
            self._report_finished(saver)
        except CheckpointFailed as error:
            self._ctx.warn(str(error))

    def _save(
        self,
        saver: "Saver",
        reason: str,
        *,
        ended: str | None = None,
        resumable: bool = True,
        at: ResumePoint | None = None,
    ) -> None:
        if at is None:
            self.before_saving()
        place = Place(**self._place(at), reason=reason, ended=ended, resumable=resumable)
        stage = self._state.progress.stage if at is None else at.progress["stage"]
        position = (place.epoch, place.batch, place.update, stage, ended, resumable)
        self._requests.save_reason = None
        self._is_requested = False
        if self._last_saved == position:
            return
        self._warn_about_unsaved()
        state = gather_state(self._ranks, self._state.state_dict(at, stop_reason=self._stop_reason()))
        with self._signals.uninterrupted():
            saver.save(state, place, events=self._ctx.record.path)
        self._last_saved = position

    def _stop_reason(self) -> str | None:
        """Why the fit ends, unless it was interrupted: a resumed run does not stop for that again."""
        return None if self._ctx.stopping == self._signals.reason else self._ctx.stopping

    def _warn_about_unsaved(self) -> None:
        """Warns once about state that no checkpoint can see, together with the first checkpoint that lacks it."""
        state = self._state
        texts = [] if self._unsaved is None else self._unsaved.find_changes()
        texts += [loader.resume_warning for loader in (state.train, *state.valid.values()) if loader.resume_warning]
        texts += [
            f"ctx.state[{name!r}] is a {type(value).__name__}, which a checkpoint can't hold: a resumed run starts "
            "without it. Keep tensors and plain values there, or use a callback with a state_dict"
            for name, value in self._ctx.state.items()
            if not (is_storable(name) and is_storable(value))
        ]
        for text in texts:
            if text not in self._warned:
                self._warned.add(text)
                self._ctx.warn(text)

    def _place(self, at: ResumePoint | None = None) -> dict[str, Any]:
        ctx, progress = self._ctx, self._state.progress
        minutes = (time.monotonic() - ctx.started) / 60
        if at is not None:
            return {name: at.progress[name] for name in ("epoch", "batch", "update")} | {"minutes": minutes}
        is_scored = progress.validated_update == ctx.update if self._state.valid else progress.stage == "closed"
        values = dict(ctx.metrics) if is_scored else {}
        position = {"epoch": ctx.epoch, "batch": ctx.batch_number, "update": ctx.update}
        return {**position, "minutes": minutes, "values": values}

    def _report_finished(self, saver: "Saver") -> None:
        """Records the checkpoints that have been written."""
        for saved in saver.take_finished():
            extra = {"name": saved.name, "reason": saved.reason, "bytes": saved.bytes}
            self._ctx.record.append(
                Event("checkpoint", time.time(), saved.epoch, saved.batch, saved.update, extra=extra)
            )
