"""The bars of the issue: each names contenders that are measured there, and says met or not."""

import pytest

from benchmarks import fit, gpu
from benchmarks._bars import BARS, verdict, verdicts


def took(micros, reserved=100.0):
    return {"µs per update": [micros, micros, 10 * micros], "memory, MB": {"reserved": reserved}}


@pytest.mark.parametrize(("device", "work"), list(BARS), ids="-".join)
def test_a_bar_is_between_contenders_that_are_measured_at_the_workload(device, work):
    measured = fit.contenders_of(work) if device == "cpu" else gpu.WORKLOADS[work]
    for bar in BARS[device, work]:
        assert {bar.contender, *bar.rivals} <= {*measured}


def test_a_verdict_is_against_the_best_rival_that_was_measured():
    found = {"dataloader": took(900.0), "fused": took(500.0), "stoker": took(450.0)}
    assert list(verdicts(found, "cpu", "digits")) == ["stoker against fused: 0.900, bar ≤ 1: met"]
    found["stoker"] = took(501.0)
    assert list(verdicts(found, "cpu", "digits")) == ["stoker against fused: 1.002, bar ≤ 1: NOT met"]


def test_memory_has_a_bar_too():
    found = {"fused": took(1.0, reserved=1000.0), "stoker": took(1.0, reserved=1101.0)}
    assert [line for line in verdicts(found, "cuda", "gpt") if "memory" in line] == [
        "memory of stoker against fused: 1.101, bar ≤ 1.1: NOT met"
    ]


def test_what_was_not_measured_is_not_judged():
    assert list(verdicts({"stoker": took(1.0)}, "cpu", "toy")) == []
    assert list(verdicts({}, "cpu", "tabular")) == []


def test_a_bar_is_met_when_it_is_reached():
    assert verdict("x", 1.05, 1.05).endswith(": met")
