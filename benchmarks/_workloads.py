"""What is trained, a value each: data, a model that starts from the same weights every time, and the arithmetic."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._data import digit_images, pictures, table, token_rows
from benchmarks._harness import BATCH, TOY, toy
from benchmarks._models import GPT, Digits, ResNet18, mlp


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything that contenders must agree on.

    - `make`: inputs and targets, on the CPU. `net`: the model, drawn after a seed that is always the same.
    - `decay`: None trains with Adam, a number with AdamW.
    - `epochs`: how long the timed fit is; its first `warm` epochs are not in the time of an update.
    - `judged`: the epochs after which losses are compared; they may differ by `tolerance`, the effect of another order
      of the samples and other dropout.
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
    warm: int
    judged: int
    tolerance: float
    own_statistics: bool = False  # a batch is judged with its own: running ones have seen few batches
    metric: str | None = None  # "mae", "accuracy"
    decay: float | None = None
    clip_norm: float | None = None
    dropout: float = 0.0
    precision: str = "fp32"  # "tf32", "bf16"
    device: str = "cpu"
    workers: int = 0  # of those who use a DataLoader
    tokens: int = 1  # in a sample
    tiny: bool = False

    @property
    def updates(self):
        """In an epoch; the last batch may be short."""
        return math.ceil(self.samples / self.batch)

    def data(self):
        return self.make()

    def resident(self):
        """The data where the model computes."""
        return tuple(each.to(self.device) for each in self.make())

    def model(self, device=None):
        """With its first weights, where it computes or on `device`."""
        torch.manual_seed(0)
        return self.net().to(device or self.device)

    def optimizer(self, model, fused=None):
        """torch's own."""
        if self.decay is None:
            return torch.optim.Adam(model.parameters(), lr=self.lr, fused=fused)
        return torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=self.decay, fused=fused)

    def batches(self):
        """The way to shuffled batches that everybody writes."""
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

    def judge(self, model):
        """The loss of a trained model, on samples that it was trained on."""
        model = model.to(self.device).train(self.own_statistics)
        rows = min(self.samples, max(2 * self.batch, 1000))
        inputs, targets = (each[:rows].to(self.device) for each in self.data())
        with torch.no_grad(), self.autocast():
            parts = zip(inputs.split(self.batch), targets.split(self.batch), strict=True)
            return sum(float(self.loss(model(x), y)) * len(x) for x, y in parts) / rows


def workload(name, *, device="cpu", tiny=False):
    """A workload by its name, in the size for a device; `tiny` only shows that everything runs."""
    return replace(WORKLOADS[name](device, tiny), tiny=tiny)


def luz_toy(device, tiny):
    x, y, _ = toy()
    return Workload(
        name="toy",
        text=TOY,
        make=lambda: (x.clone(), y.clone()),
        net=lambda: toy()[2],
        loss=nn.MSELoss(),
        samples=len(x),
        batch=BATCH,
        lr=1e-3,
        metric="mae",
        device=device,
        epochs=20 if tiny else 300,
        warm=10,
        judged=10,  # half way down, where a wrong rate of 10 % is 6 % of the loss
        tolerance=0.02,  # another order of the samples makes 0.5 %
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
        warm=1,
        judged=1 if big else 2,  # later it has nearly learnt them: small losses differ by much
        tolerance=0.15,  # other dropout makes 6 %
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
        warm=1,
        judged=epochs,
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
        warm=1,
        judged=2 if tiny else 4,
        own_statistics=True,
        tolerance=0.4,  # orders of the samples: 0.110 to 0.146 over four of the plain loop's
    )


def gpt(device, tiny):
    vocabulary, length, samples, batch = (128, 16, 16, 4) if tiny else (50_304, 1024, 1_280, 32)
    sizes = {"depth": 2, "width": 32, "heads": 2} if tiny else {}
    called = "a small GPT" if tiny else "GPT-2 124M"
    return Workload(
        name="gpt",
        text=f"{called}, {length} tokens × batch {batch}, AdamW 3e-4, gradients clipped to norm 1, bf16",
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
        warm=1,
        judged=2 if tiny else 4,
        tolerance=0.02,
    )


def next_token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


WORKLOADS = {"toy": luz_toy, "digits": digits, "tabular": tabular, "resnet": resnet, "gpt": gpt}
