"""A script that any launcher may start, any number of times, with any number of processes: it resumes its run.

python train.py                                   one process
torchrun --nproc-per-node=4 train.py              four, on this machine
sbatch slurm.sbatch                               Slurm
kubectl apply -f kubernetes.yaml                  Kubernetes
"""

import os
from pathlib import Path

from torch import nn

import stoker
from stoker import Checkpoint, data, metrics, schedule

EPOCHS, BATCH = 3, 256  # the global batch


class Digits(nn.Module):
    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, images):
        return self.layers(images.float() / 255)


def main(run: Path) -> None:
    samples = data.digits("train", size=4000).tensors
    learner = stoker.Learner(
        Digits,
        loss=nn.CrossEntropyLoss(),
        lr=schedule.cosine(3e-3, updates=13 * EPOCHS, warmup=5),
        metrics=[metrics.Accuracy()],
        seed=0,
    )
    how = {"run": run, "resume": True, "checkpoint": Checkpoint(every="10 minutes")}  # starts or resumes the run
    mark_unfinished(run, unfinished=True)  # SIGTERM may end the process inside fit
    fitted = learner.fit(samples, valid=0.2, epochs=EPOCHS, batch_size=BATCH, **how)
    mark_unfinished(run, unfinished=fitted.stopped.startswith("Stopped before the deadline"))
    scores = fitted.evaluate(data.digits("test", size=1000).tensors)  # on all processes
    report(fitted.stopped, scores)


@stoker.rank_zero
def mark_unfinished(run: Path, *, unfinished: bool) -> None:
    """Creates or removes a file next to the run that tells job scripts to queue the job again."""
    path = run.with_name(f"{run.name}.more")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch() if unfinished else path.unlink(missing_ok=True)


@stoker.rank_zero
def report(stopped: str, scores: dict[str, float]) -> None:
    print(f"{stopped}: accuracy {scores['accuracy']:.3f} on unseen digits")


if __name__ == "__main__":
    main(Path(os.environ.get("RUN", "runs/digits")))  # on a file system that all machines see
