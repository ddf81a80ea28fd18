"""Contrastive learning (SimCLR): an encoder learns from two random views of each image, without labels.

Prints the accuracy of a linear classifier that is fitted to 50 labels, on the pixels and on the features of the
encoder. Takes about ten seconds.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

import stoker
from stoker import data, schedule

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # [1797, 1, 8, 8]


def view(images):
    """Moves each image by up to a pixel, scales its contrast, and adds noise."""
    grid = F.affine_grid(torch.eye(2, 3, device=images.device).expand(len(images), 2, 3), images.shape, False)
    moved = F.grid_sample(images, grid + torch.rand_like(grid[:, :1, :1]) / 2 - 0.25, align_corners=False)
    return moved * (0.6 + 0.8 * torch.rand_like(images[:, :, :1, :1])) + 0.2 * torch.randn_like(images)


def step(model, batch):
    first, second = (F.normalize(model(view(batch)), dim=1) for _ in range(2))
    similarity = first @ second.T / 0.2
    same = torch.arange(len(similarity), device=similarity.device)
    loss = (F.cross_entropy(similarity, same) + F.cross_entropy(similarity.T, same)) / 2
    return {"loss": loss, "found": (similarity.argmax(1) == same).float().mean()}


def accuracy(features):
    """Of a linear classifier that has seen the labels of 50 images, on the others."""
    features = features.flatten(1).numpy()
    classifier = LogisticRegression(max_iter=500).fit(features[:50], digits.target[:50])
    return classifier.score(features[50:], digits.target[50:])


torch.manual_seed(0)
encoder = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten()),
)
projection = nn.Sequential(nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 64))
train = data.Loader(images, batch_size=256, shuffle=0, drop_last=True)
lr = schedule.cosine(3e-3, warmup=0.1)  # of the updates of the fit
stoker.Learner(nn.Sequential(encoder, projection), step=step, lr=lr, seed=0).fit(train, epochs=20)
learned = accuracy(stoker.valid(encoder)(images))
print(f"accuracy with 50 labels: {learned:.3f} on the encoder's features, {accuracy(images):.3f} on the pixels")
