import json
import math
import threading

import pytest

from stoker import InvalidArgument, StateMismatch
from stoker.callbacks import Hooks, Tracker, on
from stoker.record import Event
from tests.callbacks.fits import context, epoch_end
from tests.callbacks.sinks import Failing, Hanging, Listed
from tests.callbacks.tracked import CONFIG, cut_off_and_resumed, fit, points, warnings


def test_a_run_is_tracked_to_its_end(tmp_path):
    sink = Listed()
    run = fit(Tracker(sink), run=tmp_path / "digits")
    assert sink.points() == points(run) and list(sink.points()) == ["train/loss", "valid/loss"]
    assert sink.calls[-1] == ("close", "finished") and [call[0] for call in sink.calls].count("open") == 1
    about = sink.run
    assert (about.id, about.name, about.update) == (run.id, "digits", 0)
    assert about.config == CONFIG and about.facts["seed"] == 0 and about.folder == tmp_path / "digits" / "tracker"
    assert not about.folder.exists()  # the sink's to make
    assert warnings(run) == []


def test_numbers_on_the_way_have_names_of_their_own_and_come_now_and_then():
    ctx, sink = context(), Listed()
    hooks = Hooks([Tracker(sink, progress=5)])
    hooks.fire("on_fit_begin", ctx)
    for second in (0, 1, 4, 5, 9, 10, 3):  # the clock is put back at the end
        for phase in ("train", "valid"):
            name = f"{phase}/loss"
            ctx.record.append(
                Event("progress", 100.0 + second, 1, 1, second, {name: float(second)}, extra={"phase": phase})
            )
    hooks.fire("on_fit_end", ctx)
    assert sink.points(running=True) == {"running/train/loss": [(0, 0.0), (5, 5.0), (10, 10.0), (3, 3.0)]}
    assert sink.points() == {}


def test_without_progress_only_final_numbers_come(tmp_path):
    sink = Listed()
    fit(Tracker(sink, progress=None), run=tmp_path / "run")
    assert sink.points(running=True) == {} and sink.points()


def test_an_epochs_event_adds_what_was_not_told_yet():
    ctx, sink = context(), Listed()
    hooks = Hooks([Tracker(sink)])
    hooks.fire("on_fit_begin", ctx)
    epoch_end(hooks, ctx, train_loss=math.nan, valid_loss=0.5)
    ctx.log("temperature", 36.6)
    values = {"train/loss": math.nan, "valid/loss": 0.25, "temperature": 36.6, "lr": 0.1}
    ctx.record.append(Event("epoch", epoch=1, update=10, values=values))
    ctx.record.append(Event("train", epoch=2, update=20, values={"train/loss": math.nan}))
    hooks.fire("on_fit_end", ctx)
    written = [tuple(call[1]) for call in sink.calls if call[0] == "write"]
    assert written == [("train/loss",), ("valid/loss",), ("temperature",), ("valid/loss", "lr"), ("train/loss",)]


def test_what_the_run_says_is_text(tmp_path):
    sink = Listed()

    def speak(ctx):
        ctx.note("half way")
        ctx.warn("careful")

    fit(Tracker(sink), run=tmp_path / "run", epochs=1, more=[on(epoch_end=speak)])
    assert sink.said == ["note: half way", "warning: careful"]


def test_an_exception_ends_the_trackers_run_as_failed(tmp_path):
    sink = Listed()

    def boom(ctx):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fit(Tracker(sink), run=tmp_path / "run", more=[on(epoch_end=boom)])
    assert sink.calls[-1] == ("close", "failed") and sink.said == ["error: RuntimeError: boom"]


def test_a_fit_that_fails_before_its_first_number_is_closed_too():
    sink, ctx = Listed(), context()
    hooks = Hooks([Tracker(sink)])
    hooks.fire("on_fit_begin", ctx)
    hooks.fire("on_exception", ctx)
    assert [call[0] for call in sink.calls] == ["open", "close"]
    hooks.fire("on_exception", ctx)  # it is over
    assert len(sink.calls) == 2


def test_an_interrupt_ends_it_as_interrupted():
    sink, ctx = Listed(), context()
    hooks = Hooks([Tracker(sink)])
    for name in ("on_fit_begin", "on_interrupt", "on_fit_end"):
        hooks.fire(name, ctx)
    assert sink.calls[-1] == ("close", "interrupted")


def test_a_resumed_run_goes_on_with_the_same_one_and_says_what_stands(tmp_path):
    sinks = []

    def make():
        sinks.append(Listed())
        return Tracker(sinks[-1], progress=None)

    run = cut_off_and_resumed(make, tmp_path / "run")
    first, second = sinks
    assert first.run.id == second.run.id == run.id
    assert (first.run.update, second.run.update) == (0, 8)
    assert [call[1] for call in (first.calls[-1], second.calls[-1])] == ["failed", "finished"]
    # What the first one said up to there, and all that the second one says, is the record.
    stands = {name: [point for point in found if point[0] < 8] for name, found in first.points().items()}
    assert {name: stands[name] + found for name, found in second.points().items()} == points(run)
    assert [update for update, _ in second.points()["train/loss"]] == [8, 12, 16]


def test_a_fit_without_a_run_that_goes_on_keeps_its_id():
    sink, ctx = Listed(), context()
    tracker = Tracker(sink)
    hooks = Hooks([tracker])
    hooks.fire("on_fit_begin", ctx)
    epoch_end(hooks, ctx, train_loss=1.0)
    hooks.fire("on_fit_end", ctx)
    state = json.loads(json.dumps(tracker.state_dict()))
    hooks.fire("on_fit_begin", ctx)
    ctx.note("before the state is there")
    tracker.load_state_dict(state)
    epoch_end(hooks, ctx, train_loss=0.5)
    hooks.fire("on_fit_end", ctx)
    opened = [call[1] for call in sink.calls if call[0] == "open"]
    assert opened[0].id == opened[1].id == state["id"] and opened[1].update == 10
    assert "note: before the state is there" in sink.said
    hooks.fire("on_fit_begin", context())
    assert tracker.state_dict() != state  # another fit


@pytest.mark.parametrize("where", [("open",), ("write",), ("text",), ("close",), ("open", "write", "text", "close")])
def test_a_failing_tracker_costs_a_warning_and_nothing_else(tmp_path, where):
    run = fit(Tracker(Failing(*where)), run=tmp_path / "run", more=[on(epoch_end=lambda ctx: ctx.note("hello"))])
    (warning,) = warnings(run)
    assert warning.startswith("Tracker failed, and the run goes on; ") and warning.endswith("no route to host")
    assert run.summary()["state"] == "finished"
    plain = fit(Tracker(Listed()), run=tmp_path / "plain")
    assert points(run) == points(plain)


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_a_hanging_tracker_costs_its_patience_and_a_warning(tmp_path, where):
    sink = Hanging(where)
    run = fit(Tracker(sink, patience=0.05), run=tmp_path / "run")
    assert sink.reached.is_set()
    (warning,) = warnings(run)
    assert warning.startswith("Tracker was not done 0.05 seconds after the end; ")
    assert run.summary()["state"] == "finished"
    sink.released.set()


@pytest.mark.parametrize("error", [None, ImportError, SystemExit])
def test_a_sink_is_prepared_by_the_fits_own_thread_before_it_begins_and_may_fail_there(error):
    prepared = []

    class Prepared(Listed):
        def prepare(self):
            prepared.append((threading.current_thread(), list(self.calls)))
            if error is not None:
                raise error("no such thing")

    ctx, sink = context(), Prepared()
    hooks = Hooks([Tracker(sink)])
    hooks.fire("on_fit_begin", ctx)
    assert prepared == [(threading.current_thread(), [])]
    hooks.fire("on_fit_end", ctx)
    assert [call[0] for call in sink.calls] == ["open", "close"] and len(prepared) == 1


def test_files_need_a_folder_or_a_run(tmp_path):
    with pytest.raises(
        InvalidArgument,
        match=r"Tracker writes files, and nothing says where: give the fit a run=..., or Tracker a folder=...",
    ):
        fit(Tracker(Listed(), needs_folder=True))
    sink = Listed()
    fit(Tracker(sink, needs_folder=True, folder=tmp_path / "here"), epochs=1)
    assert sink.run.folder == tmp_path / "here" and sink.run.name == "fit" and sink.run.facts["model"] == "Linear"


def test_wrong_settings_and_states_are_refused():
    with pytest.raises(InvalidArgument, match="progress is in seconds, from 0 up"):
        Tracker(Listed(), progress=-1)
    with pytest.raises(InvalidArgument, match="patience is in seconds, from 0 up, and comes to an end; got inf"):
        Tracker(Listed(), patience=math.inf)
    with pytest.raises(StateMismatch, match="the state of Tracker has id; got nothing"):
        Tracker(Listed()).load_state_dict({})
