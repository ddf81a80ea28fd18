"""What a loader reads, as text: for `explain`, for warnings, and to identify a run."""

from typing import Any

from stoker.data._batching import (
    Batches,
    ColumnBatches,
    DataLoaderBatches,
    NumberedBatches,
    StreamBatches,
    find_generators,
)
from stoker.data._combine import (
    EpochFunctionBatches,
    MixBatches,
    PaddedBatches,
    PassBatches,
    ZipBatches,
    leaves_of,
)
from stoker.data._order import Bucketed, Drawn
from stoker.data._stateful import can_save_position


def warn_about_resuming(batches: Any) -> str | None:
    """Why a resumed run may get other batches of one source than an uninterrupted one; None if it gets the same."""
    if isinstance(batches, DataLoaderBatches):
        workers = batches.loader.num_workers
        if batches.loader.persistent_workers:
            return (
                "the workers of this DataLoader live across epochs (persistent_workers=True), and their random state "
                "can't be saved: after resuming, their transforms draw other numbers"
            )
        if workers and can_save_position(batches.loader):
            return (
                f"the state of a {type(batches.loader).__name__} lacks the random state of its {workers} workers: "
                "after resuming, transforms that draw there draw other numbers (those of a stoker Loader do not)"
            )
        return None
    if isinstance(batches, ColumnBatches):
        return None
    source = batches.stream.samples if isinstance(batches, StreamBatches) else batches.source
    generators = list(find_generators(source))
    if not generators or can_save_position(source):
        return None
    return (
        f"the {type(source).__name__} draws from its own generator ({', '.join(generators)}), whose state "
        "can't be restored; draw from torch's, numpy's or Python's global generator, which the Loader seeds for "
        "every sample"
    )


def describe_batches(batches: Batches, seed: int | None) -> str:
    """How much an epoch of some batches reads, and in what order."""
    try:
        length = f"{batches.count_batches():,} batches"
    except TypeError:
        length = "batches that can't be counted in advance"
    if isinstance(batches, ZipBatches | MixBatches):
        parts = ", ".join(_describe_part(batches, number) for number in range(len(batches.parts)))
        kind = "side by side" if isinstance(batches, ZipBatches) else "one source at a time"
        order = "" if isinstance(batches, ZipBatches) else _describe_order(seed, "evenly spaced")
        return f"{length}, {kind}: {parts}{order}"
    if isinstance(batches, PaddedBatches):
        return f"{describe_batches(next(iter(batches.parts.values())), seed)}, padded to {batches.length:,} batches"
    if isinstance(batches, EpochFunctionBatches):
        return f"a function of the epoch; epoch 0: {describe_batches(next(iter(batches.parts.values())), seed)}"
    if isinstance(batches, NumberedBatches):
        base = batches.order.base if isinstance(batches.order, Bucketed) else batches.order
        drawn = "" if batches.order.length == batches.order.samples else f"{batches.order.length:,} of "
        how = ", drawn by weight" if isinstance(base, Drawn) else ""
        how += "" if base is batches.order else " of similar length"
        order = _describe_order(seed, "in its own order")
        return f"{drawn}{batches.order.samples:,} samples in {length}{how}{order}"
    known = isinstance(batches, DataLoaderBatches) and "counted" not in length
    return f"{length if known else 'a stream of unknown length'}, in its own order"


def _describe_order(seed: int | None, otherwise: str) -> str:
    return f", {otherwise}" if seed is None else f", shuffled by (seed {seed}, epoch)"


def _describe_part(whole: ZipBatches | MixBatches, number: int) -> str:
    name, part = list(whole.parts.items())[number]
    leaf = leaves_of(part)[0]
    repeats = isinstance(part, PassBatches) and part.repeats
    if not isinstance(leaf, NumberedBatches):
        return f"{name} ({'repeated' if repeats else 'in its own order'})"
    samples = leaf.order.samples
    per_epoch = whole.length if isinstance(whole, ZipBatches) else whole.counts[number]
    read = None if per_epoch is None else min(per_epoch * leaf.size, leaf.order.length)
    amount = f"{samples:,} samples"
    if repeats or (read is not None and read > samples):
        amount += ", repeated" if read is None else f", {read / samples:.3g} times,"
    elif read is not None and read < samples:
        amount = f"{read:,} of {amount}"
    return f"{name} ({amount} in batches of {leaf.size})"
