"""Small data, models and learners that the tests of this directory share."""

import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Objective, SequenceOutput, optim

_GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(80, 4, generator=_GENERATOR)
Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(80, 1, generator=_GENERATOR)
CLASSES = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()
YES = (Y > 0).float()
_LENGTHS = torch.randint(1, 7, (80,), generator=_GENERATOR)
TOKENS = torch.randint(1, 5, (80, 6), generator=_GENERATOR) * (torch.arange(6) < _LENGTHS[:, None])  # 0 is padding


class Net(nn.Module):
    def __init__(self, d_hidden=8, d_out=1, dropout=0.0):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, d_hidden), nn.ReLU()), nn.Linear(d_hidden, d_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.head(self.dropout(self.body(x)))


class Tagger(nn.Module):
    """Predicts a class for every token of a padded sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, tokens):
        return self.out(self.embed(tokens))

    def train_step(self, batch):
        (tokens,) = batch
        logits = self(tokens)
        loss = F.cross_entropy(logits.movedim(-1, 1), tokens, ignore_index=0)
        return SequenceOutput(loss, logits, tokens, mask=tokens != 0)


class Gan(nn.Module):
    """A critic and a generator, each with a loss of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)

    def losses(self, x):
        fake = self.generator(x)
        yield "critic", F.softplus(-self.critic(x)).mean() + F.softplus(self.critic(fake.detach())).mean()
        yield "generator", F.softplus(-self.critic(fake)).mean()

    def train_step(self, batch):
        for name, loss in self.losses(batch[0]):
            yield Objective(name, loss)


def linear(d_out=1):
    """A linear model with the same weights every time."""
    torch.manual_seed(0)
    return nn.Linear(4, d_out)


def learner(model=Net, **settings):
    return stoker.Learner(model, **{"loss": nn.MSELoss(), "optimizer": optim.Adam(), "lr": 1e-2, "seed": 0, **settings})


def fit(source=(X, Y), *, model=Net, callbacks=(), epochs=2, valid=None, batch_size=None, keep="best", **settings):
    """Fits without console output; `settings` are the learner's."""
    return learner(model, **settings).fit(
        source, valid=valid, epochs=epochs, batch_size=batch_size, callbacks=callbacks, keep=keep, show=False
    )


def same_weights(a, b):
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)
