"""`compile=True` on a GPU: programs inside of CUDA graphs, and programs up to the gradients.

The traced steps run node by node, as in test_compiled.py. A few tests of test_cuda_graph.py run the real compiler.
"""

import os
import signal

import pytest

from tests.executors.fits import (
    FEATURES,
    assert_close,
    assert_identical,
    interpret_graphs,
    plan_of,
    results_of,
    rng_states,
    run,
    warnings_of,
)
from tests.executors.test_compiled import CLOSE, HalveGradients
from tests.executors.unsupported import ALGORITHMS, SUPPORTED, UNSUPPORTED, with_algorithm

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("double")]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    interpret_graphs(monkeypatch)


@pytest.mark.parametrize("name", [*FEATURES, *SUPPORTED])
def test_a_compiled_step_gives_the_results_of_the_eager_step(name):
    feature = {**FEATURES, **SUPPORTED}[name]
    eager, compiled = run(feature, device="cuda", eager=True), run(feature, device="cuda")
    assert plan_of(compiled).mode == "compiled" and not warnings_of(compiled), plan_of(compiled).reason
    assert_close(results_of(compiled), results_of(eager), **CLOSE)
    assert rng_states(compiled) == rng_states(eager)


@pytest.mark.parametrize("name", FEATURES)
def test_a_callback_between_backward_and_update_leaves_forward_and_backward_compiled(name):
    feature, of_eager, of_compiled = FEATURES[name], HalveGradients(), HalveGradients()
    eager = run(feature, device="cuda", eager=True, callbacks=[of_eager])
    compiled = run(feature, device="cuda", callbacks=[of_compiled])
    assert plan_of(compiled).mode == ("eager" if "objectives" in name else "compiled_backward"), plan_of(
        compiled
    ).reason
    assert_close(results_of(compiled), results_of(eager), **CLOSE)
    for actual, expected in zip(of_compiled.seen, of_eager.seen, strict=True):
        assert actual[:2] == expected[:2] and actual[2] == pytest.approx(expected[2], rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_compiled_or_the_plan_says_why_not(name):
    eager, compiled = (run(with_algorithm(name), device="cuda", eager=eager) for eager in (True, False))
    plan = plan_of(compiled)
    assert plan.mode == "compiled" or plan.reason
    assert_close(results_of(compiled), results_of(eager), **CLOSE)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_step_that_cannot_be_compiled_runs_in_another_way_and_gives_the_reason(name):
    case = UNSUPPORTED[name]
    eager, fitted = (run(case.feature, device="cuda", eager=eager, epochs=3) for eager in (True, False))
    assert plan_of(fitted).mode != "compiled" and plan_of(fitted).reason
    assert_close(results_of(fitted), results_of(eager), **CLOSE)


class StopInWindow(HalveGradients):
    """Asks to stop within an accumulation window, as Ctrl-C does."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, ctx):
        if (ctx.epoch, ctx.batch_number) == (2, self.batch):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["accumulate", "masked accumulated", "own loss accumulated"])
@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
def test_a_run_that_stops_in_an_accumulation_window_resumes_to_the_same_bits(name, compile, batch, tmp_path):
    feature = FEATURES[name]
    whole = run(feature, device="cuda", compile=compile, run=tmp_path / "whole", callbacks=[StopInWindow(0)])
    run(feature, device="cuda", compile=compile, run=tmp_path / "cut", callbacks=[StopInWindow(batch)])
    resumed = run(
        feature, device="cuda", compile=compile, run=tmp_path / "cut", resume=True, callbacks=[StopInWindow(0)]
    )
    assert resumed.updates == whole.updates
    assert_identical(results_of(resumed), results_of(whole))
