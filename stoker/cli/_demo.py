"""`stoker demo`: trains a small network on generated digits, evaluates it, saves it and loads it."""

from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

import stoker
from stoker import ClassificationOutput, data, metrics, optim, schedule
from stoker.cli._screen import new_screen


class ModelConfig(stoker.Config):
    """The size of the network."""

    hidden: int = 128
    dropout: float = 0.1


class DemoConfig(stoker.Config):
    """All settings of the demo."""

    model: ModelConfig = ModelConfig()
    optimizer: optim.AdamW = optim.AdamW()
    lr: float = 2e-3
    epochs: int = 3
    batch_size: int = 64
    images: int = 12_000
    seed: int = 42


class Digits(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.pool, self.dropout = nn.AdaptiveAvgPool2d(8), nn.Dropout(config.dropout)
        self.linear1, self.linear2 = nn.Linear(16 * 8 * 8, config.hidden), nn.Linear(config.hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images [batch, 28, 28] with gray values from 0 to 255 to logits [batch, 10]."""
        x = F.relu(self.conv1(images.unsqueeze(1).float() / 255))
        x = self.pool(F.relu(self.conv2(x))).flatten(1)
        return self.linear2(F.relu(self.linear1(self.dropout(x))))

    def train_step(self, batch: tuple[Tensor, Tensor]) -> ClassificationOutput:
        """The loss of a batch of images and labels."""
        images, labels = batch
        logits = self(images)
        return ClassificationOutput(F.cross_entropy(logits, labels), logits, labels)


def demo(folder: str = "runs", config: DemoConfig | None = None) -> None:
    """Trains, evaluates, saves and loads a model, and prints what to look at next."""
    config = config or DemoConfig()
    screen = new_screen()
    run = _unused_path(Path(folder) / "demo")
    screen.print(f"generating {config.images:,} digits for training and 2,000 for testing …")
    train, test = data.digits("train", size=config.images), data.digits("test", size=2000)
    screen.print(f"watch it from another terminal: stoker watch {run}")
    torch.manual_seed(config.seed)
    learner = stoker.Learner(
        Digits(config.model),
        optimizer=config.optimizer,
        lr=schedule.cosine(config.lr, warmup=0.1),
        metrics=[metrics.Accuracy()],
        clip_norm=1.0,
        seed=config.seed,
    )
    fitted = learner.fit(
        train,
        valid=0.1,  # of the training images; the test images are used only at the end
        epochs=config.epochs,
        batch_size=config.batch_size,
        run=run,
        config=config,
    )
    scores = fitted.evaluate(data.Loader(test, batch_size=500))
    screen.print(f"on the test digits: loss {scores['loss']:.3f}, accuracy {scores['accuracy']:.1%}")
    path = stoker.save(fitted.model, run / "model", precision="half")
    restored = stoker.load(Digits(config.model), path)
    screen.print(f"saved {path} ({path.stat().st_size:,} bytes, 16-bit) and loaded it into a new model")
    images = test.tensors[0][:4]
    _draw(screen, images, stoker.valid(restored)(images).argmax(1))
    screen.print("\nnext:")
    commands = {
        f"stoker watch {run}": "its curves and numbers on this terminal, live while a run trains",
        f"stoker ui {folder}": f"all runs in {folder} as a web page: search, zoom, compare",
        f"stoker report {run}": "one HTML file to send to a colleague",
        "stoker/cli/_demo.py": "this program",
    }
    for command, purpose in commands.items():
        screen.print(f"  {command:<{max(map(len, commands))}}  {purpose}", markup=False)


def _unused_path(path: Path) -> Path:
    """The path itself, or the first numbered one that does not exist: `demo-2`."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _draw(screen: Console, images: Tensor, labels: Tensor) -> None:
    """Draws digits with the predicted labels below, if the terminal has colors and is wide enough."""
    rows = (torch.cat(list(images), dim=1) // 16 * 17).tolist()  # [28, 28 × digits], in 16 gray values
    if not screen.is_terminal or screen.width < len(rows[0]):
        return
    for upper, lower in zip(rows[0::2], rows[1::2], strict=True):  # two rows of pixels per line of text
        line = Text()
        for a, b in zip(upper, lower, strict=True):
            line.append("▀", style=f"rgb({a},{a},{a}) on rgb({b},{b},{b})")
        screen.print(line)
    screen.print("".join(f"{f'predicted: {label}':^28}" for label in labels.tolist()))
