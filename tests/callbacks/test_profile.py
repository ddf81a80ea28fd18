import gzip
import json

import pytest

from stoker import InvalidArgument
from stoker.callbacks import Callback, Hooks, Profile
from tests.callbacks.fits import context, train


def updates_in(trace):
    """How often the model's first layer was run: once an update."""
    return sum(event.get("name") == "aten::tanh" for event in trace["traceEvents"])


def test_the_trace_contains_the_chosen_updates(tmp_path):
    path = tmp_path / "deep" / "trace.json"
    ctx = train([Profile(path, updates=(2, 5))], epochs=2, batches=4)
    assert updates_in(json.loads(path.read_text())) == 3
    assert [note.text for note in ctx.record.events_of("note")] == [f"wrote the trace of updates 3 to 5 to {path}"]


def test_a_short_fit_writes_the_updates_it_did_and_gz_is_compressed(tmp_path):
    path = tmp_path / "trace.json.gz"
    train([Profile(path, updates=(2, 500))], epochs=1, batches=4)
    with gzip.open(path) as file:
        assert updates_in(json.load(file)) == 2
    path = tmp_path / "none.json"
    ctx = train([Profile(path)], epochs=1, batches=4)
    (warning,) = ctx.record.events_of("warning")
    assert "wrote nothing: the fit ended after 4 updates" in warning.text and not path.exists()


def test_an_exception_stops_the_profiler_and_writes_the_trace(tmp_path):
    path = tmp_path / "trace.json"

    class Broken(Callback):
        def on_update(self, ctx):
            raise RuntimeError("boom")

    profile = Profile(path, updates=(0, 5))
    with pytest.raises(RuntimeError, match="boom"):
        train([profile, Broken()])
    Hooks([profile]).fire("on_exception", context())
    assert updates_in(json.loads(path.read_text())) == 1
    train([profile])  # another fit has its own trace
    assert updates_in(json.loads(path.read_text())) == 5


@pytest.mark.parametrize("updates", [(5, 5), (5, 2), (-1, 3)])
def test_the_updates_are_a_range(tmp_path, updates):
    with pytest.raises(InvalidArgument, match=r"updates is \(first, last\) with 0 <= first < last"):
        Profile(tmp_path / "trace.json", updates=updates)


def test_a_run_resumed_after_those_updates_keeps_the_trace(tmp_path):
    path = tmp_path / "trace.json"
    ctx, profile = train([Profile(path, updates=(2, 4))], epochs=1, batches=6), Profile(path, updates=(2, 4))
    text = path.read_text()
    again, hooks = context(record=ctx.record), Hooks([profile])
    again.update = 6
    for name in ("on_fit_begin", "on_train_batch_begin", "on_update", "on_fit_end"):
        hooks.fire(name, again)
    assert path.read_text() == text and not ctx.record.events_of("warning")
