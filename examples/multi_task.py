"""Two tasks, one model: a head for the digit and one for its rotation, with a metric for each.

The loss is a module with parameters of its own, the uncertainty of each task. They weigh the two losses and are trained
with the model. Prints the accuracy of each head in validation. Takes about ten seconds.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import stoker
from stoker import data, metrics


class TwoHeads(nn.Module):
    def __init__(self, hidden: int = 128):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, hidden))
        self.digit, self.rotation = nn.Linear(hidden, 10), nn.Linear(hidden, 4)

    def forward(self, images):
        features = self.body(images).relu()
        return {"digit": self.digit(features), "rotation": self.rotation(features)}


class Uncertainty(nn.Module):
    """The sum of the cross entropies, each divided by the learned variance of its task (Kendall et al.)."""

    def __init__(self, *tasks: str):
        super().__init__()
        self.log_variance = nn.ParameterDict({task: torch.zeros(()) for task in tasks})

    def forward(self, logits, targets):
        return sum(
            F.cross_entropy(logits[task], targets[task]) * (-log_variance).exp() + log_variance / 2
            for task, log_variance in self.log_variance.items()
        )


torch.manual_seed(0)
digits = load_digits()
images, turns = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.randint(4, (1797,))
rotated = torch.stack([image.rot90(int(turn), (1, 2)) for image, turn in zip(images, turns, strict=True)])
samples = {"images": rotated, "digit": torch.tensor(digits.target), "rotation": turns}
train, valid = data.split(samples, [0.8, 0.2], seed=0)
learner = stoker.Learner(
    TwoHeads,
    loss=Uncertainty("digit", "rotation"),
    lr={"loss.*": 1e-2, "*": 2e-3},
    metrics=[metrics.Accuracy(of="digit"), metrics.Accuracy(of="rotation")],
    seed=0,
)
fitted = learner.fit(train, valid=valid, epochs=15)
variances = {task: round(each.exp().item(), 3) for task, each in fitted.loss.log_variance.items()}
print(fitted.evaluate(valid), "learned variances:", variances)
