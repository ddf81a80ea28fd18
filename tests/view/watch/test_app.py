"""The screen as people see and use it, small and large, by key and by mouse."""

import os
import shutil
from pathlib import Path

import pytest
from textual.widgets import ContentSwitcher

from stoker.record import Event
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
    """A run in the middle of its seventh epoch; this process writes it, so it is alive."""
    run = make("runs/digits")
    progress(run, 7, 25, at=START + 65)
    yield run
    run.close()


async def shown(pilot):
    return text_of(pilot.app)


def pressing(*keys):
    """A story that presses keys, waits for what they ask for, and looks."""

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


KEYS = [  # pressed one after the other, and what is to be seen then
    ("right", ["━ train/accuracy", "━ valid/accuracy"]),
    ("left", ["━ train/loss"]),
    ("left", ["━ gpu_memory"]),
    ("3", ["━ lr"]),
    ("9", ["━ lr"]),  # there is no ninth
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
    ("question_mark", ["ask the run to save a checkpoint", "leave; the run goes on", "Escape closes this"]),
    ("escape", ["━ train/loss"]),
]


@pytest.mark.usefixtures("running")
def test_keys():
    async def story(pilot):
        texts = []
        for key, _ in KEYS:
            await pilot.press(key)
            texts.append(await settled(pilot))
        return texts

    for (key, words), text in zip(KEYS, watching(["runs/digits"], story), strict=True):
        assert all(word in text for word in words), f"after {key}:\n{text}"


def test_the_log_and_back(running):
    running.log("line one\nline two")
    running.record.append(Event("warning", START + 66, text="it is hot"))

    async def story(pilot):
        pages = pilot.app.query_one("#pages", ContentSwitcher)
        await pilot.press("l")
        text = await settled(pilot)
        await pilot.press("l")
        return text, pages.current

    text, page = watching(["runs/digits"], story)
    assert "line one" in text and "warning: it is hot" in text and "lately" not in text
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
            found.append((pilot.app.scene.tab, pilot.app.view.kind))
        return found

    assert watching(["runs/digits"], story) == [("accuracy", "history"), ("accuracy", "epochs"), ("lr", "epochs")]


@pytest.mark.usefixtures("running")
def test_light_and_dark():
    async def story(pilot):
        first = pilot.app.current_theme.dark
        await pilot.press("t")
        return first, pilot.app.current_theme.dark

    assert watching(["runs/digits"], story) == (True, False)
    assert watching(["runs/digits"], story, light=True) == (False, True)


def test_a_question_before_the_run_is_asked_to_stop(running):
    async def story(pilot):
        await pilot.press("s")
        question = await settled(pilot)
        await pilot.press("enter")  # pressed too soon: the harmless button has the focus
        await pilot.press("s")
        await pilot.press("n")
        untouched = not (running.path / "control.json").exists()
        await pilot.press("s")
        await pilot.press("y")
        await settled(pilot, until=lambda app: (running.path / "control.json").exists())
        return question, untouched

    question, untouched = watching(["runs/digits"], story)
    assert "Stop digits after this update? A checkpoint is kept to go on from." in " ".join(question.split())
    assert untouched
    assert (control_of(running.path)["ask"], control_of(running.path)["by"]) == ("stop", "watch")


def test_a_look_that_comes_when_the_screen_is_being_taken_down(running):
    async def story(pilot):
        await pilot.app.query_one("#banner").remove()
        pilot.app.warn()  # as the clock does, once a second
        return pilot.app.scene is not None

    assert watching(["runs/digits"], story)


def test_saving_needs_no_question(running):
    async def story(pilot):
        await pilot.press("c")
        return await settled(pilot, until=lambda app: "was asked to save" in text_of(app))

    watching(["runs/digits"], story)
    assert control_of(running.path)["ask"] == "save"


def test_a_run_that_is_over_is_not_asked():
    make("runs/digits", epochs=2, end=True)

    async def story(pilot):
        await pilot.press("s")
        return await settled(pilot, until=lambda app: "there is nobody" in text_of(app))

    text = " ".join(watching(["runs/digits"], story).split())
    assert "The run has stopped: there is nobody" in text
    assert not os.path.exists("runs/digits/control.json")


def test_a_failed_run_shows_its_last_words():
    run = make("runs/digits", epochs=2)
    run.record.append(
        Event("error", START + 21, epoch=2, text="RuntimeError: out of memory", extra={"traceback": "File a.py"})
    )
    run.close()
    text = watching(["runs/digits"], shown)
    assert " died " in text and "last words  RuntimeError: out of memory" in text and "File a.py" in text


def test_a_killed_run_shows_as_dead_while_it_is_watched(running):
    async def story(pilot):
        running.close()  # what remains when a process is killed: no end, and nobody who writes
        return await settled(pilot, until=lambda app: app.scene.run.state == "died")

    assert "the process ended without finishing the run" in watching(["runs/digits"], story)


def test_a_run_that_is_deleted_under_the_viewer(running):
    async def story(pilot):
        running.close()
        shutil.rmtree("runs/digits")
        return await settled(pilot, until=lambda app: app.scene.run.state == "gone")

    text = watching(["runs/digits"], story)
    assert "the run's directory is gone" in text and "train/loss" in text


def test_a_damaged_record(running):
    with open("runs/digits/events.jsonl", "ab") as file:
        file.write(b"\x00\xff not json\n")
    assert "a damaged line was skipped" in watching(["runs/digits"], shown)


def test_numbers_that_come_while_it_watches(running):
    async def story(pilot):
        epoch(running, 7)
        running.record.append(Event("epoch", START + 71, epoch=7, update=350, values={"new": 1.0}))
        return await settled(pilot, until=lambda app: app.scene.run.status.update == 350 and "new" in app.scene.tabs)

    text = watching(["runs/digits"], story)
    assert "7 of 20" in text and "update   350" in text


def test_nothing_to_see_yet():
    run = make("runs/digits", epochs=0)
    text = watching(["runs/digits"], shown)
    run.close()
    assert "no numbers yet" in text and "nothing to draw yet" in text and "starting" in text


def test_several_runs_are_laid_over_each_other(running):
    make("runs/other", worse=0.3, end=True)

    async def story(pilot):
        first = text_of(pilot.app)
        await pilot.press("r")
        return first, await settled(pilot)

    first, second = watching(["runs/digits", "runs/other"], story, size=(120, 30))
    assert "1 train/loss" in first and "━ digits  ━ other" in first and "(1 of 2 runs)" in first
    assert "runs/other" in second and "(2 of 2 runs)" in second and "Completed 6 epochs" in second


@pytest.mark.parametrize("size", [(20, 8), (40, 12), (300, 100)], ids=str)
@pytest.mark.usefixtures("running")
def test_any_size(size):
    assert "running" in watching(["runs/digits"], shown, size=size)


def test_hostile_names_are_text(running):
    names = ["[red]bold", "a\x1b[2Jb", "x" * 10_000, "[@click=app.quit]q", "ü\u202ee"]
    running.record.append(
        Event("epoch", START + 71, epoch=7, update=350, values=dict.fromkeys((f"valid/{name}" for name in names), 1.0))
    )
    running.log("[red]in the log[/red]\x1b[2J")
    text = watching(["runs/digits"], pressing("left"), size=(120, 40))
    assert "\x1b" not in text and "\u202e" not in text
    assert "[red]bold" in text and "[red]in the log[/red]" in text


def test_it_goes_on_behind_a_window(running):
    async def story(pilot):
        await pilot.press("question_mark")
        epoch(running, 7)
        await settled(pilot, until=lambda app: app.scene.run.status.update == 350)
        pilot.app.warn()
        helped = text_of(pilot.app)
        await pilot.press("escape")
        return helped, await settled(pilot)

    helped, after = watching(["runs/digits"], story)
    assert "leave; the run goes on" in helped and "update   350" in after
