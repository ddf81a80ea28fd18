"""Makes docs/demo.svg: `stoker demo` on a terminal of 100 columns, in the middle of training."""

import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS, LINES = 100, 26
NAMES = {"brown": "yellow"}  # pyte's name: rich's name


def frames() -> list[list[Text]]:
    """The screen after each write of the program."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "from stoker.cli import main; main()", "demo"]
        program = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=follower, cwd=folder, env=environment
        )
        os.close(follower)
        while True:
            try:
                written = os.read(leader, 65536)
            except OSError:  # the program has ended
                break
            if not written:
                break
            stream.feed(written)
            found.append([line(screen, row) for row in range(LINES)])
        program.wait()
    return found


def line(screen: pyte.Screen, row: int) -> Text:
    """A line of the screen with its colours."""
    text = Text()
    for column in range(COLUMNS):
        cell = screen.buffer[row][column]
        colour = NAMES.get(cell.fg, cell.fg)
        colour = f"#{colour}" if len(colour) == 6 and all(each in "0123456789abcdef" for each in colour) else colour
        bright = colour.replace("bright", "bright_") if colour.startswith("bright") else colour
        text.append(cell.data, style=f"{'bold ' if cell.bold else ''}{bright}")
    text.rstrip()
    return text


def main() -> None:
    everything = frames()
    training = [frame for frame in everything if any("left" in each.plain for each in frame)]
    chosen = training[len(training) * 3 // 4] if training else everything[-1]
    while not chosen[-1].plain:
        chosen.pop()
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
    for each in chosen:
        console.print(each)
    console.save_svg(str(HERE / "demo.svg"), title="stoker demo")


if __name__ == "__main__":
    main()
