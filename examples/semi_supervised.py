"""Semi-supervised learning: 50 labelled digits and 1,200 without labels, which `data.zip` reads side by side.

The model's own confident answers on images are the targets for noisy versions of them (FixMatch). Prints the
validation accuracy with the labels alone and with both sources. Takes about ten seconds.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import stoker
from stoker import ClassificationOutput, data, metrics

digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)


def add_noise(images):
    """Scales the contrast of each image and adds noise."""
    return images * (0.6 + 0.8 * torch.rand_like(images[:, :, :1, :1])) + 0.3 * torch.randn_like(images)


def step(model, batch):
    images, labels = batch["labelled"]
    supervised = F.cross_entropy(model(add_noise(images)), labels)
    confidence, answers = model(batch["unlabelled"]).detach().softmax(1).max(1)
    sure = (confidence > 0.9).float()
    consistency = (F.cross_entropy(model(add_noise(batch["unlabelled"])), answers, reduction="none") * sure).mean()
    return {"loss": supervised + consistency, "supervised": supervised, "sure": sure.mean()}


def valid_step(model, batch):
    images, labels = batch
    logits = model(images)
    return ClassificationOutput(F.cross_entropy(logits, labels), logits, labels)


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(1024, 10)),
    )


torch.manual_seed(0)
labelled, valid = (images[:50], labels[:50]), (images[1250:], labels[1250:])
both = data.zip(labelled=data.cycle(data.Loader(labelled, batch_size=16, shuffle=1)), unlabelled=images[50:1250])
settings = {"lr": 2e-3, "metrics": [metrics.Accuracy(on="valid")], "seed": 0}
alone = stoker.Learner(cnn(), loss=nn.CrossEntropyLoss(), **settings).fit(labelled, valid=valid, epochs=60, show=False)
learner = stoker.Learner(cnn(), step=step, valid_step=valid_step, ema=0.99, **settings)
fitted = learner.fit(both, valid=valid, epochs=15, batch_size=64, monitor="valid/accuracy")
scores = [each.evaluate(valid)["accuracy"] for each in (alone, fitted)]
print(f"validation accuracy: {scores[0]:.3f} with the labels alone, {scores[1]:.3f} with both sources")
