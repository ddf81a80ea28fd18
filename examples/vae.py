"""A variational autoencoder: a step returns a mapping, and the numbers beside the loss are recorded by name.

Prints both parts of the loss in validation at the beginning and at the end, and how well digits are recognised by
their two latent numbers. Takes about five seconds.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

import stoker
from stoker import data

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16  # [1797, 64]


class VAE(nn.Module):
    def __init__(self, latent: int = 2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, images):
        return self.encoder(images).chunk(2, 1)  # mean, log of the variance

    def train_step(self, images):
        mean, log_variance = self(images)
        latent = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        pixels = F.binary_cross_entropy_with_logits(self.decoder(latent), images, reduction="none").sum(1).mean()
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return {"loss": pixels + kl, "kl": kl, "reconstruction": pixels}


train, valid = data.split(images, [0.8, 0.2], seed=0)
learner = stoker.Learner(VAE(), lr=3e-3, seed=0)
fitted = learner.fit(train, valid=valid, epochs=20, batch_size=64)
for epoch in (fitted.history.epochs[0], fitted.history.epochs[-1]):
    values = next(row for row in fitted.history if row["epoch"] == epoch)
    print(f"epoch {epoch}: reconstruction {values['valid/reconstruction']:.2f}, KL {values['valid/kl']:.2f}")
means, _ = fitted.predict(images)
neighbours = KNeighborsClassifier().fit(means[:1000], digits.target[:1000])
print(f"digits recognised by two latent numbers: {neighbours.score(means[1000:], digits.target[1000:]):.3f}")
