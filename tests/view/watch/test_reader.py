"""Reading beside the screen: a disk that hangs, a reader that fails, a process that writes."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stoker.record import Follower
from stoker.view.watch._app import Dashboard
from stoker.view.watch._reader import Reader
from tests.view.watch.scenes import make, settled, watching

ROOT = Path(__file__).parents[3]
WRITER = """
import sys
from tests.view.watch.scenes import make, epoch
run = make(sys.argv[1], epochs=1)
print("ready", flush=True)
for number in range(2, 99):
    sys.stdin.readline()
    epoch(run, number)
"""


@pytest.fixture
def run(tmp_path):
    run = make(tmp_path / "digits", epochs=2)
    yield run
    run.close()


def test_a_disk_that_hangs_keeps_nobody_from_leaving(run, monkeypatch):
    """The second look at the disk never comes back."""
    never, hanging = threading.Event(), threading.Event()
    app = Dashboard([Follower(run.path)])
    refresh = app.reader.followers[0].refresh
    looks = []

    def hang(*, seconds):
        looks.append(seconds)
        if len(looks) > 1:
            hanging.set()
            never.wait()
        return refresh(seconds=seconds)

    monkeypatch.setattr(app.reader.followers[0], "refresh", hang)

    async def story():
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot)
            while not hanging.is_set():
                await pilot.pause(0.01)
            app.reader.busy_since -= 60.0  # a minute later
            app.warn()
            await pilot.pause()
            text = app.query_one("#banner").render()
            await pilot.press("right", "question_mark", "escape", "t", "q")
            return str(text)

    told = asyncio.run(story())
    never.set()
    assert "the disk has not answered for 1:0" in told
    assert app.return_code == 0


def test_an_error_of_the_reader_is_not_hidden(run, monkeypatch):
    app = Dashboard([Follower(run.path)])
    monkeypatch.setattr(app.reader.followers[0], "refresh", lambda seconds: 1 // 0)

    async def story():
        async with app.run_test() as pilot:
            while app.broken is None:
                await pilot.pause(0.01)

    asyncio.run(story())
    assert isinstance(app.broken, ZeroDivisionError) and app.return_code == 1


def test_a_wish_that_is_refused_is_told(run):
    run.close()
    told, done = [], threading.Event()

    def hear(text, wrong):
        told.append((text, wrong))
        done.set()

    reader = Reader([Follower(run.path)], show=lambda scene: None, told=hear, failed=lambda error: done.set())
    reader.ask(0, "stop")
    reader.start()
    done.wait()
    reader.close()
    assert told[0][1] and "no living process writes that run" in told[0][0]


def test_a_process_that_writes_and_is_killed(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "live")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout.readline() == "ready\n"

    async def story(pilot):
        before = pilot.app.scene.run
        writer.stdin.write("\n")
        writer.stdin.flush()
        await settled(pilot, until=lambda app: app.scene.run.status.epoch == 2)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        text = await settled(pilot, until=lambda app: app.scene.run.state == "died")
        return before, text

    before, text = watching([tmp_path / "live"], story)
    writer.stdin.close()
    writer.stdout.close()
    assert (before.state, before.status.epoch) == ("running", 1)
    assert "the process ended without finishing the run" in text
