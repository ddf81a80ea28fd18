"""The curves against torch's schedulers, and what holds of each by itself."""

import math
import warnings
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler as torchs

from stoker import schedule
from stoker.errors import InvalidArgument
from stoker.schedule._curves import cycle_starts

UPDATES = 400
LR = 0.3


def rates_of(make: Callable[[torch.optim.Optimizer], torchs.LRScheduler], updates: int = UPDATES) -> list[float]:
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


TWINS = {
    "constant": (schedule.constant(LR), lambda o: torchs.ConstantLR(o, factor=1.0, total_iters=1)),
    "constant, then another": (
        schedule.constant(LR / 4).then(LR, at=50),
        lambda o: torchs.ConstantLR(o, factor=0.25, total_iters=50),
    ),
    "linear": (
        schedule.linear(LR * 0.2, LR * 0.9, steps=150),
        lambda o: torchs.LinearLR(o, start_factor=0.2, end_factor=0.9, total_iters=150),
    ),
    "exponential": (schedule.exponential(LR, gamma=0.97), lambda o: torchs.ExponentialLR(o, gamma=0.97)),
    "step": (schedule.step(LR, every=30, gamma=0.5), lambda o: torchs.StepLR(o, step_size=30, gamma=0.5)),
    "multistep": (
        schedule.multistep(LR, milestones=[5, 80, 81, 300], gamma=0.3),
        lambda o: torchs.MultiStepLR(o, milestones=[5, 80, 81, 300], gamma=0.3),
    ),
    "polynomial": (
        schedule.polynomial(LR, steps=300, power=1.0) + 0.0,
        lambda o: torchs.PolynomialLR(o, total_iters=300, power=1.0),
    ),
    "restarts": (
        schedule.cosine(LR, steps=20 + 40 + 80 + 160 + 320, end=0.01, restarts=4, growth=2),
        lambda o: torchs.CosineAnnealingWarmRestarts(o, T_0=20, T_mult=2, eta_min=0.01),
    ),
    "even restarts": (
        schedule.cosine(LR, steps=10 * 50, end=0.01, restarts=9),
        lambda o: torchs.CosineAnnealingWarmRestarts(o, T_0=50, eta_min=0.01),
    ),
    "in sequence": (
        schedule.linear(LR * 0.1, LR, steps=40).then(schedule.exponential(LR, gamma=0.99), at=60),
        lambda o: torchs.SequentialLR(
            o,
            [torchs.LinearLR(o, start_factor=0.1, total_iters=40), torchs.ExponentialLR(o, gamma=0.99)],
            milestones=[60],
        ),
    ),
    "chained": (
        schedule.step(LR, every=30, gamma=0.5) * schedule.exponential(1.0, gamma=0.99),
        lambda o: torchs.ChainedScheduler(
            [torchs.StepLR(o, step_size=30, gamma=0.5), torchs.ExponentialLR(o, gamma=0.99)]
        ),
    ),
    "a function": (
        LR * schedule.as_schedule(lambda update: 1 / (1 + update)),
        lambda o: torchs.LambdaLR(o, lambda update: 1 / (1 + update)),
    ),
    "noam": (
        schedule.noam(512, warmup=100, scale=LR),
        lambda o: torchs.LambdaLR(o, lambda u: 512**-0.5 * min((u + 1) ** -0.5, (u + 1) * 100**-1.5)),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_the_values_are_those_of_torchs_twin(name):
    ours, twin = TWINS[name]
    assert [ours(update) for update in range(UPDATES)] == pytest.approx(rates_of(twin), rel=1e-12, abs=0)


@pytest.mark.parametrize("power", [0.5, 2.0, 3.7])
def test_polynomial_is_torchs_at_every_power(power):
    # torch multiplies ratios, one per update, and so drifts: its closed form is the reference.
    ours = schedule.polynomial(LR, steps=300, power=power)
    expected = [LR * (1.0 - min(300, update) / 300) ** power for update in range(UPDATES)]
    assert [ours(update) for update in range(UPDATES)] == pytest.approx(expected, rel=1e-12, abs=0)
    twin = rates_of(lambda o: torchs.PolynomialLR(o, total_iters=300, power=power))
    assert [ours(update) for update in range(UPDATES)] == pytest.approx(twin, rel=1e-9, abs=0)


@pytest.mark.parametrize("end", [0.0, 0.02])
def test_cosine_is_torchs_until_its_end_and_does_not_come_up_again(end):
    # torch goes by recurrence and drifts; near zero only its closed form is good to 1e-12.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    twin = torchs.CosineAnnealingLR(optimizer, T_max=300, eta_min=end)
    ours = schedule.cosine(LR, steps=300, end=end)
    for update in range(301):
        twin.last_epoch = update
        assert ours(update) == pytest.approx(twin._get_closed_form_lr()[0], rel=1e-12, abs=1e-16)
    assert {ours(update) for update in range(300, 700)} == {end}


@pytest.mark.parametrize("shape", ["cosine", "linear"])
@pytest.mark.parametrize(("steps", "rise"), [(400, 0.3), (333, 0.21), (2, 0.3)])
def test_one_cycle_is_torchs(shape, steps, rise):
    ours = schedule.one_cycle(LR, steps=steps, rise=rise, shape=shape)
    twin = rates_of(
        lambda o: torchs.OneCycleLR(
            o, max_lr=LR, total_steps=steps, pct_start=rise, anneal_strategy=shape[:3] if shape == "cosine" else shape
        ),
        updates=steps - 1,
    )
    # torch subtracts to reach its smallest value, which costs it digits there: relative to the peak.
    assert [ours(update) for update in range(steps - 1)] == pytest.approx(twin, rel=1e-12, abs=1e-14)
    assert ours(steps - 1) == ours(10**6) == LR / 25 / 1e4
    chosen = schedule.one_cycle(LR, steps=steps, rise=0.0, start=0.1, end=0.2, shape=shape)
    assert chosen(steps - 1) == 0.2


def test_the_tour():
    warm = schedule.cosine(1e-2, steps=80, warmup=8)
    assert warm(0) < warm(8) == 1e-2 > warm(79) > 0


WARM = {
    "cosine": schedule.cosine(0.7, steps=50, warmup=10, end=0.1),
    "inverse_sqrt": schedule.inverse_sqrt(0.7, warmup=10),
    "warmup_stable_decay": schedule.warmup_stable_decay(0.7, steps=50, warmup=10, decay=5, end=0.1),
    "warmup": schedule.warmup(0.7, steps=10),
}


@pytest.mark.parametrize("name", WARM)
def test_warm_up_wastes_no_update_at_zero_and_ends_exactly_at_the_peak(name):
    found = [WARM[name](update) for update in range(11)]
    assert found == pytest.approx([0.7 * (update + 1) / 11 for update in range(11)], rel=1e-15)
    assert found[0] > 0 and found[10] == 0.7


VALUES = st.floats(-5, 5, allow_subnormal=False)  # whose halves are not to be had exactly


@given(st.integers(1, 500), VALUES, VALUES)
@settings(deadline=None, max_examples=60)
def test_both_ends_are_exact_and_the_last_value_stays(steps, start, end):
    for curve in [
        schedule.linear(start, end, steps),
        schedule.cosine(start, steps=steps, end=end),
        schedule.polynomial(start, steps=steps, end=end, power=0.7),
        schedule.warmup_stable_decay(start, steps=steps, warmup=0, decay=steps, end=end, shape="sqrt"),
        schedule.warmup_stable_decay(start, steps=steps, warmup=0, decay=steps, end=end, shape="cosine"),
    ]:
        assert curve(0) == start and curve(steps) == curve(steps + 1) == curve(10**9) == end
        low, high = min(start, end), max(start, end)
        room = 1e-14 * max(abs(low), abs(high))
        assert all(low - room <= curve(update) <= high + room for update in range(0, steps, max(1, steps // 20)))


def test_a_warm_up_in_front_is_the_warm_up_inside():
    inside = schedule.cosine(0.3, steps=80, warmup=8)
    front = schedule.warmup(schedule.cosine(0.3, steps=72), steps=8)
    assert [inside(update) for update in range(100)] == [front(update) for update in range(100)]


@given(st.integers(20, 2000), st.integers(1, 6), st.floats(0.5, 2.0))
@settings(deadline=None, max_examples=100)
def test_cycles_fill_the_steps_in_whole_updates_and_grow(steps, cycles, growth):
    starts = cycle_starts(steps, cycles, growth)
    lengths = [b - a for a, b in pairwise(starts)]
    assert starts[0] == 0 and starts[-1] == steps and len(lengths) == cycles
    for short, long in pairwise(lengths):
        assert long == pytest.approx(short * growth, abs=1 + growth)  # each was rounded


def test_every_cycle_begins_at_the_peak():
    curve = schedule.cosine(0.1, steps=113, warmup=13, restarts=2, growth=1.5)
    peaks = [update for update in range(113) if curve(update) == 0.1]
    assert peaks == [13 + start for start in cycle_starts(100, 3, 1.5)[:-1]] and curve(113) == 0.0


def test_stable_means_stable():
    curve = schedule.warmup_stable_decay(0.1, steps=50, warmup=10, decay=0, end=0.0)
    assert {curve(update) for update in range(10, 90)} == {0.1}


def test_exponential_stops_at_its_end_in_both_directions():
    assert schedule.exponential(1.0, gamma=0.5, end=0.3)(10**5) == 0.3
    assert schedule.exponential(1.0, gamma=2.0, end=3.0)(10**5) == 3.0
    with pytest.raises(InvalidArgument, match="has no finite value at update 100000"):
        schedule.exponential(1.0, gamma=2.0)(10**5)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: schedule.constant(math.nan), r"schedule\.constant: value is nan; expected a finite number"),
        (lambda: schedule.linear(1, math.inf, 3), r"schedule\.linear: end is inf; expected a finite number"),
        (lambda: schedule.linear(1, 0, 0), r"schedule\.linear: steps is 0; expected at least 1"),
        (lambda: schedule.cosine(1, steps=-5), r"schedule\.cosine: steps is -5; expected at least 1"),
        (lambda: schedule.cosine(1, steps=5, warmup=6), "warmup is 6; expected at most steps, which is 5"),
        (lambda: schedule.cosine(1, steps=5, warmup=-1), "warmup is -1; expected at least 0"),
        (lambda: schedule.cosine(1, steps=5, growth=0), "growth is 0.0; expected more than 0"),
        (lambda: schedule.cosine(1, steps=5, restarts=-1), "restarts is -1; expected at least 0"),
        (lambda: schedule.cosine(1, steps=5, restarts=5), "restarts is 5; expected cycles of an update or more"),
        (lambda: schedule.cosine(1, steps=9, restarts=4, growth=9), "of the 9 there are .growth is 9.0"),
        (lambda: schedule.exponential(1, gamma=0), "gamma is 0.0; expected more than 0"),
        (lambda: schedule.exponential(1, gamma=0.5, end=2), "end is 2.0; expected a value on the way down from 1.0"),
        (lambda: schedule.step(1, every=0), "every is 0; expected at least 1"),
        (lambda: schedule.step(1, every=1, gamma=-1), "gamma is -1.0; expected at least 0"),
        (lambda: schedule.multistep(1, milestones=[3, 3]), r"milestones is \(3, 3\); expected update numbers"),
        (lambda: schedule.multistep(1, milestones=[-1]), r"milestones is \(-1,\)"),
        (lambda: schedule.polynomial(1, steps=3, power=0), "power is 0.0; expected more than 0"),
        (lambda: schedule.one_cycle(1, steps=1), "one_cycle: steps is 1; expected at least 2"),
        (lambda: schedule.one_cycle(1, steps=9, rise=1), "rise is 1.0; expected a fraction"),
        (lambda: schedule.inverse_sqrt(1, warmup=-1), "inverse_sqrt: warmup is -1"),
        (lambda: schedule.noam(0, warmup=1), "noam: width is 0; expected at least 1"),
        (lambda: schedule.noam(8, warmup=0), "noam: warmup is 0; expected at least 1"),
        (
            lambda: schedule.warmup_stable_decay(1, steps=9, warmup=5, decay=5),
            r"schedule\.warmup_stable_decay: decay is 5; expected at most steps - warmup, which is 4",
        ),
    ],
)
def test_settings_that_make_no_sense_are_named(make, text):
    with pytest.raises(InvalidArgument, match=text):
        make()
