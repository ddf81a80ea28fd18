"""The screen of `stoker watch`: what it shows, and what keys and the mouse do."""

import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.widgets import ContentSwitcher

from stoker.record import Event, Follower
from stoker.view.watch import _reader
from stoker.view.watch._panes import contrast
from tests.view.watch.scenes import START, control_of, epoch, make, progress, settled, text_of, watching

PICTURES = Path(__file__).parent / "pictures"


@pytest.fixture(autouse=True)
def _plain_surroundings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "COLORFGBG", "TEXTUAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def running():
    """A run in its seventh epoch; this process writes it, so its state is "running"."""
    run = make("runs/digits")
    progress(run, 7, 25, at=START + 65)
    yield run
    run.close()


async def shown(pilot):
    return text_of(pilot.app)


def pressing(*keys):
    """A story that presses keys and returns the screen's text."""

    async def story(pilot):
        for key in keys:
            await pilot.press(key)
        return await settled(pilot)

    return story


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=["80x24", "200x60"])
@pytest.mark.usefixtures("running")
def test_a_running_run(size):
    text = watching(["runs/digits"], shown, size=size)
    expected = (PICTURES / f"{size[0]}x{size[1]}.txt").read_text()
    assert [line.rstrip() for line in text.splitlines()] == expected.splitlines()


@pytest.mark.usefixtures("running")
def test_a_large_terminal_shows_several_charts():
    text = watching(["runs/digits"], shown, size=(200, 60))
    assert sum(line.count("└") for line in text.splitlines() if "┬" in line) == 4, "loss, accuracy, lr and memory"
    assert "loss  ━ train/loss  ━ valid/loss" in text and "accuracy  ━ train/accuracy" in text


@pytest.mark.parametrize("light", [False, True], ids=["dark", "light"])
@pytest.mark.usefixtures("running")
def test_text_has_a_contrast_of_at_least_4_5(light):
    async def story(pilot):
        await settled(pilot)
        strips = pilot.app.screen._compositor.render_strips()
        return [segment for strip in strips for segment in strip]

    low = {}
    for segment in watching(["runs/digits"], story, size=(120, 40), light=light):
        style, text = segment.style, segment.text.strip("┈─│╭╮╰╯━ ")
        if text and style is not None and style.color is not None and style.bgcolor is not None and not style.dim:
            found = contrast(style.color.get_truecolor(), style.bgcolor.get_truecolor())
            if found < 4.49:
                low[text] = round(found, 2)
    assert not low, low


KEYS = [  # pressed one after the other, with words on the screen afterwards
    ("right", ["━ train/accuracy", "━ valid/accuracy"]),
    ("left", ["━ train/loss"]),
    ("left", ["━ gpu_memory"]),
    ("3", ["━ lr"]),
    ("9", ["━ lr"]),  # the run has fewer metrics
    ("1", ["━ train/loss", "  raw linear update"]),
    ("plus", ["mean 1%"]),
    ("plus", ["mean 3%"]),
    ("minus", ["mean 1%"]),
    ("y", ["mean 1% log update"]),
    ("y", ["mean 1% linear"]),
    ("x", ["0:30", "1:00", "linear time"]),
    ("x", ["200"]),
    ("down", ["━ train/loss"]),
    ("down", ["1      2      3      4      5      6"]),
    ("up", ["200"]),
    ("i", ["model      Net, 1,234 parameters", "config.model.hidden  128"]),
    ("escape", ["━ train/loss"]),
    ("t", ["━ train/loss"]),
    ("question_mark", ["save a checkpoint", "quit the viewer; the run continues", "Escape closes this"]),
    ("escape", ["━ train/loss"]),
]


@pytest.mark.usefixtures("running")
def test_keys():
    async def story(pilot):
        assert pilot.app.current_theme.dark
        texts = []
        for key, _ in KEYS:
            await pilot.press(key)
            texts.append(await settled(pilot))
        assert not pilot.app.current_theme.dark
        return texts

    for (key, words), text in zip(KEYS, watching(["runs/digits"], story), strict=True):
        assert all(word in text for word in words), f"after {key}:\n{text}"


def test_the_log_page(running):
    running.log("line one\nline two")
    running.record.append(Event("warning", START + 66, text="it is hot"))

    async def story(pilot):
        pages = pilot.app.query_one("#pages", ContentSwitcher)
        await pilot.press("l")
        text = await settled(pilot)
        await pilot.press("l")
        return text, pages.current

    text, page = watching(["runs/digits"], story)
    assert "line one" in text and "warning: it is hot" in text and "╭─ log" not in text
    assert page == "run"


@pytest.mark.usefixtures("running")
def test_the_mouse():
    async def story(pilot):
        lines = text_of(pilot.app).splitlines()
        found = []
        for pane, word in (("#tabs", "accuracy"), ("#controls", "epochs"), ("#metrics", "lr")):
            place = pilot.app.query_one(pane)
            row = next(y for y in range(place.region.y, place.region.bottom) if word in lines[y][place.region.x :])
            column = lines[row].index(word, place.region.x)
            await pilot.click(pane, offset=(column - place.region.x + 1, row - place.region.y))
            await settled(pilot)
            found.append((pilot.app.snapshot.tab, pilot.app.view.kind))
        return found

    assert watching(["runs/digits"], story) == [("accuracy", "history"), ("accuracy", "epochs"), ("lr", "epochs")]


def test_stopping_a_run_asks_first(running):
    async def story(pilot):
        await pilot.press("s")
        question = await settled(pilot)
        await pilot.press("enter")  # "no" has the focus
        await pilot.press("s")
        await pilot.press("n")
        untouched = not (running.path / "control.json").exists()
        await pilot.press("s")
        await pilot.press("y")
        await settled(pilot, until=lambda app: (running.path / "control.json").exists())
        return question, untouched

    question, untouched = watching(["runs/digits"], story)
    assert "Stop digits after this update? It saves a checkpoint first." in " ".join(question.split())
    assert untouched
    assert (control_of(running.path)["ask"], control_of(running.path)["by"]) == ("stop", "watch")


def test_saving_does_not_ask(running):
    async def story(pilot):
        await pilot.press("c")
        return await settled(pilot, until=lambda app: "asked digits to save" in text_of(app))

    watching(["runs/digits"], story)
    assert control_of(running.path)["ask"] == "save"


def test_an_ended_run_can_not_be_stopped():
    make("runs/digits", epochs=2, end=True)

    async def story(pilot):
        await pilot.press("s")
        return await settled(pilot, until=lambda app: "not running" in text_of(app))

    text = " ".join(watching(["runs/digits"], story).split())
    assert "can't stop: the run is not" in text and "(state: finished)" in text
    assert not os.path.exists("runs/digits/control.json")


def test_a_failed_run_shows_its_error():
    run = make("runs/digits", epochs=2)
    run.record.append(
        Event("error", START + 21, epoch=2, text="RuntimeError: out of memory", extra={"traceback": "File a.py"})
    )
    run.close()
    text = watching(["runs/digits"], shown)
    assert " failed " in text and "reason  RuntimeError: out of memory" in text and "File a.py" in text


def test_a_run_that_is_killed_and_deleted_while_it_is_watched(running):
    with open("runs/digits/events.jsonl", "ab") as file:
        file.write(b"\x00\xff not json\n")

    async def story(pilot):
        running.close()  # as after a kill: no end event, and no process that writes
        died = await settled(pilot, until=lambda app: app.snapshot.run.state == "died")
        shutil.rmtree("runs/digits")
        return died, await settled(pilot, until=lambda app: app.snapshot.run.state == "gone")

    died, gone = watching(["runs/digits"], story)
    assert "the process ended without finishing the run" in died and "a damaged line was skipped" in died
    assert "the run's directory does not exist any more" in gone and "train/loss" in gone


def test_new_values_appear(running):
    async def story(pilot):
        epoch(running, 7)
        running.record.append(Event("epoch", START + 71, epoch=7, update=350, values={"new": 1.0}))
        return await settled(
            pilot, until=lambda app: app.snapshot.run.status.update == 350 and "new" in app.snapshot.tabs
        )

    text = watching(["runs/digits"], story)
    assert "7 of 20" in text and "update   350" in text
    assert "speed    6.40k samples/s" in text, "it stays between two epochs"


def test_a_run_without_values():
    run = make("runs/digits", epochs=0)
    text = watching(["runs/digits"], shown)
    run.close()
    assert "no metrics yet" in text and "nothing to draw yet" in text and "starting" in text


def test_several_runs_share_a_chart(running):
    make("runs/other", worse=0.3, end=True)

    async def story(pilot):
        first = text_of(pilot.app)
        await pilot.press("r")
        return first, await settled(pilot)

    first, second = watching(["runs/digits", "runs/other"], story, size=(120, 30))
    assert "1 train/loss" in first and "━ digits  ━ other" in first and "(1 of 2 runs)" in first
    assert "runs/other" in second and "(2 of 2 runs)" in second and "Completed 6 epochs" in second


@pytest.mark.parametrize("size", [(20, 8), (300, 100)], ids=str)
@pytest.mark.usefixtures("running")
def test_any_size(size):
    assert "running" in watching(["runs/digits"], shown, size=size)


def test_hostile_names_are_shown_as_text(running):
    names = ["[red]bold", "a\x1b[2Jb", "x" * 10_000, "[@click=app.quit]q", "ü\u202ee"]
    running.record.append(
        Event("epoch", START + 71, epoch=7, update=350, values=dict.fromkeys((f"valid/{name}" for name in names), 1.0))
    )
    running.log("[red]in the log[/red]\x1b[2J")
    text = watching(["runs/digits"], pressing("left"), size=(120, 40))
    assert "\x1b" not in text and "\u202e" not in text
    assert "[red]bold" in text and "[red]in the log[/red]" in text


def test_the_screen_is_updated_behind_a_dialog(running):
    async def story(pilot):
        await pilot.press("question_mark")
        epoch(running, 7)
        await settled(pilot, until=lambda app: app.snapshot.run.status.update == 350)
        pilot.app._update_banner()
        helped = text_of(pilot.app)
        await pilot.press("escape")
        return helped, await settled(pilot)

    helped, after = watching(["runs/digits"], story)
    assert "the run continues" in helped and "update   350" in after


def test_a_stalled_disk_does_not_block_the_screen(running, monkeypatch):
    """The second read never returns."""
    never, stalled = threading.Event(), threading.Event()
    follower = Follower("runs/digits")
    refresh, reads = follower.refresh, []

    def stall(*, seconds):
        reads.append(seconds)
        if len(reads) > 1:
            stalled.set()
            never.wait()
        return refresh(seconds=seconds)

    monkeypatch.setattr(follower, "refresh", stall)

    async def story(pilot):
        while not stalled.is_set():
            await pilot.pause(0.01)
        monkeypatch.setattr(_reader, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 60))
        text = await settled(pilot, until=lambda app: "the disk has not answered for 1:0" in text_of(app))
        await pilot.press("right", "question_mark", "escape", "t", "q")
        return text

    assert "waiting  the disk has not answered for 1:0" in watching([follower], story)
    never.set()


def test_many_metrics_scroll_to_the_chosen_one(running):
    values = {f"metric{place}": float(place) for place in range(50)}
    running.record.append(Event("epoch", START + 71, epoch=7, update=350, values=values))

    async def story(pilot):
        texts = []
        for _ in range(3):
            await pilot.press(*["right"] * 9)
            texts.append((pilot.app.view.tab, await settled(pilot)))
        return texts

    for tab, text in watching(["runs/digits"], story):
        assert text.count(tab) >= 3, "in the tabs, the table and the legend"
        assert "‹" in text and "›" in text
