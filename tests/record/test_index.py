"""The index that a writer leaves beside a large record, and the readers that trust it only as far as they have to."""

from dataclasses import replace

import numpy as np
import pytest

from stoker.record import Event, Follower, Run, find_runs

NAMES = [f"train/m{number}" for number in range(10)]


def write_run(path, *, epochs=20):
    """A run of 20 epochs with 100 points each, about 300 kB."""
    numbers = np.random.default_rng(0)
    run = Run.create(path)
    record = run.record
    record.append(Event("begin", 1e9, extra={"epochs": epochs, "batches": 100, "monitor": "valid/loss"}))
    for epoch in range(1, epochs + 1):
        place = (1e9 + epoch, epoch, 100, 100 * epoch)
        updates = list(range(100 * epoch - 99, 100 * epoch + 1))
        values = {name: numbers.random(100).tolist() for name in NAMES}
        points = {"update": updates, "time": [1e9 + epoch] * 100, "values": values}
        record.append(Event("progress", *place, extra={"phase": "train", "points": points, "window": {}}))
        record.append(Event("log", *place, values={"odd": float("nan") if epoch < 3 else 1.0}))
        cells = {f"valid/confusion/{row}/{column}": 1.0 * epoch for row in (0, 1) for column in (0, 1)}
        record.append(Event("valid", *place, values={"valid/loss": abs(epoch - 7) / 10, **cells}))
        record.append(Event("epoch", *place, values={"valid/loss": abs(epoch - 7) / 10}))
    record.append(Event("warning", *place, text="careful"))
    record.append(Event("stop", *place, text="Completed 20 epochs"))
    record.append(Event("end", *place, extra={"seconds": 20.0}))
    run.close()
    return run.path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def copy(path, tmp_path):
    """A copy that a test may damage."""
    (tmp_path / "copy").mkdir()
    for file in path.iterdir():
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "copy"


def read(path, seconds):
    follower = Follower(path)
    follower.refresh(seconds=seconds)
    return follower


def same_answers(a, b):
    status = [replace(each.status, updates_per_second=None) for each in (a, b)]
    return a.summary == b.summary and status[0] == status[1] and a.names == b.names and a.matrices == b.matrices


def test_the_index_answers_as_the_whole_record_does(path):
    (listed,), whole = find_runs(path.parent, read=False), read(path, None)
    assert listed.has_unread and not whole.has_unread
    assert same_answers(listed, whole) and listed.summary["best"]["epoch"] == 7
    assert [event.text for event in listed.messages] == [event.text for event in whole.messages]
    for name in ("valid/loss", "odd"):
        assert np.array_equal(listed.points(name).value, whole.points(name).value, equal_nan=True)
    curve, full = listed.points("train/m3", source="running"), whole.points("train/m3", source="running")
    assert len(full) == 2000 and 250 < len(curve) <= 500
    assert (curve.value.min(), curve.value.max()) == (full.value.min(), full.value.max())
    assert np.isin(curve.update, full.update).all() and len(listed.points("valid/loss", source="running")) == 0
    assert len(listed.points("nothing")) == 0
    listed.refresh()
    assert not listed.has_unread and same_answers(listed, whole) and len(listed.points("train/m3")) == 2000


def test_an_index_of_another_content_is_ignored(copy):
    run = Run.resume(copy)
    run.record.append(Event("valid", 2e9, 21, 100, 2100, {"valid/loss": -1.0}))
    assert read(copy, 0).summary["best"]["value"] == -1.0  # while it is being written
    run.close()
    follower = read(copy, 0)
    assert follower.has_unread and follower.summary["best"]["update"] == 2100  # the writer has replaced the index


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"[]\n",
        lambda content: content.replace(b'"excerpt": ', b'"excerpt": -'),
        lambda content: content.replace(b'"curves": {', b'"curves": 5, "x": {'),
        lambda content: content.replace(b'"train/m3": {', b'"train/m3": 5, "x": {'),
        lambda content: content.replace(b'"all": [', b'"all": [-'),
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b'"kind":"', b'"kind":5,"'),
        lambda content: content.replace(b'"format": 1', b'"format": 2'),
    ],
)
def test_a_damaged_index_does_not_raise(copy, damage):
    content = (copy / "index.bin").read_bytes()
    (copy / "index.bin").write_bytes(damage(content))
    follower = read(copy, 0)
    assert len(follower.points("train/m3")) <= 2000 and follower.state in ("finished", "died")
    follower.refresh()
    assert same_answers(follower, read(copy, None)) and len(follower.points("train/m3")) == 2000


def test_a_link_in_its_place_is_not_followed_outside(copy, tmp_path):
    (copy / "index.bin").rename(tmp_path / "elsewhere")
    (copy / "index.bin").symlink_to(tmp_path / "elsewhere")
    follower = Follower(copy, inside=copy.resolve())
    follower.refresh(seconds=0)
    assert not follower.has_unread  # it was read without the index
