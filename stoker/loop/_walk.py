"""The batches of an epoch from where the fit stands in it."""

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.checkpoint import random_state, set_random_state
from stoker.data import EpochBatches, move_batch, prefetch
from stoker.loop._fit import Fit


def place_in(fit: Fit) -> Mapping[str, Any]:
    """What a fit needs to go on with the data from here, beside the numbers of the epoch and the batch."""
    if not fit.train.needs_rng_state:
        return {}
    inside = fit.stage == "train" and fit.ctx.batch_number > 0
    return fit.opened if inside else {"generators": fit.train.generator_states()}


def walked(fit: Fit) -> Iterator[Any]:
    """The batches that are left of this epoch, on the device, or where rows are gathered later: which ones."""
    loader, device = fit.train, fit.device
    walk = _from_here(fit)
    if fit.picks:
        return walk.row_selections()
    raw = walk.raw() if isinstance(walk, EpochBatches) else walk
    if device.type == "cpu":
        batches = raw
    elif loader.needs_main_thread:
        batches = (move_batch(batch, device) for batch in raw)
    else:
        batches = prefetch(iter(raw), device)
    return iter(batches) if loader.batch_transform is None else map(loader.apply_batch_transform, batches)


def _from_here(fit: Fit) -> Any:
    """A walk from where the fit stands: at once, or for a torch DataLoader by reading those before again.

    A DataLoader draws its order from generators when it is asked for its first batch. So these are put where they stood
    then, and afterwards where they stand now.
    """
    loader, epoch, done = fit.train, fit.ctx.epoch - 1, fit.ctx.batch_number
    if not loader.needs_rng_state:
        return loader.at(epoch=epoch, batch=done)
    if fit.opened.get("epoch") != epoch:
        if "epoch" not in fit.opened and fit.opened:
            loader.load_generator_states(fit.opened["generators"])  # of a fit that goes on between two epochs
        fit.opened = {"epoch": epoch, "random": random_state(), "generators": loader.generator_states()}
        return loader.at(epoch=epoch)
    here = random_state()
    set_random_state(fit.opened["random"])
    loader.load_generator_states(fit.opened["generators"])
    walk = iter(loader.at(epoch=epoch, batch=done).raw())
    set_random_state(here)
    return walk
