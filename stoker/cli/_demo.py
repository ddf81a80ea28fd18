"""`stoker demo`: the guide's digits network, trained, judged, saved and loaded, on images drawn by code."""

from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

import stoker
from stoker import ClassificationOutput, data, metrics, optim, schedule
from stoker.cli._screen import screen


class ModelConfig(stoker.Config):
    """The network's size."""

    hidden: int = 128
    dropout: float = 0.1


class DemoConfig(stoker.Config):
    """Everything that the demo's run depends on."""

    model: ModelConfig = ModelConfig()
    optimizer: optim.AdamW = optim.AdamW()
    lr: float = 2e-3
    epochs: int = 3
    batch_size: int = 64
    images: int = 12_000
    seed: int = 42


class Digits(nn.Module):
    """Two convolutions and two linear layers, with steps of their own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.pool, self.dropout = nn.AdaptiveAvgPool2d(8), nn.Dropout(config.dropout)
        self.linear1, self.linear2 = nn.Linear(16 * 8 * 8, config.hidden), nn.Linear(config.hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Images [batch, 28, 28] in greys from 0 to 255, to logits [batch, 10]."""
        x = F.relu(self.conv1(images.unsqueeze(1).float() / 255))
        x = self.pool(F.relu(self.conv2(x))).flatten(1)
        return self.linear2(F.relu(self.linear1(self.dropout(x))))

    def train_step(self, batch: tuple[Tensor, Tensor]) -> ClassificationOutput:
        """What to learn from a batch of images and labels."""
        images, labels = batch
        logits = self(images)
        return ClassificationOutput(F.cross_entropy(logits, labels), logits, labels)


def main(folder: str = "runs", config: DemoConfig | None = None) -> None:
    """Trains, judges, saves, loads, and says where to look next."""
    config = config or DemoConfig()
    console = screen()
    run = fresh(Path(folder) / "demo")
    console.print(f"drawing {config.images:,} digits to learn from, and 2,000 to be judged by …")
    train, test = data.digits("train", size=config.images), data.digits("test", size=2000)
    console.print(f"to watch it from another terminal: stoker watch {run}")
    updates = config.epochs * -(-config.images * 9 // 10 // config.batch_size)
    torch.manual_seed(config.seed)
    learner = stoker.Learner(
        Digits(config.model),
        optimizer=config.optimizer,
        lr=schedule.cosine(config.lr, steps=updates, warmup=updates // 10),
        metrics=[metrics.Accuracy()],
        clip_norm=1.0,
        seed=config.seed,
    )
    fitted = learner.fit(
        train,
        valid=0.1,  # of the training images; the test images stay unseen until the end
        epochs=config.epochs,
        batch_size=config.batch_size,
        run=run,
        config=config,
    )
    scores = fitted.evaluate(data.Loader(test, batch_size=500))
    console.print(f"on digits it has not seen: loss {scores['loss']:.3f}, accuracy {scores['accuracy']:.1%}")
    path = stoker.save(fitted.model, run / "model", precision="half")
    restored = stoker.load(Digits(config.model), path)
    console.print(f"saved {path} ({path.stat().st_size:,} bytes, 16-bit) and loaded it into a new model")
    images = test.tensors[0][:4]
    draw(console, images, stoker.valid(restored)(images).argmax(1))
    console.print("\nnext:")
    places = {
        f"stoker watch {run}": "its curves and numbers on this terminal; it is live while a run trains",
        f"stoker ui {folder}": f"all runs in {folder} as a web page: search, zoom, compare",
        f"stoker report {run}": "one HTML file to send to a colleague",
        "stoker/cli/_demo.py": "this program",
    }
    for place, purpose in places.items():
        console.print(f"  {place:<{max(map(len, places))}}  {purpose}", markup=False)


def fresh(path: Path) -> Path:
    """The path, or where something is there the first numbered one that is free: `demo-2`."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def draw(console: Console, images: Tensor, labels: Tensor) -> None:
    """Some digits side by side with what the model takes them for, where the terminal has colours and room."""
    rows = (torch.cat(list(images), dim=1) // 16 * 17).tolist()  # [28, 28 × digits], in 16 greys
    if not console.is_terminal or console.width < len(rows[0]):
        return
    for upper, lower in zip(rows[0::2], rows[1::2], strict=True):  # two rows of pixels to a letter
        line = Text()
        for a, b in zip(upper, lower, strict=True):
            line.append("▀", style=f"rgb({a},{a},{a}) on rgb({b},{b},{b})")
        console.print(line)
    console.print("".join(f"{f'taken for a {label}':^28}" for label in labels.tolist()))
