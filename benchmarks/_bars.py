"""The bars: what stoker has to reach beside whom, by workload, and whether it did."""

import statistics
from typing import NamedTuple

from benchmarks._contenders import EAGER


class Bar(NamedTuple):
    """`contender` takes at most `limit` × what the best of `rivals` takes."""

    contender: str
    rivals: tuple[str, ...]
    limit: float
    of: str = "µs per update"


BARS = {
    ("cpu", "toy"): [
        Bar("stoker", ("dataloader",), 0.50),
        Bar("stoker-compile", ("dataloader",), 0.12),
        Bar("stoker-compile", ("jax",), 1.2),
    ],
    ("cpu", "digits"): [Bar("stoker", EAGER, 1.0), Bar("stoker-compile", EAGER, 0.9)],
    ("cuda", "digits"): [
        Bar("stoker", ("dataloader",), 0.12),
        Bar("stoker-compile-tf32", ("dataloader",), 0.07),
        Bar("stoker-compile-tf32", ("jax-scan",), 1.1),
        Bar("stoker-tuned", ("dataloader",), 0.07),
        Bar("stoker-tuned", ("jax-scan",), 1.1),
        Bar("stoker", ("fused",), 1.1, "memory, MB"),
    ],
    ("cuda", "resnet"): [
        Bar("stoker", EAGER, 1.0),
        Bar("stoker-compile", EAGER, 1 / 1.3),
        Bar("stoker", ("fused",), 1.1, "memory, MB"),
    ],
    ("cuda", "gpt"): [
        Bar("stoker-compile", ("compile",), 1.0),
        Bar("stoker", ("fused",), 1.1, "memory, MB"),
        Bar("stoker-fsdp", ("stoker",), 1 / 0.97),
        Bar("stoker-fsdp-bf16", ("stoker",), 1 / 0.97),
    ],
}


def verdicts(found, device, work_name):
    """A line for each bar of a workload that can be judged with what was measured."""
    for bar in BARS.get((device, work_name), ()):
        own = _taken(found, bar.contender, bar.of)
        rivals = {name: taken for name in bar.rivals if (taken := _taken(found, name, bar.of)) is not None}
        if own is not None and rivals:
            best = min(rivals, key=rivals.__getitem__)
            what = "" if bar.of == "µs per update" else "memory of "
            yield verdict(f"{what}{bar.contender} against {best}", own / rivals[best], bar.limit)


def verdict(what, ratio, limit):
    """`what`: a ratio, the bar, and whether it is met."""
    return f"{what}: {ratio:.3f}, bar ≤ {limit:.3g}: {'met' if ratio <= limit else 'NOT met'}"


def _taken(found, name, of):
    if name not in found:
        return None
    value = found[name][of]
    return value.get("reserved") if isinstance(value, dict) else statistics.median(value)
