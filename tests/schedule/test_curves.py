"""The values of the curves: against torch's schedulers, and at their ends."""

import math
import warnings
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from stoker import schedule
from stoker.errors import InvalidArgument

UPDATES = 400
LR = 0.3


def torch_rates(
    make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], updates: int = UPDATES
) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    scheduler = make(optimizer)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR warns of how it calls its own parts
        for _ in range(updates):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return found


REFERENCES = {
    "constant, then another": (
        schedule.constant(LR / 4).then(LR, at=50),
        lambda o: lr_scheduler.ConstantLR(o, factor=0.25, total_iters=50),
    ),
    "restarts": (
        schedule.cosine(LR, updates=20 + 40 + 80 + 160 + 320, end=0.01, restarts=4, growth=2),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=20, T_mult=2, eta_min=0.01),
    ),
    "in sequence": (
        schedule.linear(LR * 0.1, LR, updates=40).then(schedule.exponential(LR, gamma=0.99), at=60),
        lambda o: lr_scheduler.SequentialLR(
            o,
            [lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=40), lr_scheduler.ExponentialLR(o, gamma=0.99)],
            milestones=[60],
        ),
    ),
    "a function": (
        LR * schedule.as_schedule(lambda update: 1 / (1 + update)),
        lambda o: lr_scheduler.LambdaLR(o, lambda update: 1 / (1 + update)),
    ),
    "noam": (
        schedule.noam(512, warmup=100, scale=LR),
        lambda o: lr_scheduler.LambdaLR(o, lambda u: 512**-0.5 * min((u + 1) ** -0.5, (u + 1) * 100**-1.5)),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_values_equal_those_of_the_torch_scheduler(name):
    ours, reference = REFERENCES[name]
    assert [ours(update) for update in range(UPDATES)] == pytest.approx(torch_rates(reference), rel=1e-12, abs=0)


@pytest.mark.parametrize("end", [0.0, 0.02])
def test_cosine_equals_torch_until_its_end_and_then_stays_there(end):
    # torch uses a recurrence and drifts; near zero only its closed form is exact to 1e-12.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    reference = lr_scheduler.CosineAnnealingLR(optimizer, T_max=300, eta_min=end)
    ours = schedule.cosine(LR, updates=300, end=end)
    for update in range(301):
        reference.last_epoch = update
        assert ours(update) == pytest.approx(reference._get_closed_form_lr()[0], rel=1e-12, abs=1e-16)
    assert {ours(update) for update in range(300, 700)} == {end}


@pytest.mark.parametrize("shape", ["cosine", "linear"])
@pytest.mark.parametrize(("updates", "rise"), [(400, 0.3), (333, 0.21), (2, 0.3)])
def test_one_cycle_equals_torch(shape, updates, rise):
    ours = schedule.one_cycle(LR, updates=updates, rise=rise, shape=shape)
    reference = torch_rates(
        lambda o: lr_scheduler.OneCycleLR(
            o, max_lr=LR, total_steps=updates, pct_start=rise, anneal_strategy=shape[:3] if shape == "cosine" else shape
        ),
        updates=updates - 1,
    )
    # torch loses digits near its smallest value by subtracting, so the tolerance is relative to the peak.
    assert [ours(update) for update in range(updates - 1)] == pytest.approx(reference, rel=1e-12, abs=1e-14)
    assert ours(updates - 1) == ours(10**6) == LR / 25 / 1e4
    chosen = schedule.one_cycle(LR, updates=updates, rise=0.0, start=0.1, end=0.2, shape=shape)
    assert chosen(updates - 1) == 0.2


WARM = {
    "cosine": schedule.cosine(0.7, updates=50, warmup=10, end=0.1),
    "inverse_sqrt": schedule.inverse_sqrt(0.7, warmup=10),
    "warmup_stable_decay": schedule.warmup_stable_decay(0.7, updates=50, warmup=10, decay=5, end=0.1),
    "warmup": schedule.warmup(0.7, updates=10),
}


@pytest.mark.parametrize("name", WARM)
def test_warm_up_starts_above_zero_and_reaches_exactly_the_peak(name):
    found = [WARM[name](update) for update in range(11)]
    assert found == pytest.approx([0.7 * (update + 1) / 11 for update in range(11)], rel=1e-15)
    assert found[0] > 0 and found[10] == 0.7


VALUES = st.floats(-5, 5, allow_subnormal=False)  # subnormal numbers cannot be halved exactly


@given(st.integers(1, 500), VALUES, VALUES)
@settings(max_examples=60)
def test_both_ends_are_exact_and_the_last_value_is_kept(updates, start, end):
    for curve in (
        schedule.linear(start, end, updates),
        schedule.cosine(start, updates=updates, end=end),
        schedule.polynomial(start, updates=updates, end=end, power=0.7),
        schedule.warmup_stable_decay(start, updates=updates, warmup=0, decay=updates, end=end, shape="sqrt"),
        schedule.warmup_stable_decay(start, updates=updates, warmup=0, decay=updates, end=end, shape="cosine"),
    ):
        assert curve(0) == start and curve(updates) == curve(updates + 1) == curve(10**9) == end
        low, high = min(start, end), max(start, end)
        tolerance = 1e-14 * max(abs(low), abs(high))
        assert all(
            low - tolerance <= curve(update) <= high + tolerance for update in range(0, updates, max(1, updates // 20))
        )


@given(st.integers(20, 400), st.integers(1, 6), st.floats(0.5, 2.0))
@settings(max_examples=50)
def test_cycles_start_at_the_peak_fill_all_updates_and_grow(updates, cycles, growth):
    try:
        curve = schedule.cosine(0.1, updates=updates + 13, warmup=13, restarts=cycles - 1, growth=growth)
    except InvalidArgument:  # a cycle would be shorter than an update
        return
    starts = [update - 13 for update in range(13, updates + 13) if curve(update) == 0.1]
    lengths = [b - a for a, b in pairwise([*starts, updates])]
    assert starts[0] == 0 and len(lengths) == cycles and curve(updates + 13) == 0.0
    for short, long in pairwise(lengths):
        assert long == pytest.approx(short * growth, abs=1 + growth)  # both are rounded to whole updates


def test_exponential_stops_at_its_end_in_both_directions():
    assert schedule.exponential(1.0, gamma=0.5, end=0.3)(10**5) == 0.3
    assert schedule.exponential(1.0, gamma=2.0, end=3.0)(10**5) == 3.0
    with pytest.raises(InvalidArgument, match="has no finite value at update 100000"):
        schedule.exponential(1.0, gamma=2.0)(10**5)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: schedule.constant(math.nan), r"schedule\.constant: value is nan; expected a finite number"),
        (lambda: schedule.linear(1, 0, 0), r"schedule\.linear: updates is 0; expected at least 1"),
        (lambda: schedule.cosine(1, updates=5, warmup=6), "warmup is 6; expected at most updates, which is 5"),
        (lambda: schedule.cosine(1, updates=5, warmup=-1), "warmup is -1; expected at least 0"),
        (lambda: schedule.cosine(1, updates=5, growth=0), "growth is 0.0; expected more than 0"),
        (lambda: schedule.cosine(1, updates=5, restarts=5), "restarts is 5; expected cycles of at least one update"),
        (lambda: schedule.cosine(1, updates=9, restarts=4, growth=9), "with 9 updates for all of them and growth 9.0"),
        (lambda: schedule.exponential(1, gamma=0), "gamma is 0.0; expected more than 0"),
        (lambda: schedule.exponential(1, gamma=0.5, end=2), r"end is 2.0; expected a value below start \(1.0\)"),
        (lambda: schedule.step(1, every=0), "every is 0; expected at least 1"),
        (lambda: schedule.multistep(1, milestones=[3, 3]), r"milestones is \(3, 3\); expected update numbers of 0"),
        (lambda: schedule.polynomial(1, updates=3, power=0), "power is 0.0; expected more than 0"),
        (lambda: schedule.one_cycle(1, updates=1), "one_cycle: updates is 1; expected at least 2"),
        (lambda: schedule.one_cycle(1, updates=9, rise=1), "rise is 1.0; expected a fraction"),
        (lambda: schedule.noam(8, warmup=0), "noam: warmup is 0; expected at least 1"),
        (
            lambda: schedule.warmup_stable_decay(1, updates=9, warmup=5, decay=5),
            r"schedule\.warmup_stable_decay: decay is 5; expected at most updates - warmup, which is 4",
        ),
    ],
)
def test_invalid_settings_are_named_in_the_error(make, text):
    with pytest.raises(InvalidArgument, match=text):
        make()
