"""The same loop by hand in torch and on stoker's parts: the same bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Accumulator, data, optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(400, 16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.body(x))


def samples():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(256, 1, 12, 12, generator=generator)
    return x, torch.randint(0, 10, (256,), generator=generator)


def orders(updates):
    """Which samples make each micro-batch, by the loader's own rule, written down once more."""
    loader = data.Loader((torch.arange(256),), batch_size=16, shuffle=9)
    found = []
    while len(found) < 2 * updates:
        found.extend(rows for (rows,) in loader)
    return found[: 2 * updates]


def by_hand(updates):
    torch.manual_seed(0)
    model, (x, y) = Net(), samples()
    adam = torch.optim.AdamW(model.body.parameters(), lr=1e-2)
    sgd = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
    rows = orders(updates)
    torch.manual_seed(1)
    for update in range(updates):
        adam.zero_grad()
        sgd.zero_grad()
        for batch in rows[2 * update : 2 * update + 2]:
            (F.cross_entropy(model(x[batch]), y[batch]) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.param_groups[0]["lr"] = 1e-2 / (1 + update)
        adam.step()
        sgd.step()
    return model


def on_the_parts(updates, judged=False):
    torch.manual_seed(0)
    model, (x, y) = Net(), samples()
    adam, sgd = optim.AdamW().init(model), optim.SGD(momentum=0.9).init(model)
    loader = data.Loader((x, y), batch_size=16, shuffle=9)
    accumulator = Accumulator()
    torch.manual_seed(1)
    update = 0
    while update < updates:
        for images, targets in loader:
            accumulator.add(stoker.backward(F.cross_entropy(model(images), targets), model))
            if len(accumulator) == 2:
                grads = accumulator.take().clip_norm(0.5)
                adam.step(grads.take("body"), lr=1e-2 / (1 + update))
                sgd.step(grads, lr=0.1)
                update += 1
                if judged:
                    stoker.valid(model)(x[:50])
                if update == updates:
                    break
    return model


def same(a, b):
    left, right = a.state_dict(), b.state_dict()
    assert list(left) == list(right)
    return all(torch.equal(left[name], right[name]) for name in left)


def test_the_same_bits_over_100_updates():
    """With dropout, batch norm, clipping, two optimizers and accumulation; batch norm's statistics included."""
    assert same(by_hand(100), on_the_parts(100))


def test_validation_in_between_changes_nothing():
    assert same(on_the_parts(20), on_the_parts(20, judged=True))


@pytest.mark.parametrize("change", ["clip", "seed", "lr"])
def test_the_comparison_would_notice(change, monkeypatch):
    """A negative control: any of these changed by a little must be seen."""
    if change == "clip":
        clip = stoker.Gradients.clip_norm
        monkeypatch.setattr(stoker.Gradients, "clip_norm", lambda self, limit: clip(self, limit * (1 + 1e-6)))
    elif change == "seed":
        monkeypatch.setattr(torch, "manual_seed", lambda seed, seed_all=torch.manual_seed: seed_all(seed + 1))
        changed = on_the_parts(5)
        monkeypatch.undo()
        assert not same(by_hand(5), changed)
        return
    else:
        step = optim.Optimizer.step
        monkeypatch.setattr(optim.Optimizer, "step", lambda self, grads, *, lr: step(self, grads, lr=lr * (1 + 1e-6)))
    assert not same(by_hand(5), on_the_parts(5))
