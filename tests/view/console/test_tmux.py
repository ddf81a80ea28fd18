"""The live block in a real tmux: the screen, and what is left in its scrollback."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.view.console.scenes import ROOT

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
PROGRAM = """
    import subprocess, sys
    from stoker.record import Event, Record
    from stoker.view.console import console
    from tests.view.console.scenes import begin, end, epoch, progress
    record = Record()
    record.subscribe(console(record, interval=0))  # every event draws
    begin(record, epochs=30)
    for number in range(1, 31):
        for batch in range(1, 11):
            progress(record, number, batch, at=1000.0 + 2 * number + batch / 10)
        epoch(record, number, valid=1 / number)
        if number == 20:
            print("printed by the user")
    subprocess.run([*sys.argv[1:], "wait-for", "-S", "drawn"])
    subprocess.run([*sys.argv[1:], "wait-for", "looked"])
    end(record, 30, best=(30, 1 / 30))
    subprocess.run([*sys.argv[1:], "wait-for", "-S", "ended"])
    subprocess.run([*sys.argv[1:], "wait-for", "looked"])
"""


@pytest.fixture
def tmux(tmp_path):
    """Calls tmux with a server of its own."""
    command = ["tmux", "-S", str(tmp_path / "tmux"), "-f", os.devnull]

    def call(*arguments):
        return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout

    yield call
    subprocess.run([*command, "kill-server"], check=False, capture_output=True)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (60, 12), (160, 50)])
def test_the_scrollback_holds_every_line_once_and_no_drawing(tmux, tmp_path, columns, lines):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    server = f"tmux -S {tmp_path / 'tmux'}"
    run = f"cd {ROOT} && PYTHONPATH={ROOT} {sys.executable} {script} {server}"
    tmux("new-session", "-d", "-x", str(columns), "-y", str(lines), run)
    tmux("wait-for", "drawn")
    shown = tmux("capture-pane", "-p", "-S", "-").splitlines()
    for number in range(1, 31):
        assert sum(line.split()[:1] == [f"{number}/30"] for line in shown) == 1, f"epoch {number} has one line"
    assert sum("Net (" in line for line in shown) == 1, "one block"
    assert shown.count("printed by the user") == 1
    assert len(shown) <= 34 + lines, "30 epochs, their header, one print, and the screen"
    tmux("wait-for", "-S", "looked")
    tmux("wait-for", "ended")
    shown = tmux("capture-pane", "-p", "-S", "-").splitlines()
    assert sum("Net (" in line for line in shown) == 1 and sum("30 epochs, 300 updates" in line for line in shown) == 1
    tmux("wait-for", "-S", "looked")
