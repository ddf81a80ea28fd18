"""The data of the workloads, made by code: the same in every process, without a download."""

import math
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

DRAWN = 6_000  # digits


def digit_images(samples):
    """Digits written by code: DRAWN of them once for all processes, and these again and again."""
    path = Path(tempfile.gettempdir()) / "stoker-benchmarks" / "digits.safetensors"
    drawn = _read_or_draw(path)
    again = math.ceil(samples / len(drawn["labels"]))
    images = drawn["images"].repeat(again, 1, 1)[:samples].float().div_(255)
    return images.sub_(0.1307).div_(0.3081), drawn["labels"].repeat(again)[:samples]


def _read_or_draw(path):
    if not path.exists():
        from stoker import data

        images, labels = data.digits("train", size=DRAWN).tensors
        path.parent.mkdir(exist_ok=True)
        part = Path(tempfile.mkstemp(dir=path.parent)[1])
        save_file({"images": images, "labels": labels}, part)
        part.replace(path)
    return load_file(path)


def table(samples):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 32, generator=generator)
    smooth = (x @ torch.randn(32, 8, generator=generator) / 4).sin().sum(1, keepdim=True)
    return x, smooth + 0.5 * torch.randn(samples, 1, generator=generator)


def pictures(samples):
    """Noise around one faint picture for each class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (samples,), generator=generator)
    classes = torch.randn(10, 3, 32, 32, generator=generator)
    return torch.randn(samples, 3, 32, 32, generator=generator).add_(classes[labels], alpha=0.05), labels


def token_rows(samples, length, vocabulary):
    """Tokens as frequent as words are (Zipf), so that there is something to learn in a few updates."""
    generator = torch.Generator().manual_seed(0)
    often = 1 / torch.arange(1, vocabulary + 1)
    drawn = torch.multinomial(often, samples * (length + 1), replacement=True, generator=generator)
    rows = drawn.view(samples, length + 1)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
