"""The sentences that every display says: what begins, how it ended."""

from stoker._text import format_number as number
from stoker.record import Event
from stoker.view.console._format import duration, plural, short
from stoker.view.console._watch import Watch


def title(watch: Watch) -> str:
    """What is trained, and where: `Net (1,234 parameters) on cpu`."""
    parameters = watch.planned("parameters")
    size = f" ({parameters:,} parameters)" if parameters else ""
    device = f" on {watch.planned('device')}" if watch.planned("device") else ""
    return f"{watch.planned('model') or 'model'}{size}{device}"


def plan(watch: Watch) -> str:
    """For how long: `200 epochs of 6 batches, at most 5 minutes`."""
    limits = [plural(watch.planned(f"{word}s"), word) for word in ("epoch", "update") if watch.planned(f"{word}s")]
    if limits and watch.planned("epochs") and watch.planned("batches"):
        limits[0] += f" of {plural(watch.planned('batches'), 'batch')}"
    if watch.planned("minutes"):
        limits.append(f"{watch.planned('minutes'):g} minutes")
    return " or ".join(limits) or "until something stops it"


def aside(event: Event) -> str:
    """What an event says in a line of its own, beside the numbers; empty for most."""
    if event.kind == "resume":
        return resumed(event)
    return {"note": event.text, "warning": f"warning: {event.text}"}.get(event.kind, "")


def resumed(event: Event) -> str:
    """Where a run goes on, from its "resume" event.

    >>> found = {"checkpoint": "00000132", "batches": 20}
    >>> resumed(Event("resume", epoch=7, batch=12, update=132, extra=found))
    'resumed from 00000132: epoch 7, batch 12 of 20, update 132'
    """
    name, batches = event.extra.get("checkpoint"), event.extra.get("batches")
    if name is None:
        return "resumed from the start: there is no checkpoint to go on from"
    of = f" of {batches:,}" if batches else ""
    batch = f", batch {event.batch:,}{of}" if event.batch else ""
    return f"resumed from {name}: epoch {event.epoch:,}{batch}, update {event.update:,}"


def ending(watch: Watch) -> str:
    """How much was done, in what time, and which epoch was the best."""
    done = watch.end.extra if watch.end else {}
    epochs = done.get("epochs", max(0, watch.epoch - (watch.progress is not None)))
    updates = done.get("updates", watch.updates)
    seconds = watch.before + done["seconds"] if "seconds" in done else watch.seconds
    told = f"{plural(epochs, 'epoch')}, {plural(updates, 'update')} in {duration(seconds)}"
    best = done.get("best")
    if not best:
        return told
    return f"{told}; best {best.get('monitor', 'score')} {number(best['value'])} at epoch {best['epoch']}"


def reason(watch: Watch) -> str:
    """Why it ended; empty where it simply came to its planned end."""
    if watch.failed:
        return f"failed in epoch {watch.failed.epoch}, batch {watch.failed.batch}: {watch.failed.text}"
    if watch.stopped:
        return watch.stopped
    return "" if watch.end else f"left in epoch {watch.epoch}, before its planned end"


def speed(watch: Watch) -> str:
    """Samples a second; empty where nobody counts them."""
    rate = watch.rate()
    return f"{short(rate)} samples/s" if rate else ""
