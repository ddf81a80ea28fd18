"""A training loop of your own, on digits drawn by code, with a live display.

Shows the loss, evaluates the model on unseen digits, saves the weights and loads them into a new model. Takes about ten
seconds.
"""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor, nn

import stoker
from stoker import data, optim, schedule

EPOCHS, BATCH = 3, 64
RUN = Path("runs") / "own_loop"
console = Console(highlight=False)


class Digits(nn.Module):
    def __init__(self, hidden: int = 128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(8)
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(1024, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images.float().unsqueeze(1) / 255))


def sparkline(values: list[float], width: int = 60) -> str:
    """A small plot of the loss; each column is the mean of its share of the updates."""
    columns = min(width, len(values))
    shares = [values[len(values) * i // columns : len(values) * (i + 1) // columns] for i in range(columns)]
    means = [sum(share) / len(share) for share in shares]
    low, high = min(means), max(means)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (mean - low) / (high - low or 1))] for mean in means)


def accuracy(model: nn.Module, loader: data.Loader) -> float:
    view = stoker.valid(model)  # the same weights, in eval mode, without autograd
    correct = sum((view(images).argmax(1) == labels).sum() for images, labels in loader)
    return float(correct) / loader.samples


def train(model: nn.Module, train_loader: data.Loader, test_loader: data.Loader) -> None:
    optimizer = optim.AdamW().init(model)
    updates = EPOCHS * len(train_loader)
    lr = schedule.cosine(2e-3, updates=updates, warmup=updates // 10)
    counted = TextColumn("{task.completed}/{task.total} updates")
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(40), counted, TimeRemainingColumn(), console=console
    )
    bar = progress.add_task("training", total=updates)
    losses: list[float] = []
    with Live(progress, console=console, refresh_per_second=8) as live:
        for epoch in range(1, EPOCHS + 1):
            for images, labels in train_loader:
                loss = F.cross_entropy(model(images), labels)
                grads = stoker.backward(loss, model)  # a value; nothing stays in .grad
                optimizer.step(grads.clip_norm(1.0), lr=lr(len(losses)))
                losses.append(loss.item())
                progress.advance(bar)
                live.update(Group(progress, Text(f"loss {losses[-1]:.3f}  {sparkline(losses)}", style="cyan")))
            mean = sum(losses[-len(train_loader) :]) / len(train_loader)
            correct = accuracy(model, test_loader)
            console.print(f"epoch [bold]{epoch}[/bold]: loss {mean:.3f}, accuracy on unseen digits {correct:.1%}")


def show(images: Tensor, predictions: Tensor) -> None:
    """Prints digits, two pixel rows in a character, with the predictions below."""
    rows = (torch.cat(list(images), dim=1) // 16 * 17).tolist()  # [28, 28 × digits], side by side, in 16 greys
    for upper, lower in zip(rows[0::2], rows[1::2], strict=True):
        line = Text()
        for a, b in zip(upper, lower, strict=True):
            line.append("▀", style=f"rgb({a},{a},{a}) on rgb({b},{b},{b})")
        console.print(line)
    console.print("".join(f"{f'predicted: {label}':^28}" for label in predictions.tolist()))


def main(pictures: bool = sys.stdout.isatty() and console.width >= 112) -> None:
    start = time.perf_counter()
    torch.manual_seed(42)
    console.print("drawing 14,000 digits …")
    train_loader = data.Loader(data.digits("train", size=12000), batch_size=BATCH, shuffle=42)
    test = data.digits("test", size=2000)
    test_loader = data.Loader(test, batch_size=500)
    model = Digits()
    train(model, train_loader, test_loader)
    path = stoker.save(model, RUN / "model", precision="half")
    restored = stoker.load(Digits(), path)
    console.print(f"saved {path} ({path.stat().st_size:,} bytes, 16-bit) and loaded it into a new model:")
    console.print(f"  accuracy on unseen digits {accuracy(restored, test_loader):.1%}")
    if pictures:
        images = test.tensors[0][:4]
        show(images, stoker.valid(restored)(images).argmax(1))
    console.print(f"done in {time.perf_counter() - start:.0f} s")
    console.print("next: examples/tour/ shows the parts one by one")


if __name__ == "__main__":
    main()
