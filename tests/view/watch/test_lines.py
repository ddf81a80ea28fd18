"""The lines of a picture, against the numbers of the run."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.record import Event, Follower
from stoker.view.watch._lines import lines_of, smoothed, tabs_of
from stoker.view.watch._view import View
from tests.view.watch.scenes import START, make, progress


@pytest.fixture
def follower(tmp_path):
    run = make(tmp_path / "digits", epochs=4)
    found = Follower(tmp_path / "digits")
    found.refresh()
    yield found
    run.close()


def test_one_run_has_a_picture_a_metric_and_several_one_a_number(follower):
    assert tabs_of([follower])["loss"] == ["train/loss", "valid/loss"]
    assert list(tabs_of([follower, follower]))[:2] == ["train/loss", "train/accuracy"]


def test_train_and_valid_have_their_colours(follower):
    lines = lines_of([follower], ["train/loss", "valid/loss", "test/loss"], View())
    assert [(line.name, line.style) for line in lines] == [("train/loss", "#0072B2"), ("valid/loss", "#E69F00")]
    assert len(lines[0].x) == 40 and lines[1].x.tolist() == [50, 100, 150, 200]


def test_a_second_run_has_the_next_colour(follower):
    lines = lines_of([follower, follower], ["valid/loss"], View())
    assert [line.style for line in lines] == ["#E69F00", "#009E73"]


def test_over_the_time_and_by_epoch(follower):
    assert lines_of([follower], ["valid/loss"], View(by="time"))[0].x.tolist() == [10, 20, 30, 40]
    assert lines_of([follower], ["valid/loss"], View(kind="epochs"))[0].x.tolist() == [1, 2, 3, 4]


def test_recent_is_the_end_of_every_line(tmp_path):
    run = make(tmp_path / "long", epochs=50)
    follower = Follower(tmp_path / "long")
    follower.refresh()
    train, valid = lines_of([follower], ["train/loss", "valid/loss"], View(kind="recent"))
    run.close()
    assert len(train.x) == 300 and valid.x[0] >= train.x[0] and valid.x[-1] == 2500


def test_smoothing_lies_over_the_true_line(follower):
    below, above = lines_of([follower], ["train/loss"], View(smoothing=3))
    assert (below.name, above.name) == ("", "train/loss") and below.style != above.style
    assert np.abs(np.diff(above.y)).max() < np.abs(np.diff(below.y)).max()


def test_what_a_validation_says_on_the_way_is_not_drawn(tmp_path):
    run = make(tmp_path / "digits", epochs=2)
    progress(run, 3, 10, at=START + 31, loss=9.0, phase="valid")
    follower = Follower(tmp_path / "digits")
    follower.refresh()
    found = lines_of([follower], ["valid/loss"], View())[0]
    run.close()
    assert found.y.max() < 9 and len(found.x) == 2


def test_a_long_line_is_thinned_and_keeps_its_peak(tmp_path):
    run = make(tmp_path / "digits", epochs=0)
    for update in range(5000):
        value = 100.0 if update == 1234 else 1.0
        run.record.append(Event("log", START + update, update=update, values={"norm": value}))
    follower = Follower(tmp_path / "digits")
    follower.refresh()
    line = lines_of([follower], ["norm"], View())[0]
    run.close()
    assert len(line.x) <= 2000 and line.y.max() == 100.0


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=60), st.sampled_from([0.01, 0.1, 0.3]))
def test_smoothing_stays_within_the_numbers_and_keeps_gaps(values, share):
    found = smoothed(np.array(values), share)
    assert (np.isnan(found) == np.isnan(values)).all()
    finite = [value for value in values if not math.isnan(value)]
    if finite:
        room = 1e-6 + 1e-9 * max(map(abs, finite))
        assert np.nanmin(found) >= min(finite) - room and np.nanmax(found) <= max(finite) + room


def test_smoothing_is_the_mean_of_what_is_around():
    assert smoothed(np.array([0.0, 3.0, 6.0, 9.0, 12.0]), 0.6).tolist() == [1.5, 3.0, 6.0, 9.0, 10.5]
