"""What a tracker sends to its sink, and what a bad sink costs."""

import math
import threading

import pytest

from stoker import InvalidArgument
from stoker.callbacks import Hooks, Tracked, Tracker, on
from stoker.checkpoint import Store
from stoker.record import Event
from tests.callbacks.fits import context, epoch_end
from tests.callbacks.sinks import Failing, Hanging, Listed
from tests.callbacks.tracked_fits import CONFIG, cut_off_and_resume, fit, points, warnings


def begin(tracker):
    """A fit that has begun: its context and hooks."""
    ctx, hooks = context(), Hooks([tracker])
    hooks.fire("on_fit_begin", ctx)
    return ctx, hooks


def recorded_warnings(ctx):
    return [event.text for event in ctx.record.events_of("warning")]


def append(ctx, kind, update, **values):
    named = {name.replace("_", "/", 1): value for name, value in values.items()}
    extra = {"phase": "train"} if kind == "progress" else {}
    ctx.record.append(Event(kind, time=100.0 + update, epoch=1, update=update, values=named, extra=extra))


def test_a_run_is_sent_from_beginning_to_end_by_another_thread(tmp_path):
    sink = Listed()
    run = fit(Tracker(sink), run=tmp_path / "digits")
    assert sink.points() == points(run) and list(sink.points()) == ["train/loss", "valid/loss"]
    assert sink.calls[-1] == ("close", "finished") and [call[0] for call in sink.calls].count("open") == 1
    about = sink.run
    assert (about.id, about.name, about.update) == (run.id, "digits", 0)
    assert about.config == CONFIG and about.facts["seed"] == 0 and about.folder == tmp_path / "digits" / "tracker"
    assert not about.folder.exists()  # the sink creates it if it needs it
    assert warnings(run) == []
    (thread,) = sink.threads
    assert thread is not threading.current_thread() and thread.daemon and not thread.is_alive()


def test_running_values_have_their_own_names_and_are_sent_every_few_seconds():
    sink = Listed()
    ctx, hooks = begin(Tracker(sink, progress=5))
    for second in (0, 1, 4, 5, 9, 10, 3):  # the clock is set back at the end
        for phase in ("train", "valid"):
            values = {f"{phase}/loss": float(second)}
            ctx.record.append(Event("progress", 100.0 + second, 1, 1, second, values, extra={"phase": phase}))
    hooks.fire("on_interrupt", ctx)
    hooks.fire("on_fit_end", ctx)
    assert sink.points(running=True) == {"running/train/loss": [(0, 0.0), (5, 5.0), (10, 10.0), (3, 3.0)]}
    assert sink.points() == {} and sink.calls[-1] == ("close", "interrupted")


def test_the_event_of_an_epoch_adds_what_was_not_sent_yet():
    sink = Listed()
    ctx, hooks = begin(Tracker(sink))
    epoch_end(hooks, ctx, train_loss=math.nan, valid_loss=0.5)
    ctx.log("temperature", 36.6)
    values = {"train/loss": math.nan, "valid/loss": 0.25, "temperature": 36.6, "lr": 0.1}
    ctx.record.append(Event("epoch", epoch=1, update=10, values=values))
    ctx.record.append(Event("train", epoch=2, update=20, values={"train/loss": math.nan}))
    hooks.fire("on_fit_end", ctx)
    written = [tuple(call[1]) for call in sink.calls if call[0] == "write"]
    assert written == [("train/loss",), ("valid/loss",), ("temperature",), ("valid/loss", "lr"), ("train/loss",)]


def test_notes_and_warnings_are_sent_as_text(tmp_path):
    sink = Listed()

    def speak(ctx):
        ctx.note("half way")
        ctx.warn("careful")

    fit(Tracker(sink), run=tmp_path / "run", epochs=1, more=[on(epoch_end=speak)])
    assert sink.texts == ["note: half way", "warning: careful"]


def test_an_exception_closes_the_run_as_failed(tmp_path):
    sink = Listed()

    def boom(ctx):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fit(Tracker(sink), run=tmp_path / "run", more=[on(epoch_end=boom)])
    assert sink.calls[-1] == ("close", "failed") and sink.texts == ["error: RuntimeError: boom"]


def test_a_fit_that_fails_before_its_first_value_is_closed_once():
    sink = Listed()
    ctx, hooks = begin(Tracker(sink))
    hooks.fire("on_exception", ctx)
    hooks.fire("on_exception", ctx)
    assert [call[0] for call in sink.calls] == ["open", "close"]


def test_a_resumed_run_continues_the_same_run_and_repeats_the_last_update(tmp_path):
    sinks = []

    def make():
        sinks.append(Listed())
        return Tracker(sinks[-1], progress=None)

    run = cut_off_and_resume(make, tmp_path / "run")
    first, second = sinks
    assert first.run.id == second.run.id == run.id
    assert (first.run.update, second.run.update) == (0, 8)
    assert [call[1] for call in (first.calls[-1], second.calls[-1])] == ["failed", "finished"]
    # What the first one sent before that update, and everything that the second one sent, is the record.
    before = {name: [point for point in found if point[0] < 8] for name, found in first.points().items()}
    assert {name: before[name] + found for name, found in second.points().items()} == points(run)
    assert [update for update, _ in second.points()["train/loss"]] == [8, 12, 16]


def test_the_id_is_beside_the_state_and_stays_when_a_fit_without_a_run_directory_is_continued(tmp_path):
    sink = Listed()
    tracker = Tracker(sink)
    ctx, hooks = begin(tracker)
    ctx.note("before the first value")
    epoch_end(hooks, ctx, train_loss=1.0)
    hooks.fire("on_fit_end", ctx)
    hooks.fire("on_fit_begin", ctx)
    epoch_end(hooks, ctx, train_loss=0.5)
    hooks.fire("on_fit_end", ctx)
    hooks.fire("on_fit_begin", context())
    hooks.fire("on_fit_end", ctx)
    first, continued, new = [call[1] for call in sink.calls if call[0] == "open"]
    assert first.id == continued.id != new.id and (continued.update, new.update) == (10, 0)
    assert sink.texts == ["note: before the first value"]
    states = []
    for name in "ab":
        run = fit(Tracker(Listed()), run=tmp_path / name, epochs=1)
        store = Store(run.path / "checkpoints", run=run.id)
        states.append(store.read(store.saved()[-1])["callbacks"])
    assert states[0] == states[1] == {}
    assert hooks.load_states({"Gone": {}}) == ["Gone"]


def test_values_that_the_sink_has_already_are_not_sent_again():
    sink = Listed(existing={(1, "train/loss"): 0.5, (1, "train/gap"): math.nan, (2, "train/late"): 1.0})
    ctx, hooks = begin(Tracker(sink))
    append(ctx, "train", 1, train_loss=0.5, train_gap=math.nan, train_late=1.0)
    append(ctx, "valid", 1, train_loss=0.25)  # another value
    hooks.fire("on_fit_end", ctx)
    assert [call[1] for call in sink.calls if call[0] == "write"] == [{"train/late": 1.0}, {"train/loss": 0.25}]


@pytest.mark.parametrize("error", [ConnectionError, SystemExit])
@pytest.mark.parametrize(
    "methods", [("open",), ("write",), ("text",), ("close",), ("open", "write", "text", "close")], ids=str
)
def test_a_failing_sink_costs_one_warning_and_nothing_else(methods, error):
    sink = Failing(*methods, error=error)
    ctx, hooks = begin(Tracker(sink))
    for epoch in range(3):
        append(ctx, "train", epoch, train_loss=1.0 + epoch)
        ctx.note("hello")
    hooks.fire("on_fit_end", ctx)
    lost = "it receives nothing" if "open" in methods else "some values are missing there"
    (warning,) = recorded_warnings(ctx)
    assert warning == f"Tracker failed, and training continues; {lost}: {error.__name__}: no route to host"
    calls = [call[0] for call in sink.calls]
    assert calls == ["open"] if "open" in methods else calls.count("write") == 3 and calls[-1] == "close"


@pytest.mark.parametrize("method", ["open", "write", "close"])
def test_a_hanging_sink_costs_its_patience_and_one_warning(tmp_path, method):
    sink = Hanging(method)
    run = fit(Tracker(sink, patience=0.05), run=tmp_path / "run")
    assert sink.reached.is_set()
    (warning,) = warnings(run)
    assert warning.startswith("Tracker did not finish within 0.05 seconds; ")
    assert run.summary()["state"] == "finished"
    sink.released.set()


def test_a_slow_sink_misses_running_values_and_no_final_ones():
    sink = Hanging("open")
    ctx, hooks = begin(Tracker(sink, progress=0))
    for update in range(1_005):
        append(ctx, "progress", update, train_loss=1.0)
    assert sink.reached.wait(30)
    for update in range(7):
        append(ctx, "train", update, train_loss=float(update))
    assert recorded_warnings(ctx) == [
        "Tracker is too slow: it misses running values, and everything beyond 100,000 queued calls"
    ]
    sink.released.set()
    hooks.fire("on_fit_end", ctx)
    assert len(sink.points(running=True)["running/train/loss"]) == 1_000 and len(sink.points()["train/loss"]) == 7


@pytest.mark.soak
def test_the_queue_of_a_hanging_sink_is_limited_and_the_sink_is_still_closed():
    sink = Hanging("open")
    ctx, hooks = begin(Tracker(sink, patience=120))
    for number in range(100_005):
        append(ctx, "train", number, train_loss=float(number))
    (problem,) = recorded_warnings(ctx)
    assert problem.startswith("Tracker is too slow: ")
    sink.released.set()
    hooks.fire("on_fit_end", ctx)
    assert len(sink.calls) == 1 + 100_000 + 1 and sink.calls[-1] == ("close", "finished")


def test_without_a_thread_nothing_is_sent_and_one_warning_says_so(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    sink = Listed()
    ctx, hooks = begin(Tracker(sink))
    monkeypatch.setattr(threading.Thread, "start", start)
    append(ctx, "train", 1, train_loss=1.0)
    hooks.fire("on_fit_end", ctx)
    assert sink.calls == []
    assert recorded_warnings(ctx) == [
        "Tracker failed, and training continues; it receives nothing: RuntimeError: can't start new thread"
    ]


@pytest.mark.parametrize("error", [None, ImportError, SystemExit])
def test_a_sink_is_prepared_in_the_main_thread_before_the_fit_and_may_fail_there(error):
    prepared = []

    class Prepared(Listed):
        def prepare(self):
            prepared.append((threading.current_thread(), list(self.calls)))
            if error is not None:
                raise error("not installed")

    sink = Prepared()
    ctx, hooks = begin(Tracker(sink))
    assert prepared == [(threading.current_thread(), [])]
    hooks.fire("on_fit_end", ctx)
    assert [call[0] for call in sink.calls] == ["open", "close"] and len(prepared) == 1


def test_wrong_arguments_are_rejected():
    with pytest.raises(InvalidArgument, match="progress is a number of seconds of at least 0"):
        Tracker(Listed(), progress=-1)
    with pytest.raises(InvalidArgument, match="patience is a finite number of seconds of at least 0; got inf"):
        Tracker(Listed(), patience=math.inf)
    with pytest.raises(AttributeError):
        Tracked("1f", "digits", None, {"lr": 0.1}, {}, 0, 1.0).name = "other"
