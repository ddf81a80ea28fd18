"""Makes the pictures of docs/monitoring.md: the console in tmux, plots, and a notebook; needs tmux and chromium."""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbclient
import nbconvert
import nbformat
import numpy as np
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

from stoker.view.report import calibration, confusion

PICTURES = Path(__file__).resolve().parent / "pictures"
FIT = """
import torch
from torch import nn
import stoker
from stoker import metrics

random = torch.Generator().manual_seed(0)
x = torch.randn(4000, 10, generator=random)
y = (x[:, :3].sum(1) > 0).long() + (x[:, 3] > 0.5)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3))
learner = stoker.Learner(model, loss=nn.CrossEntropyLoss(), lr=3e-3, metrics=[metrics.Accuracy()], seed=0)
"""
PAUSE = """
import subprocess, sys, time

class Pause(stoker.Callback):
    def on_update(self, ctx):
        time.sleep(0.3 if ctx.update > 640 else 0.004)  # before a picture is taken, drawings are due
    def on_train_batch_end(self, ctx):
        if ctx.update == 660:
            subprocess.run([*sys.argv[1:], "wait-for", "-S", "drawn"])
            subprocess.run([*sys.argv[1:], "wait-for", "looked"])

learner.fit((x, y), valid=0.2, epochs=10, batch_size=32, run="runs/digits", callbacks=[Pause()])
"""
CELLS = [FIT.strip() + "\nlearner", "fitted = learner.fit((x, y), valid=0.2, epochs=4, run='runs/first')", "fitted"]


def draw_console(browser: Browser, columns: int, lines: int) -> None:
    """The console of a running fit, on a tmux of this size."""
    with tempfile.TemporaryDirectory() as folder:
        script, socket = Path(folder, "train.py"), str(Path(folder, "tmux"))
        script.write_text(FIT + PAUSE)
        tmux = ["tmux", "-S", socket, "-f", os.devnull]
        run = f"cd {folder} && {sys.executable} {script} tmux -S {socket}"
        subprocess.run([*tmux, "new-session", "-d", "-x", str(columns), "-y", str(lines), run], check=True)
        subprocess.run([*tmux, "wait-for", "drawn"], check=True)
        screen = subprocess.run([*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True).stdout
        subprocess.run([*tmux, "kill-server"], check=True)
        console = Console(record=True, width=columns, force_terminal=True, file=io.StringIO(), color_system="truecolor")
        for line in screen.split("\n")[:lines]:
            console.print(Text.from_ansi(line))
        svg = Path(folder, "screen.svg")
        console.save_svg(str(svg), title=f"python train.py, {columns}×{lines}")
        page = browser.new_page(viewport={"width": 12 * columns + 40, "height": 25 * lines + 100})
        page.goto(svg.as_uri())
        page.locator("svg").screenshot(path=PICTURES / f"console-{columns}x{lines}.png")
        page.close()


def draw_plots() -> None:
    """A confusion matrix and a calibration of made-up predictions, as vectors."""
    random = np.random.default_rng(0)
    counts = random.integers(0, 12, (5, 5)) + np.diag(random.integers(60, 120, 5))
    confusion(counts, ["cat", "dog", "horse", "ship", "truck"]).savefig(PICTURES / "plot-confusion.svg")
    scores = random.beta(0.7, 0.7, 2000)
    calibration(scores, (random.random(2000) < scores**1.3).astype(int)).savefig(PICTURES / "plot-calibration.svg")


def draw_notebook(browser: Browser) -> None:
    """A notebook that a kernel has executed."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
        html, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
        path = Path(folder, "notebook.html")
        path.write_text(re.sub(r'<script[^>]*src="[^"]*"[^>]*></script>', "", html))
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.goto(path.as_uri())
        page.screenshot(path=PICTURES / "notebook.png", full_page=True)
        page.close()


if __name__ == "__main__":
    draw_plots()
    with sync_playwright() as playwright:
        chromium = os.environ.get("STOKER_CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--no-proxy-server"])
        for size in ((60, 12), (80, 24), (160, 40)):
            draw_console(browser, *size)
        draw_notebook(browser)
        browser.close()
