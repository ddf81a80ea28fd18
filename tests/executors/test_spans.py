"""Compiled steps that run in spans give the bits, records and checkpoints of steps that run one by one."""

import json
import os
import signal

import pytest
import torch
from torch import nn

import stoker
from stoker import callbacks, data, metrics, optim, schedule
from stoker.engine.executors import _compiled
from tests.executors.fits import (
    AfterEveryBatch,
    Feature,
    assert_identical,
    batch_norm_net,
    interpret_graphs,
    plan_of,
    results_of,
    rng_states,
    run,
    samples,
)

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def spans(monkeypatch, few_points):
    """The number of batches of each span that has run."""
    interpret_graphs(monkeypatch)
    found, run_span = [], _compiled.Compiled.run_span

    def count(self, first, rows, rates):
        done = run_span(self, first, rows, rates)
        found.append(done.batches)
        return done

    monkeypatch.setattr(_compiled.Compiled, "run_span", count)
    return found


def many_features(**settings):
    """Batch norm, dropout, schedules by selector, EMA, clipping and metrics; 12 batches an epoch and a short one."""
    return Feature(
        lambda: nn.Sequential(*batch_norm_net(), nn.Dropout(0.3)),
        lambda: data.Loader(samples(100), batch_size=8, shuffle=3),
        lambda: {
            "lr": {"0.*": schedule.cosine(0.02, steps=60), "*": 0.01},
            "metrics": [metrics.Accuracy(), metrics.GradientNorm()],
            "clip_norm": 0.5,
            "ema": 0.75,
            **settings,
        },
        lambda: {"epochs": 5, "valid": samples()},
    )


def points_of(fitted):
    """The curve of a fit: updates, and values by name."""
    parts = [event.extra["points"] for event in fitted.record.events if event.extra.get("points")]
    names = {name for part in parts for name in part["values"]}
    values = {name: [each for part in parts for each in part["values"][name]] for name in names}
    return [update for part in parts for update in part["update"]], values


@pytest.mark.parametrize("accumulate", [1, 3])
def test_spans_give_the_bits_and_the_curve_of_single_steps(accumulate, spans):
    feature = many_features(accumulate=accumulate)
    single = run(feature, callbacks=[AfterEveryBatch()])
    assert not spans
    together = run(feature)
    assert plan_of(together).mode == "compiled"
    assert max(spans) == 12
    assert_identical(results_of(together), results_of(single))
    assert rng_states(together) == rng_states(single)
    assert points_of(together) == points_of(single)


def test_a_span_ends_where_a_limit_a_validation_or_a_checkpoint_is_due(spans, tmp_path):
    whole = run(many_features(), run=tmp_path / "whole", validate_every=7)
    assert max(spans) == 7
    saved = {"run": tmp_path / "run", "checkpoint": stoker.Checkpoint(every=5), "validate_every": 7}
    first = run(many_features(), updates=23, **saved)
    assert first.updates == 23
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    assert {5, 10, 15, 20} <= {event.get("update") for event in events if event["kind"] == "checkpoint"}
    again = run(many_features(), resume=True, **saved)
    assert_identical(results_of(again), results_of(whole))


class InterruptSpan(callbacks.Callback):
    """Sends a signal in the second epoch, when the learning rates of a span are computed."""

    is_armed = False

    def on_epoch_begin(self, ctx):
        self.is_armed = ctx.epoch == 2

    def rate(self, update):
        if update == 20 and self.is_armed:
            self.is_armed = False
            os.kill(os.getpid(), signal.SIGINT)
        return 0.01


def test_a_signal_stops_after_the_span_and_the_run_resumes_to_the_same_bits(spans, tmp_path):
    interrupt = InterruptSpan()
    feature = many_features(lr=interrupt.rate)
    whole = run(feature, run=tmp_path / "whole")
    stopped = run(feature, run=tmp_path / "run", callbacks=[interrupt])
    assert stopped.updates == 25  # the twelve batches of the span, in an epoch of thirteen
    assert_identical(results_of(run(feature, run=tmp_path / "run", resume=True)), results_of(whole))


def test_an_exception_of_a_signal_handler_inside_of_a_span_ends_the_fit(spans, monkeypatch, tmp_path):
    whole = run(many_features(), run=tmp_path / "whole")

    def compile_graph(graph, inputs, **_):
        calls = iter(range(10**9))

        def call(tensors):
            if next(calls) == 20:  # in the span of the second epoch
                os.kill(os.getpid(), signal.SIGALRM)
            return graph(*tensors)

        return call

    def handle(number, frame):
        raise TimeoutError("a limit of the user's own")

    with monkeypatch.context() as patched:
        patched.setattr(_compiled, "compile_graph", compile_graph)
        before = signal.signal(signal.SIGALRM, handle)
        try:
            with pytest.raises(TimeoutError, match="a limit of the user's own"):
                run(many_features(), run=tmp_path / "run")
        finally:
            signal.signal(signal.SIGALRM, before)
    error = stoker.Record.open(tmp_path / "run").events_of("error")[0]
    assert (error.epoch, error.batch) == (2, 3)  # where the span began
    assert_identical(results_of(run(many_features(), run=tmp_path / "run", resume=True)), results_of(whole))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_nan_inside_of_a_span_stops_before_it_and_keeps_the_weights(accumulate, spans, tmp_path):
    def samples_with(bad):
        x, y = samples(96)
        x[8 * 6 + 3, 2] = float("nan") if bad else 1.0  # the seventh batch
        return data.Loader((x, y), batch_size=8)

    def feature(*, bad):
        return Feature(batch_norm_net, lambda: samples_with(bad), lambda: {"accumulate": accumulate})

    with pytest.raises(stoker.NotFinite, match="not finite at epoch 1, batch 7: .* holds NaN"):
        run(feature(bad=True), run=tmp_path / "run")
    error = stoker.Record.open(tmp_path / "run").events_of("error")[0]
    assert (error.batch, error.update) == (7, 6 // accumulate)
    good = run(feature(bad=False), run=tmp_path / "good")
    assert_identical(results_of(run(feature(bad=False), run=tmp_path / "run", resume=True)), results_of(good))


def test_a_parameter_that_is_unfrozen_between_epochs_is_averaged_in_spans_too(spans):
    """SGD without momentum has no state that a new parameter would need, which runs one step alone."""

    def frozen_net():
        model = batch_norm_net()
        stoker.freeze(model, "0")
        return model

    def unfreeze(ctx):
        if ctx.epoch == 3:
            stoker.unfreeze(ctx.model, "0")

    def averages(**fit):
        feature = Feature(
            frozen_net,
            lambda: data.Loader(samples(96), batch_size=8),
            lambda: {"ema": 0.75, "optimizer": optim.SGD(), "lr": 0.1},
            lambda: {"epochs": 4, **fit},
            callbacks=lambda: [callbacks.on(epoch_begin=unfreeze)],
        )
        return run(feature)

    together, single = averages(), averages(callbacks=[AfterEveryBatch(), callbacks.on(epoch_begin=unfreeze)])
    assert max(spans) > 2
    assert_identical(results_of(together), results_of(single))
    assert not torch.equal(together.model[0].weight, frozen_net()[0].weight)
