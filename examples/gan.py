"""A GAN in one step: each objective is differentiated for its own part of the model and updates it.

The generator learns eight clusters on a circle. Prints how many of them its samples reach, and how many samples lie in
one. Takes about five seconds.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Objective, optim

CENTRES = torch.tensor([(math.cos(k * math.pi / 4), math.sin(k * math.pi / 4)) for k in range(8)])


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def step(model, batch):
    (real,) = batch
    fake = model["generator"](torch.randn(len(real), 8, device=real.device))
    on_real, on_fake = model["critic"](real), model["critic"](fake.detach())
    yield Objective("critic", F.softplus(-on_real).mean() + F.softplus(on_fake).mean())
    yield Objective("generator", F.softplus(-model["critic"](fake)).mean())  # by the critic that was just updated
    return {"real": on_real.sigmoid().mean(), "fake": on_fake.sigmoid().mean()}  # recorded beside the losses


torch.manual_seed(0)
real = CENTRES.repeat(1000, 1) + 0.05 * torch.randn(8000, 2)
model = nn.ModuleDict({"generator": mlp(8, 2), "critic": mlp(2, 1)})
adam = optim.Adam(betas=(0.5, 0.9))
learner = stoker.Learner(
    model,
    step=step,
    optimizer={"critic": adam, "generator": adam},
    lr={"critic": 2e-3, "generator": 1e-3},
    ema=0.995,
    seed=0,
)
fitted = learner.fit((real,), epochs=40, batch_size=256)

fake = stoker.valid(fitted.model["generator"])(torch.randn(2000, 8))  # the average of the generator's weights
distance, nearest = torch.cdist(fake, CENTRES).min(1)
inside = distance < 0.2
print(f"{len(nearest[inside].unique())} of 8 clusters reached; {inside.float().mean():.0%} of the samples lie in one")
