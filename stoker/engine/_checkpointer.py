"""`Checkpointer`: saves a fit between two batches, when it ends, and as it last was after an exception."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from stoker.callbacks import Context, Requests
from stoker.checkpoint import Moment, Place, Saved, Saver, Unsaved
from stoker.engine._rank_sync import RankSync
from stoker.engine._signals import StopSignals
from stoker.engine._state import ResumePoint, TrainState, is_storable
from stoker.errors import CheckpointFailed, NotFinite
from stoker.record import Event

_POINTS = 4  # resume points that are kept: a step that is not finite may be noticed some batches later
_NOT_SAVED = "the weights had changed since the last batch was done: that state was not saved"


class Checkpointer:
    """Decides when to save, and saves.

    After every batch that leaves no window open it takes a resume point, the small part of the state. If an exception
    ends the fit, the last resume point whose weights are unchanged is saved. `is_timed`: saving is due by the clock,
    which only rank 0 reads.
    """

    def __init__(
        self,
        saver: Saver,
        state: TrainState,
        ranks: RankSync,
        signals: StopSignals,
        requests: Requests,
        *,
        is_timed: bool,
    ) -> None:
        self._saver, self._state, self._ranks, self._signals, self._requests = saver, state, ranks, signals, requests
        self._ctx: Context = state.ctx
        self._is_timed = is_timed
        self._is_requested = False  # all ranks were asked to save, because the clock says so
        self._unsaved: Unsaved | None = None
        self._warned: set[str] = set()  # about state that no checkpoint can hold
        self._points: deque[ResumePoint] = deque(maxlen=_POINTS)
        self._weights_are_unchanged = False  # since the newest resume point, whatever their version counters say
        self._last_saved: Any = None  # the position that was saved last
        self._before_saving: Callable[[], None] = lambda: None
        self._resumable_saved = False  # by `save_resumable_position`, so that the end is not resumable

    @property
    def seconds_to_save(self) -> float:
        """How long the slowest checkpoint took."""
        return self._saver.slowest

    def begin(self, *, is_resumed: bool) -> None:
        """Before the first batch: saves the beginning of a new run."""
        self._resumable_saved, self._requests.can_save = False, True
        self._unsaved = Unsaved(self._state.model, list(self._state.hooks))
        self._state.track_changes()
        self.take_resume_point()
        if not is_resumed:
            self._save(self._requests.save_reason or "the beginning")
            self._saver.wait()  # a full or read-only disk is reported now, not after the first epoch

    def take_resume_point(self) -> None:
        """Notes the current state, unless an accumulation window is open."""
        if not self._state.window_is_open():
            self._points.append(self._state.resume_point(self._stop_reason()))

    def after_batch(self, *, epoch_ended: bool = False) -> None:
        """Between two batches or epochs: reports finished checkpoints, and saves if it is due."""
        saver, ctx = self._saver, self._ctx
        self.take_resume_point()
        self._report(saver.take_finished())
        if self._ranks.agrees and saver.has_failed and ctx.stopping is None:
            ctx.save("to report one that failed")  # all ranks raise it together then
        if ctx.stopping is not None:
            return  # saved when the fit ends, or where it is cut short
        reason = self._requests.save_reason
        just_validated = self._state.progress.validated_update == ctx.update
        if reason is None and (epoch_ended or just_validated or saver.may_be_due(ctx.update)):
            moment = Moment(**self._place(), epoch_ended=epoch_ended)
            reason = self._reason_to_save(moment, at_fixed_place=epoch_ended or just_validated)
        if reason is not None:
            self._save(reason)

    def _reason_to_save(self, moment: Moment, *, at_fixed_place: bool) -> str | None:
        world = self._ranks.world
        if not self._ranks.agrees:
            return self._saver.save_reason(moment)
        if at_fixed_place or not self._is_timed:
            return world.broadcast_object(self._saver.save_reason(moment) if world.is_first else None)
        if world.is_first and not self._is_requested and (reason := self._saver.save_reason(moment)) is not None:
            self._is_requested = True  # requested once: all ranks know of it two batches later
            self._ctx.save(reason)
        return None

    def save_resumable_position(self, *, validating: bool = False) -> None:
        """Saves where a resumed run with larger limits continues, before the work that only an ending fit does.

        A fit that stops inside an epoch still validates and closes the epoch. The same fit with more epochs would not
        do that here, so the checkpoint of its end can't be resumed, and this one is. `validating`: the stop came during
        a validation, which the resumed run repeats; what its hooks have counted is not kept.
        """
        if not self._resumable_saved:
            reason = f"stopped: {self._ctx.stopping}" if self._ctx.stopping else "before the last validation"
            if not validating:
                self._save(reason)
            elif (point := self._valid_point()) is not None:
                self._save(reason, at=point._replace(random=None))  # a validation restores the random numbers
            else:
                self._ctx.note(_NOT_SAVED)
        self._resumable_saved = True

    def end(self) -> None:
        """Saves the outcome. No update can be lost any more, so a failure is a warning."""
        self._requests.can_save = False
        try:
            self._wait_for_earlier()
            if not self._signals.interrupted:
                self._save("the end", ended=self._ctx.stopping, resumable=not self._resumable_saved)
            elif not self._resumable_saved:
                self.save_resumable_position()
            self._saver.wait()
            self._report(self._saver.take_finished())
        except CheckpointFailed as error:
            self._ctx.warn(str(error))

    def discard_points_from(self, position: tuple[int, int] | None) -> None:
        """Drops resume points from a batch on whose values were not finite; no step since has changed a weight."""
        if position is not None:
            self._points = deque((each for each in self._points if each.position < position), maxlen=_POINTS)
            self._weights_are_unchanged = True

    def rescue(self, error: BaseException) -> None:
        """After an exception: saves the last resume point, if the weights have not changed since."""
        if self._resumable_saved or isinstance(error, CheckpointFailed | KeyboardInterrupt):
            return
        if self._ranks.world.size > 1 and not (isinstance(error, NotFinite) and error.on_every_rank):
            return  # ranks that are elsewhere can't send their part of the state
        try:
            self._wait_for_earlier()
            point = self._valid_point()
            if point is None:
                self._ctx.note(_NOT_SAVED)
                return
            self._save(f"exception: {type(error).__name__}", at=point)
            self._saver.wait()
            self._report(self._saver.take_finished())
        except Exception as problem:  # for example a lost device; the user's exception is still raised
            self._ctx.warn(f"the last good state could not be saved: {problem}")

    def close(self) -> None:
        """Waits for what is being written, and frees memory."""
        self._saver.close()
        self._points.clear()

    def _valid_point(self) -> ResumePoint | None:
        """The newest resume point from which the whole state can be built, on all ranks."""
        point = self._points[-1] if self._points else None
        is_unchanged = self._weights_are_unchanged or (point is not None and self._state.is_unchanged_since(point))
        return point if self._ranks.world.all(point is not None and is_unchanged) else None

    def _wait_for_earlier(self) -> None:
        """Waits for the checkpoint that is being written; its failure does not prevent the next one."""
        try:
            self._saver.wait()
            self._report(self._saver.take_finished())
        except CheckpointFailed as error:
            self._ctx.warn(str(error))

    def _save(
        self, reason: str, *, ended: str | None = None, resumable: bool = True, at: ResumePoint | None = None
    ) -> None:
        if at is None:
            self._before_saving()
        place = Place(**self._place(at), reason=reason, ended=ended, resumable=resumable)
        stage = self._state.progress.stage if at is None else at.progress["stage"]
        position = (place.epoch, place.batch, place.update, stage, ended, resumable)
        self._requests.save_reason, self._is_requested = None, False
        if self._last_saved == position:
            return
        self._warn_about_unsaved()
        state = self._ranks.gather_state(self._state.state_dict(at, stop_reason=self._stop_reason()))
        self._saver.save(state, place, events=self._ctx.record.path)
        self._last_saved = position

    def _stop_reason(self) -> str | None:
        """Why the fit ends, unless it was interrupted: a resumed run does not stop for that again."""
        return None if self._ctx.stopping == self._signals.reason else self._ctx.stopping

    def _warn_about_unsaved(self) -> None:
        """Warns once about state that no checkpoint can see, together with the first checkpoint that lacks it."""
        state = self._state
        texts = [] if self._unsaved is None else self._unsaved.find_changes()
        texts += [each.resume_warning for each in (state.train, *state.valid.values()) if each.resume_warning]
        user_state = self._ctx.state
        texts += [
            f"ctx.state[{name!r}] is a {type(value).__name__}, which a checkpoint can't hold: a resumed run starts "
            "without it. Keep tensors and plain values there, or use a callback with a state_dict"
            for name, value in user_state.items()
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

    def _report(self, written: Sequence[Saved]) -> None:
        for saved in written:
            extra = {"name": saved.name, "reason": saved.reason, "bytes": saved.bytes}
            self._ctx.record.append(
                Event("checkpoint", time.time(), saved.epoch, saved.batch, saved.update, extra=extra)
            )

    def synchronize_with(self, synchronize: Callable[[], None]) -> None:
        """Sets what is called before each save: the executor's `synchronize`, so that no bad step is saved."""
        self._before_saving = synchronize
