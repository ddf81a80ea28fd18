"""The trainings that are killed: whole scripts as users write them. Started again, each resumes its run.

python -m torture.programs KIND FOLDER is one rank of a training under torchrun.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

import stoker
from stoker import callbacks, data, metrics, optim, schedule
from stoker.distributed import join
from torture.runs import EVERY, UpdateCounter, digest

_TIMEOUT = 15  # seconds that a rank waits if its agent was killed before the ranks had met


def add_noise(x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    return x + 0.1 * torch.randn(12), label


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(192, 12, generator=generator), torch.randint(0, 4, (192,), generator=generator)


def _layers(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(12, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4))


# --- one process


def workers(folder: Path) -> stoker.Fitted:
    """Random augmentation in two worker processes, accumulation, EMA, background saves."""
    x, y = samples()
    learner = stoker.Learner(
        lambda: _layers(16),
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.AdamW(),
        lr=schedule.cosine(1e-2, steps=48),
        metrics=[metrics.Accuracy()],
        accumulate=2,
        ema=0.9,
        seed=1,
    )
    return learner.fit(
        data.Loader((x, y), batch_size=8, shuffle=7, transform=add_noise, workers=2),
        valid=data.Loader((x[:64], y[:64]), batch_size=32, transform=add_noise, workers=1),
        epochs=4,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=2),
        callbacks=[UpdateCounter(folder)],
        show=False,
    )


def best(folder: Path) -> stoker.Fitted:
    """Validation inside epochs, callbacks with state, blocking saves, and the best checkpoint is kept."""
    x, y = samples()
    learner = stoker.Learner(
        lambda: _layers(16), loss=nn.CrossEntropyLoss(), optimizer=optim.SGD(momentum=0.9), lr=0.02, seed=2
    )
    return learner.fit(
        data.Loader((x, y), batch_size=16, shuffle=7, transform=add_noise),
        valid=(x[:64], y[:64]),
        epochs=6,
        validate_every=5,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=1, keep_best="valid/loss", background=False),
        callbacks=[callbacks.EarlyStopping(patience=50), UpdateCounter(folder)],
        show=False,
    )


def large(folder: Path) -> stoker.Fitted:
    """Checkpoints of several megabytes, so that nearly every kill hits one that is being written."""
    x, y = samples()
    learner = stoker.Learner(
        lambda: nn.Sequential(
            _layers(256), nn.Linear(4, 512), nn.Dropout(0.1), nn.Linear(512, 1024), nn.Linear(1024, 4)
        ),
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.AdamW(),
        lr=1e-3,
        seed=3,
    )
    return learner.fit(
        data.Loader((x, y), batch_size=16, shuffle=7, transform=add_noise),
        valid=(x[:64], y[:64]),
        epochs=4,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=1),
        callbacks=[UpdateCounter(folder)],
        show=False,
    )


def frozen(folder: Path) -> stoker.Fitted:
    """A frozen layer that checkpoints leave out, a part that is unfrozen in the second epoch, and an EMA."""
    x, y = samples()

    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 12), _layers(16))
        model[:3].requires_grad_(False)
        return model

    learner = stoker.Learner(make, loss=nn.CrossEntropyLoss(), optimizer=optim.AdamW(), lr=1e-2, ema=0.9, seed=4)
    return learner.fit(
        data.Loader((x, y), batch_size=16, shuffle=7, transform=add_noise),
        valid=(x[:64], y[:64]),
        epochs=4,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=2, frozen="fingerprint"),
        callbacks=[callbacks.FreezeUntil("3.0", epoch=2), UpdateCounter(folder)],
        show=False,
    )


PROGRAMS: dict[str, Callable[[Path], stoker.Fitted]] = {
    "workers": workers,
    "best": best,
    "large": large,
    "frozen": frozen,
}


def train(kind: str, folder: Path) -> None:
    """Runs one program to its end and prints the digest of its result."""
    torch.set_num_threads(1)
    print("digest", digest(PROGRAMS[kind](folder), folder))


# --- several ranks


def _repeated_blocks(width: int) -> nn.Module:
    """Repeated blocks, which FSDP shards one by one."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3)]
    return nn.Sequential(nn.Linear(12, width), nn.Sequential(*blocks), nn.BatchNorm1d(width), nn.Linear(width, 4))


def _fit(folder: Path, mode: Literal["ddp", "fsdp"], width: int, *, accumulate: int, background: bool) -> stoker.Fitted:
    x, y = samples()
    learner = stoker.Learner(
        lambda: _repeated_blocks(width),
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.AdamW(),
        lr=schedule.cosine(1e-2, steps=36),
        metrics=[metrics.Accuracy()],
        accumulate=accumulate,
        ema=0.9,
        seed=1,
        parallel=stoker.Parallel(mode=mode, timeout=_TIMEOUT),
    )
    return learner.fit(
        data.Loader((x[:190], y[:190]), batch_size=16 // accumulate, shuffle=7, transform=add_noise, workers=1),
        valid=data.Loader((x[:65], y[:65]), batch_size=32, transform=add_noise),
        epochs=3,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=2, background=background),
        callbacks=[UpdateCounter(folder)],
        show=False,
    )


def whole(folder: Path) -> stoker.Fitted:
    """DDP, with background saves."""
    return _fit(folder, "ddp", 16, accumulate=1, background=True)


def windows(folder: Path) -> stoker.Fitted:
    """DDP with accumulation windows of two batches, and blocking saves."""
    return _fit(folder, "ddp", 16, accumulate=2, background=False)


def shards(folder: Path) -> stoker.Fitted:
    """FSDP2 with accumulation windows; each rank writes its part of a checkpoint."""
    return _fit(folder, "fsdp", 64, accumulate=2, background=True)


RANKED_PROGRAMS: dict[str, Callable[[Path], stoker.Fitted]] = {"whole": whole, "windows": windows, "shards": shards}


def main() -> None:
    """Runs one rank of a program; rank 0 prints the digests of all ranks."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    kind, folder = sys.argv[1], Path(sys.argv[2])
    digests = join().all_gather(digest(RANKED_PROGRAMS[kind](folder), folder))
    if stoker.world().is_first:
        print("digest", *digests)


if __name__ == "__main__":
    main()
