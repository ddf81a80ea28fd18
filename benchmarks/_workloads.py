"""What is trained: data made by code, a model with the same first weights every time, and the arithmetic."""

import math
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._models import GPT, Digits, ResNet18, mlp


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything that contenders have to agree on.

    - `make`: inputs and targets, on the CPU. `net`: the model, built after a fixed seed.
    - `decay`: `None` trains with Adam, a number with AdamW.
    - `epochs`: the length of the timed fit; its first `warm_up` epochs are not timed.
    - `compared_after`: the number of epochs after which losses are compared. They may differ by `tolerance`, the effect
      of another order of the samples and of other dropout masks.
    """

    name: str
    text: str
    make: Callable[[], tuple[Tensor, Tensor]]
    net: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    samples: int
    batch: int
    lr: float
    epochs: int
    warm_up: int
    compared_after: int
    tolerance: float
    batch_statistics: bool = False  # compare losses in training mode: running statistics have seen too few batches
    metric: str | None = None  # "mae", "accuracy"
    decay: float | None = None
    clip_norm: float | None = None
    dropout: float = 0.0
    precision: str = "fp32"  # "tf32", "bf16"
    device: str = "cpu"
    workers: int = 0  # for contenders that use a DataLoader
    tokens: int = 1  # in a sample
    tiny: bool = False

    @property
    def updates(self):
        """In an epoch; the last batch may be short."""
        return math.ceil(self.samples / self.batch)

    def data(self):
        return self.make()

    def data_on_device(self):
        return tuple(each.to(self.device) for each in self.make())

    def model(self, device=None):
        """A model with its first weights, on the device of the workload or on `device`."""
        torch.manual_seed(0)
        return self.net().to(device or self.device)

    def optimizer(self, model, fused=None):
        """torch's own."""
        if self.decay is None:
            return torch.optim.Adam(model.parameters(), lr=self.lr, fused=fused)
        return torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=self.decay, fused=fused)

    def dataloader(self):
        """Shuffled batches from torch's `DataLoader`."""
        return DataLoader(
            TensorDataset(*self.data()),
            batch_size=self.batch,
            shuffle=True,
            num_workers=self.workers,
            pin_memory=self.device == "cuda",
            persistent_workers=self.workers > 0,
        )

    def autocast(self):
        return torch.autocast(self.device, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def loss_of(self, model):
        """The loss of a trained model, on samples of the training set."""
        model = model.to(self.device).train(self.batch_statistics)
        rows = min(self.samples, max(2 * self.batch, 1000))
        inputs, targets = (each[:rows].to(self.device) for each in self.data())
        with torch.no_grad(), self.autocast():
            parts = zip(inputs.split(self.batch), targets.split(self.batch), strict=True)
            return sum(float(self.loss(model(x), y)) * len(x) for x, y in parts) / rows


def workload(name, *, device="cpu", tiny=False):
    """A workload by its name, in the size for a device; `tiny` ones only show that everything runs."""
    return replace(WORKLOADS[name](device, tiny), tiny=tiny)


def toy(device, tiny):
    """The toy of the luz chapter."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 3, generator=generator)
    y = x @ torch.tensor([[0.2], [-1.3], [-0.5]]) + torch.randn(1000, 1, generator=generator)
    return Workload(
        name="toy",
        text="1000 × 3 → 32 → 1, batch 100, Adam, mean squared error",
        make=lambda: (x.clone(), y.clone()),
        net=lambda: mlp(3, 32, 1),
        loss=nn.MSELoss(),
        samples=len(x),
        batch=100,
        lr=1e-3,
        metric="mae",
        device=device,
        epochs=20 if tiny else 300,
        warm_up=10,
        compared_after=10,  # half way down, where a learning rate that is 10 % off changes the loss by 6 %
        tolerance=0.02,  # another order of the samples changes it by 0.5 %
    )


def digits(device, tiny):
    big = device == "cuda"
    samples = 320 if tiny else 60_000 if big else 2_000
    return Workload(
        name="digits",
        text=f"the guide's CNN, {samples:,} × 28 × 28, batch 64, Adam {'1e-4' if big else '1e-3'}, dropout 0.5",
        make=lambda: digit_images(samples),
        net=Digits,
        loss=nn.CrossEntropyLoss(),
        samples=samples,
        batch=64,
        lr=1e-4 if big else 1e-3,
        metric="accuracy",
        dropout=0.5,
        device=device,
        workers=4 if big else 0,
        epochs=2 if tiny else 5 if big else 6,
        warm_up=1,
        compared_after=1 if big else 2,  # later losses are small and differ by large factors
        tolerance=0.15,  # other dropout masks change it by 6 %
    )


def tabular(device, tiny):
    samples = 20_480 if tiny else 1_000_000
    epochs = 2 if tiny else 5 if device == "cuda" else 2
    return Workload(
        name="tabular",
        text=f"{samples:,} × 32 → 256 → 256 → 1, batch 1024, Adam 1e-3, mean squared error",
        make=lambda: table(samples),
        net=lambda: mlp(32, 256, 256, 1),
        loss=nn.MSELoss(),
        samples=samples,
        batch=1024,
        lr=1e-3,
        metric="mae",
        device=device,
        workers=4 if device == "cuda" else 0,
        epochs=epochs,
        warm_up=1,
        compared_after=epochs,
        tolerance=0.1,
    )


def resnet(device, tiny):
    samples, batch = (64, 16) if tiny else (51_200, 512)
    return Workload(
        name="resnet",
        text=f"ResNet-18, {samples:,} × 3 × 32 × 32, batch {batch}, AdamW 1e-3, bf16, channels-last",
        make=lambda: pictures(samples),
        net=lambda: ResNet18(width=8 if tiny else 64).to(memory_format=torch.channels_last),
        loss=nn.CrossEntropyLoss(),
        samples=samples,
        batch=batch,
        lr=1e-3,
        decay=0.05,
        metric="accuracy",
        precision="bf16",
        device=device,
        workers=4 if device == "cuda" else 0,
        epochs=2 if tiny else 4,
        warm_up=1,
        compared_after=2 if tiny else 4,
        batch_statistics=True,
        tolerance=0.4,  # four orders of the samples gave 0.110 to 0.146 in the plain loop
    )


def gpt(device, tiny):
    vocabulary, length, samples, batch = (128, 16, 16, 4) if tiny else (50_304, 1024, 1_280, 32)
    sizes = {"depth": 2, "width": 32, "heads": 2} if tiny else {}
    name = "a small GPT" if tiny else "GPT-2 124M"
    return Workload(
        name="gpt",
        text=f"{name}, {length} tokens × batch {batch}, AdamW 3e-4, gradients clipped to norm 1, bf16",
        make=lambda: token_rows(samples, length, vocabulary),
        net=lambda: GPT(vocabulary, length, **sizes),
        loss=next_token_loss,
        samples=samples,
        batch=batch,
        lr=3e-4,
        decay=0.1,
        clip_norm=1.0,
        tokens=length,
        precision="bf16",
        device=device,
        workers=4 if device == "cuda" else 0,
        epochs=2 if tiny else 4,
        warm_up=1,
        compared_after=2 if tiny else 4,
        tolerance=0.02,
    )


def next_token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


WORKLOADS = {"toy": toy, "digits": digits, "tabular": tabular, "resnet": resnet, "gpt": gpt}


# --- data


def digit_images(samples):
    """Digits drawn by code: 6,000 different ones, drawn once for all processes and repeated."""
    path = Path(tempfile.gettempdir()) / "stoker-benchmarks" / "digits.safetensors"
    drawn = _read_or_draw_digits(path)
    repeats = math.ceil(samples / len(drawn["labels"]))
    images = drawn["images"].repeat(repeats, 1, 1)[:samples].float().div_(255)
    return images.sub_(0.1307).div_(0.3081), drawn["labels"].repeat(repeats)[:samples]


def _read_or_draw_digits(path):
    if not path.exists():
        from stoker import data

        images, labels = data.digits("train", size=6_000).tensors
        path.parent.mkdir(exist_ok=True)
        part = Path(tempfile.mkstemp(dir=path.parent)[1])
        save_file({"images": images, "labels": labels}, part)
        part.replace(path)
    return load_file(path)


def table(samples):
    """A smooth function of 32 numbers, with noise."""
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
    """Tokens with the frequencies of words (Zipf), so that a few updates already lower the loss."""
    generator = torch.Generator().manual_seed(0)
    frequencies = 1 / torch.arange(1, vocabulary + 1)
    drawn = torch.multinomial(frequencies, samples * (length + 1), replacement=True, generator=generator)
    rows = drawn.view(samples, length + 1)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
