"""Media of a run: what is written is PNG, JSON, text or WAV; what is read is never trusted."""

import io
import json
import os
import wave

import numpy as np
import pytest
import torch
from PIL import Image

from stoker.errors import BadFile, InvalidArgument, MissingFile, WrongType
from stoker.record import Event, MediaLimits, Record, Run, media_path, read_media
from tests.record.examples import follow


def pixels(run):
    (event,) = run.record.media
    return np.asarray(Image.open(io.BytesIO(read_media(run.path, event))))


COLORS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (COLORS, COLORS),
        (torch.from_numpy(COLORS).permute(2, 0, 1), COLORS),
        (torch.from_numpy(COLORS).permute(2, 0, 1).to(torch.bfloat16) / 255, COLORS),
        (torch.ones(3, 3, 3).requires_grad_(), np.full((3, 3, 3), 255)),
        (COLORS[:, :, 0], COLORS[:, :, 0]),
        (COLORS[:, :, :1].astype(np.float64) / 255, COLORS[:, :, 0]),
        (COLORS.astype(np.int64) + 1000, np.full((4, 5, 3), 255)),
        (np.array([[np.nan, -1.0], [0.5, 2.0]]), np.array([[0, 0], [128, 255]])),
        (np.array([[True, False]]), np.array([[255, 0]])),
        (Image.fromarray(COLORS), COLORS),
        (np.dstack([COLORS, COLORS[:, :, 0]]), np.dstack([COLORS, COLORS[:, :, 0]])),
    ],
    ids=["HWC", "CHW", "bfloat16", "ones", "HW", "HW1", "ints", "odd", "bools", "PIL", "RGBA"],
)
def test_an_image_is_the_same_after_reading_its_png(run, image, expected):
    run.log_image("it", image)
    found = pixels(run)
    assert found.shape == expected.shape and np.abs(found.astype(int) - expected).max() <= 1  # bfloat16 rounds


def test_a_batch_is_a_grid(run):
    run.log_image("it", torch.stack([torch.full((1, 4, 6), level / 4) for level in range(5)]))
    grid = pixels(run)
    assert grid.shape == (2 * 4 + 2, 3 * 6 + 2 * 2)
    assert [grid[0, 0], grid[0, 8], grid[0, 16], grid[6, 0], grid[6, 8], grid[6, 16]] == [0, 64, 128, 191, 255, 0]


@pytest.mark.parametrize(
    "image",
    ["<svg onload=alert(1)>", b"<html>", "picture.png", [["a"]], np.zeros((0, 3)), np.zeros((9, 9, 9)), None, 1.0],
)
def test_what_is_not_an_image_is_refused(run, image):
    with pytest.raises((WrongType, InvalidArgument), match="log_image"):
        run.log_image("it", image)
    assert run.record.media == [] and not (run.path / "media").exists()


def test_histograms_texts_tables_and_sounds_can_be_read_back(run):
    values = np.r_[np.arange(100.0), np.nan, np.inf]
    run.log_histogram("h", torch.from_numpy(values), bins=10, update=3)
    run.log_text("t", "<script>alert(1)</script> ü", caption="a text")
    rows = [{"a": 1, "b": float("nan")}, {"a": torch.tensor(2), "c": np.float32(0.5)}]
    run.log_table("rows", rows)
    run.log_table("columns", {"x": [1, 2], "y": ["p", None]})
    pandas = pytest.importorskip("pandas")
    run.log_table("frame", pandas.DataFrame({"x": [1, 2]}))
    sound = np.sin(np.arange(800) / 10)
    run.log_audio("s", sound, 8000)
    events = {event.extra["name"]: event for event in follow(run).media}
    content = {name: read_media(run.path, event) for name, event in events.items()}
    histogram = json.loads(content["h"])
    assert histogram["counts"] == [10] * 10 and histogram["edges"][0] == 0 and events["h"].update == 3
    assert events["h"].extra["not_finite"] == 2 and events["h"].extra["maximum"] == 99
    assert content["t"].decode() == "<script>alert(1)</script> ü" and events["t"].extra["caption"] == "a text"
    assert json.loads(content["rows"]) == {"columns": ["a", "b", "c"], "rows": [[1, "NaN", None], [2, None, 0.5]]}
    assert json.loads(content["columns"]) == {"columns": ["x", "y"], "rows": [[1, "p"], [2, None]]}
    assert json.loads(content["frame"]) == {"columns": ["x"], "rows": [[1], [2]]}
    with wave.open(io.BytesIO(content["s"])) as file:
        found = np.frombuffer(file.readframes(800), "<i2") / 32767
        assert (file.getframerate(), file.getnchannels()) == (8000, 1) and np.abs(found - sound).max() < 1e-4


def test_an_item_replaces_one_of_the_same_name_and_update_and_void_ones_are_gone(run):
    run.record.append(Event("note", text="first"))
    kept = len(run.record)
    for level in (0.0, 1.0):
        run.log_image("it", np.full((2, 2), level), update=7)
    run.log_text("other", "text", update=7)
    assert [event.extra["file"] for event in run.record.media] == ["media/00000007-it.png", "media/00000007-other.txt"]
    assert read_media(run.path, run.record.media[0]) != b"" and len(follow(run).media) == 2
    run.record.rewind(kept, Event("resume", update=0, extra={"checkpoint": None}))
    assert run.record.media == follow(run).media == []


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/passwd", "a/b", "a b", ".hidden", "CON", "x" * 200, "日本", "a\0b\n", "..", "<img>"]
)
def test_any_name_is_a_plain_file_in_media(run, name):
    run.log_text(name, "text")
    (event,) = follow(run).media
    assert event.extra["name"] == name
    path = media_path(run.path, event)
    assert path.parent == run.path / "media" and path.read_text() == "text" and len(path.name) < 120
    assert [each.name for each in (run.path / "media").iterdir()] == [path.name]


def test_names_that_clean_to_the_same_get_files_of_their_own(run):
    for name in ("a/b", "a_b", "a b", "A_B"):
        run.log_text(name, name)
    assert {read_media(run.path, event).decode() for event in run.record.media} == {"a/b", "a_b", "a b", "A_B"}


@pytest.mark.parametrize(
    "file",
    ["media/../run.json", "../run.json", "/etc/passwd", "media/x.svg", "media/x.html", "media//x.png", "run.json",
     "media/.x.png", "media/a/../../run.json", "media\\x.png", "media/x.png\n", 5, None],
)  # fmt: skip
def test_an_event_that_names_another_file_is_no_media(run, file):
    extra = {"name": "it", "type": "image", "file": file}
    run.record.append(Event("media", extra=extra))
    assert run.record.media == follow(run).media == []
    with pytest.raises(BadFile, match="a media event names the file"):
        media_path(run.path, Event("media", extra=extra))


def test_links_pipes_and_pages_in_disguise_are_refused(run, tmp_path):
    run.log_image("it", np.zeros((2, 2)))
    (event,) = run.record.media
    path = media_path(run.path, event)
    path.write_text("<html><script>alert(1)</script>")
    for read in (media_path, read_media):
        with pytest.raises(BadFile, match="expected image/png"):
            read(run.path, event)
    path.unlink()
    with pytest.raises(MissingFile):
        read_media(run.path, event)
    path.symlink_to(tmp_path / "run" / "run.json")
    with pytest.raises(BadFile, match="symbolic link"):
        read_media(run.path, event)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadFile, match="not a regular file"):
        media_path(run.path, event)
    path.unlink()
    (run.path / "media").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (run.path / "media").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadFile, match="symbolic link"):
        media_path(run.path, event)
    run.log_image("it", np.zeros((2, 2)))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert "symbolic link" in run.record.events_of("warning")[-1].text


def test_what_is_beyond_the_limits_is_left_out_with_one_warning_each(run):
    run.record.media_limits = MediaLimits(item_bytes=100, items=2)
    for number in range(3):
        run.log_text("long", "x" * 101, update=number)
        run.log_text("short", "x" * 100, update=number)
    run.log_text("short", "y", update=1)  # replaces one
    assert len(run.record.media) == 2
    texts = [event.text for event in run.record.events_of("warning")]
    assert ["101 bytes" in texts[0], "2 media items" in texts[1], len(texts)] == [True, True, 2]


def test_without_a_directory_only_listeners_get_media():
    record, received = Record(), []
    log = Run(None, record, config=None, facts={})
    log.log_text("it", "text")
    record.subscribe(received.append)
    log.log_text("it", "text")
    assert [event.kind for event in record.events] == ["note"] and record.media == []
    assert [event.extra["content"] for event in received] == [b"text"]
