"""A record in memory and a directory give the same answers."""

import numpy as np
import pytest

from stoker.errors import BadFile, WrongType
from stoker.record import Run
from stoker.view.report import Remembered, as_readable
from tests.record.stories import fill, story


@pytest.fixture
def run(tmp_path):
    made = Run.create(tmp_path / "digits", config={"lr": 0.1})
    fill(made.record)
    made.close()
    return made


def test_a_directory_and_a_record_answer_alike(run):
    there, here = as_readable(run.path), Remembered(run.record)
    assert set(there.names) == set(here.names) and there.state == here.state == "finished"
    for name in here.names:
        for source in ("epochs", "running"):
            a, b = there.points(name, source=source), here.points(name, source=source)
            assert set(zip(a.update, a.epoch, a.value, strict=True)) == set(
                zip(b.update, b.epoch, b.value, strict=True)
            )
        assert there.direction(name) == here.direction(name) and there.unit(name) == here.unit(name)
        assert there.best(name) == here.best(name)
    assert there.summary["best"] == here.summary["best"] and there.begin == here.begin
    assert [event.kind for event in there.said] == [event.kind for event in here.said]


def test_however_a_run_is_given(run):
    for given in (run, run.path, str(run.path), as_readable(run)):
        assert as_readable(given).name == "digits"
    assert as_readable(run.record).name == "a fit"
    assert len(as_readable(story()).points("nothing")) == 0
    assert np.isnan(as_readable(story(epochs=0)).points("train/loss").value).tolist() == []


def test_what_is_no_run(tmp_path):
    with pytest.raises(BadFile, match="no run"):
        as_readable(tmp_path)
    with pytest.raises(WrongType, match="a Run, a Follower or a Record; got int"):
        as_readable(3)


def test_a_run_that_cannot_be_read_is_not_waited_for(run, monkeypatch):
    tries = []

    def refused(self):
        tries.append(self.path)
        if len(tries) > 3:
            pytest.fail("it tries on and on")
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("stoker.record._tail.Tail.blocks", refused)
    assert "Permission denied" in as_readable(run.path).problem
