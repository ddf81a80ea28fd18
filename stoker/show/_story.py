"""The sentences that every display says: what begins, how it ended."""

from stoker.record import number
from stoker.show._format import duration, plural, short
from stoker.show._watch import Watch


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


def ending(watch: Watch) -> str:
    """How much was done, in what time, and which epoch was the best."""
    done = watch.end.extra if watch.end else {}
    epochs = done.get("epochs", max(0, watch.epoch - (watch.progress is not None)))
    updates = done.get("updates", watch.updates)
    told = f"{plural(epochs, 'epoch')}, {plural(updates, 'update')} in {duration(done.get('seconds', watch.seconds))}"
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
