"""What is tortured with several ranks: a script that torchrun starts, on every rank the same."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn

import stoker
from stoker import data, metrics, optim, schedule
from stoker.distributed import joined
from torture._digest import digest
from torture._programs import EVERY, Counter, counter_of, noisy, samples

_TIMEOUT = 15  # seconds; a rank whose agent was killed before the ranks had met waits for so long


def _blocks(width: int) -> nn.Module:
    """Blocks of the same kind, which is what FSDP shards one by one."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3)]
    return nn.Sequential(nn.Linear(12, width), nn.Sequential(*blocks), nn.BatchNorm1d(width), nn.Linear(width, 4))


def _fit(folder: Path, mode: Literal["ddp", "fsdp"], width: int, *, accumulate: int, background: bool) -> stoker.Fitted:
    x, y = samples()
    learner = stoker.Learner(
        lambda: _blocks(width),
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
        data.Loader((x[:190], y[:190]), batch_size=16 // accumulate, shuffle=7, transform=noisy, workers=1),
        valid=data.Loader((x[:65], y[:65]), batch_size=32, transform=noisy),
        epochs=3,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=2, background=background),
        callbacks=[Counter(counter_of(folder))],
        show=False,
    )


def whole(folder: Path) -> stoker.Fitted:
    """Under DDP, every rank with the whole model; a thread saves."""
    return _fit(folder, "ddp", 16, accumulate=1, background=True)


def windows(folder: Path) -> stoker.Fitted:
    """Windows of two batches, which are added up over the ranks when they close; saves wait for the disk."""
    return _fit(folder, "ddp", 16, accumulate=2, background=False)


def shards(folder: Path) -> stoker.Fitted:
    """Under FSDP2, every rank with a shard of the model, in windows; each writes its part of a checkpoint."""
    return _fit(folder, "fsdp", 64, accumulate=2, background=True)


KINDS: dict[str, Callable[[Path], stoker.Fitted]] = {"whole": whole, "windows": windows, "shards": shards}


def main() -> None:
    """One rank of one start; rank 0 prints the digests of all of them, if it is let."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    kind, folder = sys.argv[1], Path(sys.argv[2])
    end = digest(KINDS[kind](folder), folder)
    ends = joined().all_gather(end)
    if stoker.world().is_first:
        print("digest", *ends)


if __name__ == "__main__":
    main()
