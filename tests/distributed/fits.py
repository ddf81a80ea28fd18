"""Fits whose results do not depend on the number of processes; in float64, so that rounding does not matter."""

import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, metrics, optim, schedule
from stoker.distributed import _world


def samples(count, seed=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (count,), generator=generator)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).double()


class Tokens(nn.Module):
    """The loss is a mean over the unmasked tokens; some samples have none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 5).double()

    def train_step(self, batch):
        x, y, mask = batch
        logits = self.body(x)
        loss = F.cross_entropy(logits[mask], y[mask])  # NaN where no token is left
        return stoker.SequenceOutput(loss, logits=logits, targets=y, mask=mask)

    @staticmethod
    def samples(count=21):
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(count, 7, 3, generator=generator, dtype=torch.float64)
        y = torch.randint(0, 5, (count, 7), generator=generator)
        kept = torch.randint(0, 8, (count,), generator=generator)
        kept[4:9] = 0
        return x, y, torch.arange(7) < kept[:, None]


class OwnLoss(Tokens):
    """Computes the loss in `forward`; nothing says that it is a mean over tokens."""

    train_step = None

    def forward(self, x, y, mask):
        logits = self.body(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=7)
        return {"loss": loss, "size": logits[mask].square().mean()}

    @staticmethod
    def samples(count=21):
        x, y, mask = Tokens.samples(count)
        return {"x": x, "mask": mask, "y": y.where(mask, 7)}


def step_of_network(model, batch):
    x, y = batch
    logits = model(x)
    return {"loss": F.cross_entropy(logits, y), "correct": (logits.argmax(1) == y).double().mean()}


class Two(nn.Module):
    """Two parts with one objective each; the second uses the updated first part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 5).double(), nn.Linear(5, 4).double()

    def train_step(self, batch):
        x, y = batch
        yield stoker.Objective("body", self.body(x).square().mean() + F.cross_entropy(self.head(self.body(x)), y))
        yield stoker.Objective("head", F.cross_entropy(self.head(self.body(x).detach()), y))


def learner(model=None, **settings):
    given = {"loss": F.cross_entropy, "optimizer": optim.AdamW(), "lr": 2**-7, "seed": 3, **settings}
    return stoker.Learner(network() if model is None else model, **given)


def _fit(of, data, *, batch_size=16, epochs=2, **settings):
    return of.fit(data, batch_size=batch_size, epochs=epochs, show=False, **settings)


def plain(parallel, count=97):
    of = learner(metrics=[metrics.Accuracy(), metrics.AUROC(name="area")], parallel=parallel)
    return _fit(of, samples(count), valid=samples(37, seed=6))


def divides(parallel):
    return plain(parallel, 96)


def short(parallel):
    """Most ranks have no sample of most batches, in training and in validation."""
    return _fit(learner(parallel=parallel, metrics=[metrics.Accuracy()]), samples(3), batch_size=2, valid=samples(1))


def windows(parallel):
    of = learner(accumulate=3, clip_norm=0.05, lr=schedule.step(2**-7, every=3, gamma=0.5), parallel=parallel)
    return _fit(of, samples(101), valid=samples(9, seed=6))


def tokens(parallel):
    of = learner(Tokens(), loss=None, parallel=parallel, metrics=[metrics.Accuracy()])
    return _fit(of, Tokens.samples(), batch_size=4, valid=Tokens.samples())


def token_windows(parallel):
    return _fit(learner(Tokens(), loss=None, accumulate=2, parallel=parallel), Tokens.samples(), batch_size=4)


def own_loss(parallel):
    of = learner(OwnLoss(), loss=None, parallel=parallel)
    return _fit(of, OwnLoss.samples(), batch_size=4, valid=OwnLoss.samples())


def step_function(parallel):
    of = learner(loss=None, step=step_of_network, parallel=parallel, accumulate=2, ema=0.5)
    return _fit(of, samples(37), valid=samples(9, seed=6))


def groups(parallel):
    of = learner(
        optimizer={"0": optim.SGD(momentum=0.9), "*": optim.AdamW(weight_decay=0.1)},
        lr={"*.bias": 0.05, "*": schedule.linear(1e-2, 1e-3, steps=9)},
        metrics=[metrics.GradientNorm()],
        parallel=parallel,
    )
    frozen = callbacks.FreezeUntil("2", epoch=2)
    return _fit(of, samples(50), callbacks=[frozen], monitor="train/loss", mode="max")  # not the last weights


def objectives(parallel):
    of = learner(Two(), loss=None, optimizer={"body": optim.SGD(), "head": optim.AdamW()}, parallel=parallel)
    return _fit(of, samples(37))


def average(parallel):
    of = learner(ema=0.8, loss=nn.CrossEntropyLoss(reduction="sum"), clip_value=0.5, lr=1e-3, parallel=parallel)
    return _fit(of, samples(43), valid=samples(11), validate_every=2)


class Temperature(nn.Module):
    """A loss with a trained parameter."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, logits, targets):
        return F.cross_entropy(logits * self.temperature, targets)


def micro_batches(parallel):
    """The shares of the ranks differ, and so do their numbers of micro-batches."""
    of = learner(metrics=[metrics.Accuracy()], accumulate=2, clip_norm=0.05, parallel=parallel)
    return _fit(of, samples(97), valid=samples(9, seed=6), micro_batch=3)


def recomputed(parallel):
    if parallel == "fsdp":
        return _fit(learner(parallel=stoker.Parallel(mode="fsdp", wrap=nn.Linear, recompute=True)), samples(43))
    return _fit(learner(parallel=parallel, recompute=nn.Linear), samples(43))


def trained_loss(parallel):
    loss = Temperature()
    parallel = "ddp" if parallel == "fsdp" else parallel  # the parameters of a loss are not sharded
    of = learner(loss=loss, ema=0.8, lr={"loss": 0.1, "*": 1e-2}, parallel=parallel)
    fitted = _fit(of, samples(43), valid=samples(11))
    assert loss.temperature != 1
    fitted.model.register_buffer("temperature", loss.temperature.detach())  # compared with the weights
    return fitted


CASES = {
    each.__name__: each
    for each in (
        *(plain, divides, short, windows, tokens, token_windows, groups, objectives, average, trained_loss),
        *(micro_batches, recomputed, own_loss, step_function),
    )
}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def results_of(fitted):
    """The results of a fit as plain values."""
    history = fitted.history
    return {
        "weights": {name: whole(value).detach().clone() for name, value in fitted.model.state_dict().items()},
        "history": {name: history[name] for name in history.columns if not name.startswith("time")},
        "best": None if fitted.best is None else tuple(fitted.best),
        "length": (fitted.epochs, fitted.updates),
        "stopped": fitted.stopped,
    }


def results(rank, size, parallel, names):
    """The results of every case, with scores and predictions for data that does not divide evenly."""
    torch.set_num_threads(1)
    found = {}
    if parallel == "overlapped":  # more than one bucket, so that DDP sends some during the backward pass
        parallel = stoker.Parallel(mode="ddp", bucket_mb=1e-5)
    if parallel == "many":  # ranks merge and agree as in a large world
        parallel, _world.MANY_RANKS = "auto", 2
    for name in names:
        fitted = CASES[name](parallel)
        found[name] = results_of(fitted)
        data = Tokens.samples() if "token" in name else OwnLoss.samples() if name == "own_loss" else samples(7)
        if name != "objectives":
            found[name]["scores"] = fitted.evaluate(data, batch_size=3)
        if name in ("plain", "average"):
            found[name]["predictions"] = fitted.predict(samples(7)[0], batch_size=3)
    return found
