"""A small model, its gradients, and a comparison, for the tests of optimizers."""

import torch
from torch import nn

from stoker import backward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.base, self.classifier = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.classifier(self.base(self.embed(x).tanh()).tanh())


def net():
    torch.manual_seed(0)
    return Net()


def grads_of(model, seed=1):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    return backward(model(x).square().mean(), model)


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
