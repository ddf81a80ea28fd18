"""What makes a fit durable: it is saved between two batches, when it ends, and as it last was after an exception."""

import time
from typing import Any

from stoker.checkpoint import Moment, Place, RandomWatch, Saved, Unsaved, has_extra_state, set_random_state
from stoker.errors import CheckpointFailed
from stoker.loop._fit import Fit
from stoker.loop._level import loss_of
from stoker.loop._mark import Mark, is_storable, marked, versions_of
from stoker.loop._state import settle_again, state_of
from stoker.record import Event

_NOT_SAVED = "the weights had changed since the last batch was done: that state was not saved"


def begin(fit: Fit) -> None:
    """Before the first epoch; a fit that goes on gets back what callbacks have counted, and its random numbers."""
    ctx = fit.ctx
    kept = dict(ctx.state), ctx.lr_scale, ctx.lr, dict(ctx.metrics)
    fit.hooks.fire("on_fit_begin", ctx)
    if fit.resumed is not None:
        # A hook there begins as it does in a new fit; what the run had come to goes before.
        ctx.state, ctx.lr_scale, ctx.lr, ctx.metrics = {**ctx.state, **kept[0]}, *kept[1:]
        if "model" in fit.resumed:
            settle_again(fit, fit.resumed)
        for name in fit.hooks.load_states(fit.resumed["callbacks"]):
            fit.ctx.note(f"there is no callback {name} any more; what it had counted is dropped")
        if fit.resumed["random"] is not None:
            set_random_state(fit.resumed["random"])
        fit.buffers = [buffer.detach().clone() for buffer in fit.model.buffers()]
    if fit.saver is not None:
        fit.watch, fit.unsaved = RandomWatch(), Unsaved(fit.model, list(fit.hooks))
        fit.homes = [module._buffers for module in fit.model.modules()]
        loss, fit.watched = loss_of(fit), list(fit.model.parameters())
        fit.loss_homes = [] if loss is None else [module._buffers for module in loss.modules()]
        fit.extras = [module for module in fit.model.modules() if has_extra_state(module)]
        mark(fit)
        if fit.resumed is None:  # else it is there, and this would only use up the room of an older one
            _save(fit, fit.ctx._requests.save_reason or "the beginning")
            fit.saver.wait()  # what can't be written is known now, and not after the first epoch
    fit.resumed = None


def _is_good(fit: Fit) -> bool:
    """Whether the mark is still a whole state: nobody has written to what it has not copied."""
    return fit.world.all(fit.mark is not None and fit.mark.versions == versions_of(fit))


def mark(fit: Fit) -> None:
    """Notes the state as a good one, unless a window of batches is open: then the one before it is."""
    if fit.saver is not None and not any(len(window) for window in fit.accumulators.values()):
        fit.mark = marked(fit)
        fit.marks.append(fit.mark)


def between(fit: Fit, *, epoch_ended: bool = False) -> None:
    """Between two batches or epochs: what has been written is told, and what is due is saved."""
    saver, ctx = fit.saver, fit.ctx
    if saver is None:
        return
    mark(fit)
    _tell(fit, saver.take_finished())
    if fit.accord is not None and saver.has_failed and ctx.stopping is None:
        ctx.save("to tell of one that failed")  # which all ranks then raise together
    if ctx.stopping is not None:
        return  # saved when it has ended, or where it was cut short
    reason = ctx._requests.save_reason
    if reason is None and (epoch_ended or fit.validated == ctx.update or saver.may_be_due(ctx.update)):
        moment = Moment(**_place(fit), epoch_ended=epoch_ended)
        reason = saver.save_reason(moment) if fit.accord is None else _due(fit, moment)
    if reason is not None:
        _save(fit, reason)


def _due(fit: Fit, here: Moment) -> str | None:
    """Rank 0's word on what is due: told at once where all ranks ask; by the clock of one, a wish that all come to."""
    assert fit.saver is not None
    if here.epoch_ended or fit.validated == here.update or not fit.clocked:
        return fit.world.broadcast_object(fit.saver.save_reason(here) if fit.world.is_first else None)
    if fit.world.is_first and not fit.is_due and (reason := fit.saver.save_reason(here)) is not None:
        fit.is_due = True  # asked for once: it takes two batches until all know
        fit.ctx.save(reason)
    return None


def cut_short(fit: Fit, *, validating: bool = False) -> None:
    """The fit ends here in a way that a longer one would not: from here it can be gone on with.

    A validation that was left begins anew then: what its hooks have counted is not kept.
    """
    if fit.saver is not None and not fit.cut:
        reason = f"stopped: {fit.ctx.stopping}" if fit.ctx.stopping else "before the last validation"
        if not validating:
            _save(fit, reason)
        elif _is_good(fit):
            # Random numbers are where they stood: a validation puts them back.
            _save(fit, reason, at=fit.mark._replace(random=None))
        else:
            fit.ctx.note(_NOT_SAVED)
    fit.cut = True


def end(fit: Fit) -> None:
    """Saves how it ended. There is no update any more that a failure could stop, so it is a warning."""
    saver, ctx = fit.saver, fit.ctx
    if saver is None:
        return
    ctx._requests.can_save = False
    try:
        _settle_earlier(fit)
        if not fit.interrupted:
            _save(fit, "the end", ended=ctx.stopping, resumable=not fit.cut)
        elif not fit.cut:
            cut_short(fit)
        saver.wait()
        _tell(fit, saver.take_finished())
    except CheckpointFailed as error:
        ctx.warn(str(error))


def rescue(fit: Fit, error: BaseException) -> None:
    """After an exception: saves the last good state, where no update has begun since."""
    saver, ctx = fit.saver, fit.ctx
    if saver is None or fit.cut or isinstance(error, CheckpointFailed | KeyboardInterrupt):
        return  # where it was cut short, what can be gone on from has been saved
    if fit.world.size > 1 and not fit.common:
        return  # what differs between ranks can't be asked of those that are not here
    try:
        _settle_earlier(fit)
        if not _is_good(fit):
            ctx.note(_NOT_SAVED)
            return
        _save(fit, f"exception: {type(error).__name__}", at=fit.mark)
        saver.wait()
        _tell(fit, saver.take_finished())
    except Exception as problem:  # a device that is lost, say; the user's own exception is on its way
        ctx.warn(f"the last good state could not be saved: {problem}")


def _settle_earlier(fit: Fit) -> None:
    """Waits for what is being written; that one's failure is no reason not to write the next."""
    assert fit.saver is not None
    try:
        fit.saver.wait()
        _tell(fit, fit.saver.take_finished())
    except CheckpointFailed as error:
        fit.ctx.warn(str(error))


def _save(fit: Fit, reason: str, *, ended: str | None = None, resumable: bool = True, at: Mark | None = None) -> None:
    assert fit.saver is not None
    if at is None and fit.program is not None:
        fit.program.settle()  # nothing is saved that a late verdict could be about
    place = Place(**_place(fit, at), reason=reason, ended=ended, resumable=resumable)
    stands = (place.epoch, place.batch, place.update, fit.stage if at is None else at.stage, ended, resumable)
    fit.ctx._requests.save_reason, fit.is_due = None, False
    if fit.saved == stands:
        return
    _warn_of_losses(fit)
    fit.saver.save(state_of(fit, at), place, events=fit.record.path)
    fit.saved = stands


def _warn_of_losses(fit: Fit) -> None:
    """What is kept where no checkpoint can see it is told once, with the first checkpoint that lacks it."""
    texts = [] if fit.unsaved is None else fit.unsaved.find_changes()
    texts += [each.resume_warning for each in (fit.train, *fit.valid.values()) if each.resume_warning is not None]
    odd = [name for name, value in fit.ctx.state.items() if not (is_storable(name) and is_storable(value))]
    texts += [
        f"ctx.state[{name!r}] is a {type(fit.ctx.state[name]).__name__}, which a checkpoint can't hold: a run that "
        "goes on starts without it. Keep tensors and plain values there, or use a callback with a state_dict"
        for name in odd
    ]
    for text in texts:
        if text not in fit.warned:
            fit.warned.add(text)
            fit.ctx.warn(text)


def _place(fit: Fit, at: Mark | None = None) -> dict[str, Any]:
    ctx = fit.ctx
    minutes = (time.monotonic() - ctx.started) / 60
    if at is not None:
        return {"epoch": at.epoch, "batch": at.batch, "update": at.update, "minutes": minutes}
    judged = fit.validated == ctx.update if fit.valid else fit.stage == "closed"
    values = dict(ctx.metrics) if judged else {}
    return {"epoch": ctx.epoch, "batch": ctx.batch_number, "update": ctx.update, "minutes": minutes, "values": values}


def _tell(fit: Fit, written: list[Saved]) -> None:
    for saved in written:
        extra = {"name": saved.name, "reason": saved.reason, "bytes": saved.bytes}
        fit.record.append(Event("checkpoint", time.time(), saved.epoch, saved.batch, saved.update, extra=extra))
