"""A training loop of your own: its parts, and that it, `fit` and plain torch compute the same bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Accumulator, ClassificationOutput, data, metrics, optim
from tests.features.models import X, learner, same_weights


class Model(nn.Module):
    """Two convolutions and two linear layers, with batch norm and dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
        self.norm, self.dropout = nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.linear1, self.linear2 = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, images):
        x = self.dropout(F.relu(self.conv2(F.relu(self.norm(self.conv1(images))))))
        return self.linear2(F.relu(self.linear1(x.flatten(1))))


GENERATOR = torch.Generator().manual_seed(3)
IMAGES, LABELS = torch.randn(256, 1, 8, 8, generator=GENERATOR), torch.randint(0, 10, (256,), generator=GENERATOR)
BATCH = IMAGES[:64], LABELS[:64]


def loss_of(model, batch=BATCH):
    return F.cross_entropy(model(batch[0]), batch[1])


# --- validation and metrics


def test_metrics_work_in_a_loop_of_your_own():
    view, metric, right = stoker.valid(Model()), metrics.Accuracy(), 0
    state = metric.init(torch.device("cpu"))
    for images, targets in data.Loader((IMAGES, LABELS), batch_size=100):
        logits = view(images)
        state = metric.update(state, ClassificationOutput(F.cross_entropy(logits, targets), logits, targets))
        right += (logits.argmax(1) == targets).sum().item()
    assert metric.compute(state) == right / 256


# --- plain torch, the parts and `fit`: the same bits


def in_plain_torch(updates):
    """Accumulation of two batches, clipping, and two optimizers with a learning rate that changes."""
    model = Model()
    head = [*model.linear1.parameters(), *model.linear2.parameters()]
    body = [*model.conv1.parameters(), *model.conv2.parameters(), *model.norm.parameters()]
    adam, sgd = torch.optim.AdamW(body, lr=1e-2), torch.optim.SGD(head, lr=0.1, momentum=0.9)
    batches = rows_of(updates)
    torch.manual_seed(1)
    for update in range(updates):
        adam.zero_grad()
        sgd.zero_grad()
        for rows in batches[2 * update : 2 * update + 2]:
            (loss_of(model, (IMAGES[rows], LABELS[rows])) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        adam.param_groups[0]["lr"] = 1e-2 / (1 + update)
        adam.step()
        sgd.step()
    return model


def rows_of(updates):
    """The samples of every micro-batch, in the loader's order."""
    loader, found = data.Loader((torch.arange(256),), batch_size=16, shuffle=9), []
    while len(found) < 2 * updates:
        found.extend(rows for (rows,) in loader)
    return found


def with_the_parts(updates):
    model, accumulator = Model(), Accumulator()
    adam, sgd = optim.AdamW().init(model), optim.SGD(momentum=0.9).init(model)
    loader = data.Loader((IMAGES, LABELS), batch_size=16, shuffle=9)
    torch.manual_seed(1)
    update = 0
    while update < updates:
        for batch in loader:
            accumulator.add(stoker.backward(loss_of(model, batch), model))
            if len(accumulator) == 2:
                grads = accumulator.take().clip_norm(0.05)
                sgd.step(grads.take("linear*"), lr=0.1)
                adam.step(grads, lr=1e-2 / (1 + update))
                update += 1
                if update == updates:
                    break
    return model


def test_the_parts_compute_the_bits_of_plain_torch_over_100_updates():
    assert same_weights(in_plain_torch(100), with_the_parts(100))


@pytest.mark.parametrize("change", ["clip", "lr"])
def test_the_comparison_notices_a_small_change(change, monkeypatch):
    """A negative control for the comparisons above."""
    if change == "clip":
        clip = stoker.Gradients.clip_norm
        monkeypatch.setattr(stoker.Gradients, "clip_norm", lambda self, limit: clip(self, limit * (1 + 1e-6)))
    else:
        step = optim.Optimizer.step
        monkeypatch.setattr(optim.Optimizer, "step", lambda self, grads, *, lr: step(self, grads, lr=lr * (1 + 1e-6)))
    assert not same_weights(in_plain_torch(5), with_the_parts(5))


def torch_loop(make_optimizer, model, epochs=2):
    """The loop that everybody writes, on the samples in their order."""
    optimizer = make_optimizer(model)
    model.train()
    torch.manual_seed(0)
    for _ in range(epochs):
        for batch in zip(IMAGES.split(32), LABELS.split(32), strict=True):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return model


PARTS = {"conv*": 1e-3, "*": 1e-2}


def groups(model, **first):
    """The convolutions with settings of their own, the rest with the defaults."""
    names = {name for name, _ in model.named_parameters() if name.startswith("conv")}
    chosen = [each for name, each in model.named_parameters() if name in names]
    return [{"params": chosen, **first}, {"params": [p for n, p in model.named_parameters() if n not in names]}]


@pytest.mark.parametrize(
    ("ours", "lr", "theirs"),
    [
        (optim.SGD(momentum=0.9, fused=False), 0.01, lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9)),
        (optim.Adam(fused=False), 0.01, lambda m: torch.optim.Adam(m.parameters(), lr=0.01)),
        (optim.AdamW(fused=False), 0.01, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)),
        (optim.RMSprop(), 0.01, lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01)),
        (optim.wrap(torch.optim.SGD, momentum=0.9), 0.01, lambda m: torch.optim.SGD(m.parameters(), 0.01, 0.9)),
        (optim.SGD(momentum=0.9, fused=False), PARTS, lambda m: torch.optim.SGD(groups(m, lr=1e-3), 1e-2, 0.9)),
        (
            {"conv*": optim.SGD(momentum=0.5, fused=False), "*": optim.SGD(momentum=0.9, fused=False)},
            0.01,
            lambda m: torch.optim.SGD(groups(m, momentum=0.5), 0.01, 0.9),
        ),
    ],
    ids=["SGD", "Adam", "AdamW", "RMSprop", "wrapped", "learning rates by part", "algorithms by part"],
)
def test_fit_computes_the_bits_of_the_torch_loop(ours, lr, theirs):
    """Also the mode: the model comes in eval mode, as after a test, and is trained in training mode."""
    found = learner(Model().eval(), loss=nn.CrossEntropyLoss(), optimizer=ours, lr=lr).fit(
        data.Loader((IMAGES, LABELS), batch_size=32), epochs=2, show=False
    )
    assert same_weights(found.model, torch_loop(theirs, Model()))


def test_fit_computes_the_bits_of_a_loop_with_the_parts():
    def batches():
        return data.Loader((IMAGES, LABELS), batch_size=32, shuffle=5)

    adam = optim.Adam(fused=False)
    found = learner(Model(), loss=F.cross_entropy, optimizer=adam, lr=1e-3, seed=7).fit(
        batches(), valid=(IMAGES, LABELS), epochs=2, keep="last", show=False
    )
    model, loader = Model(), batches()
    optimizer = adam.init(model)
    torch.manual_seed(7)
    for _ in range(2):
        for batch in loader:
            optimizer.step(stoker.backward(loss_of(model, batch), model), lr=1e-3)
    assert same_weights(found.model, model)


def test_a_loss_of_shape_1_works_as_it_is():
    def loss(output, label):
        return ((label - output) ** 2).mean(0)  # [1]

    found = learner(nn.Linear(4, 1), loss=loss, metrics=[metrics.MSE()]).fit(
        (X, X.sum(1, keepdim=True)), epochs=5, show=False
    )
    losses = found.history["train/loss"]
    assert losses[-1] < losses[0] and losses == pytest.approx(found.history["train/mse"], rel=1e-5)
