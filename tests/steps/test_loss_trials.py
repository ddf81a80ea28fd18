"""Any split of a batch gives the loss and the gradient of the batch, or there is a warning.

The reference is one call of the loss function with the whole batch.
"""

import itertools
import random
from functools import partial

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import data, optim
from stoker.steps import Supervised, count_samples

# The first part is what a fit sees first: of as many samples as there are columns, too.
SPLITS = [(1, 2), (1, 1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (3, 4), (4, 4), (4, 1), (5, 3), (8, 3)]
WIDTHS = (1, 2, 3, 4)


def parts_of(value, rows):
    """Some rows of every tensor of a batch."""
    if isinstance(value, dict):
        return {name: parts_of(each, rows) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(parts_of(each, rows) for each in value)
    return value[rows] if value.dim() else value


def outcome(loss, predictions, targets, split, *, tolerance=1e-5):
    """'right', 'warned' or 'silent': the loss and the gradient of parts of a batch against one call with all of it."""
    warnings = []
    step = Supervised(nn.Identity(), loss, warn=warnings.append)
    if step.count is not None:
        step.count.is_split = True
    whole, *_ = leaves = [each for each in flat(predictions) if each.is_floating_point() and each.dim()]
    for leaf in leaves:
        leaf.requires_grad_()
    losses, weights, start = [], [], 0
    for size in split:
        rows = slice(start, start := start + size)
        batch = step.parts((whole[rows], parts_of(targets, rows)))
        output = step.score(parts_of(predictions, rows), batch)
        losses.append(output.loss)
        count = count_samples((output.targets, output.predictions)) if output.count is None else output.count
        weights.append(float(count))
    expected = loss(predictions, targets)
    gradients = torch.autograd.grad(expected, leaves, allow_unused=True)
    counted = [(value, weight) for value, weight in zip(losses, weights, strict=True) if weight or step.sums]
    if step.sums:
        combined = sum(value for value, _ in counted)
    elif not counted:
        return "right"  # no part counts
    else:
        combined = sum(value * weight for value, weight in counted) / sum(weights)
    found = torch.autograd.grad(combined, leaves, allow_unused=True)
    pairs = [(expected, combined), *((a, b) for a, b in zip(gradients, found, strict=True) if a is not None)]
    if not expected.isfinite() or all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs):
        return "right"
    return "warned" if warnings else "silent"


def flat(value):
    if isinstance(value, dict | tuple):
        return [leaf for each in (value.values() if isinstance(value, dict) else value) for leaf in flat(each)]
    return [value]


pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # of kl_div

# --- batches: predictions and targets of `count` samples with `width` columns


def numbers(count, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator), torch.randn(count, width, generator=generator)


def rows(count, width, seed=0):
    predictions, targets = numbers(count, width, seed)
    return predictions[:, 0].clone(), targets[:, 0].clone()


def probabilities(count, width, seed=0):
    predictions, targets = numbers(count, width, seed)
    return predictions.sigmoid(), (targets > 0).float()


def binary(count, width, seed=0):
    predictions, targets = numbers(count, width, seed)
    return predictions, (targets > 0).float()


def signs(count, width, seed=0):
    predictions, targets = numbers(count, width, seed)
    return predictions, targets.sign()


def positive(count, width, seed=0):
    predictions, targets = numbers(count, width, seed)
    return predictions.exp(), targets.exp()


def distributions(count, width, seed=0):
    predictions, targets = numbers(count, width + 1, seed)
    return predictions.log_softmax(1), targets.softmax(1)


def classes(count, width, seed=0):
    """Classes; the first batch has one class only."""
    predictions, targets = numbers(count, width + 1, seed)
    labels = targets.argmax(1)
    labels[: count // 2] = labels[0]
    return predictions, labels


def ignored_later(count, width, seed=0):
    """Every other target of the second half is ignored, and none of the first."""
    predictions, labels = classes(count, width, seed)
    labels[count // 2 :: 2] = -100
    labels[-1] = 0
    return predictions, labels


def ignored_first(count, width, seed=0):
    """All targets of the first part are ignored."""
    predictions, labels = classes(count, width, seed)
    labels[: max(count // 2, 1)] = -100
    labels[-1] = 0
    return predictions, labels


def tokens(count, width, seed=0):
    """As many tokens as columns, and as many classes as tokens + 1; lengths differ."""
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(count, width + 1, width + 2, generator=generator)
    labels = torch.randint(0, width + 2, (count, width + 1), generator=generator)
    lengths = torch.randint(1, width + 2, (count, 1), generator=generator)
    lengths[0] = width + 1
    return predictions, labels.masked_fill(torch.arange(width + 1) >= lengths, -100)


def tasks(count, width, seed=0):
    predictions, targets = numbers(count, width, seed)
    return {"a": predictions, "b": 2 * predictions[:, :1]}, {"a": targets, "b": 0.5 * targets[:, :1]}


def masked(count, width, seed=0):
    predictions, targets = numbers(count, width, seed)
    mask = (numbers(count, width, seed + 1)[0] > 0).float()
    mask[0] = 1.0
    mask[-1, 0] = 1.0
    return predictions, {"y": targets, "mask": mask}


def triples(count, width, seed=0):
    a, b = numbers(count, width + 1, seed)
    return (a, b), numbers(count, width + 1, seed + 1)[0]


def pairs(count, width, seed=0):
    (a, b), other = triples(count, width, seed)
    return (a, b), other[:, 0].sign()


def halves(count, width, seed=0):
    predictions, targets = numbers(count, width, seed)
    return predictions.half(), targets.half()


def bfloats(count, width, seed=0):
    predictions, targets = classes(count, width, seed)
    return predictions.bfloat16(), targets


def sequences(count, width, seed=0):
    """Log-probabilities [samples, time, classes], and labels with lengths, for CTC."""
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(count, 9, width + 2, generator=generator).log_softmax(-1)
    labels = torch.randint(1, width + 2, (count, 3), generator=generator)
    return predictions, {"labels": labels, "lengths": torch.randint(1, 4, (count,), generator=generator)}


# --- losses, by the kind of batch that they take

PENALTY = torch.linspace(0.5, 1.5, 12).reshape(4, 3)
BALANCE = torch.tensor([0.0, 3.0, 0.25, 1.0, 5.0, 2.0, 0.5])  # class 0 does not count


class Factor(nn.Module):
    """A loss with learned numbers: a factor, and penalties that do not depend on the data."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.scale, self.extra = inner, nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(3, 3))

    def forward(self, predictions, targets):
        loss = self.inner(predictions, targets)
        return loss * (-self.scale).exp() + self.scale / 2 + 1e-2 * self.extra.square().sum()


def both(function, **settings):
    """The mean and the sum of a loss of torch."""
    return {kind: partial(function, reduction=kind, **settings) for kind in ("mean", "sum")}


def weights_like(predictions):
    return BALANCE[: predictions.shape[1]].to(predictions.dtype)


def ctc(predictions, targets, reduction):
    steps = torch.full((len(predictions),), predictions.shape[1])
    lengths = targets["lengths"]
    return F.ctc_loss(predictions.transpose(0, 1), targets["labels"], steps, lengths, reduction=reduction)


def square(p, t):
    return (p - t) ** 2


def dice(p, t):
    p = p.sigmoid()
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def nce(p, t):
    return F.cross_entropy(F.normalize(p) @ F.normalize(t).T, torch.arange(len(p)))


def masked_mean(p, t):
    return (square(p, t["y"]) * t["mask"]).sum() / t["mask"].sum()


def spare_masked_mean(p, t):
    """As above with a Python number, which no graph shows."""
    return (square(p, t["y"]) * t["mask"]).sum() / max(float(t["mask"].sum()), 1.0)


def token_mask(p, t):
    mask = t != -100
    values = F.cross_entropy(p.transpose(1, 2), t.clamp(0), reduction="none")
    return (values * mask).sum() / mask.sum()


def token_values(p, t):
    values = F.cross_entropy(p.transpose(1, 2), t, reduction="none")
    return values.sum() / (t != -100).sum()


def sequence_means(p, t):
    """The mean over the tokens of each sequence, and then over sequences."""
    mask = t != -100
    values = F.cross_entropy(p.transpose(1, 2), t, reduction="none")
    return (values.sum(1) / mask.sum(1).clamp(min=1)).mean()


def two_masks(p, t):
    flat, labels = p.flatten(0, 1), t.flatten()
    return F.cross_entropy(flat, labels) + F.cross_entropy(flat, labels.where(labels != 1, -100))


REGRESSION = {
    "mse": both(F.mse_loss),
    "l1": both(F.l1_loss),
    "smooth l1": both(F.smooth_l1_loss),
    "huber": both(F.huber_loss, delta=0.5),
    "modules": {"mean": nn.MSELoss(), "sum": nn.MSELoss(reduction="sum"), "factor": Factor(F.l1_loss)},
    "poisson": both(F.poisson_nll_loss),
    "by hand": {
        "sum by length": lambda p, t: square(p, t).sum() / len(p),
        "sum by shape": lambda p, t: square(p, t).sum() / p.shape[0],
        "sum by columns": lambda p, t: square(p, t).sum() / p.shape[1],
        "sum by elements": lambda p, t: square(p, t).sum() * (1 / p.numel()),
        "sum by two": lambda p, t: square(p, t).sum() / 2,
        "sum by four": lambda p, t: square(p, t).sum() / 4,
        "mean of columns, added": lambda p, t: square(p, t).mean(0).sum(),
        "transposed mean, added": lambda p, t: square(p, t).T.mean(1).sum(),
        "mean of samples, added": lambda p, t: square(p, t).mean(1).sum(),
        "sum of samples, mean": lambda p, t: square(p, t).sum(1).mean(),
        "sum, times its length": lambda p, t: square(p, t).mean() * len(p),
        "columns, stacked and added": lambda p, t: torch.stack(
            [F.mse_loss(p[:, each], t[:, each]) for each in range(p.shape[1])]
        ).sum(),
        "columns, stacked, mean": lambda p, t: torch.stack(
            [F.mse_loss(p[:, each], t[:, each], reduction="sum") for each in range(p.shape[1])]
        ).mean(),
        "samples, stacked and added": lambda p, t: torch.stack(
            [F.mse_loss(a, b) for a, b in zip(p, t, strict=True)]
        ).sum(),
        "samples, stacked, mean": lambda p, t: torch.stack(
            [F.mse_loss(a, b) for a, b in zip(p, t, strict=True)]
        ).mean(),
        "einsum": lambda p, t: torch.einsum("nk,nk->", p - t, p - t) / len(p),
        "norm": lambda p, t: (p - t).norm(dim=1).mean(),
        "squared norm": lambda p, t: (p - t).norm() ** 2,
        "root": lambda p, t: square(p, t).mean().sqrt(),
        "root by sum": lambda p, t: square(p, t).sum().sqrt(),
        "logarithm": lambda p, t: square(p, t).mean().log(),
        "median": lambda p, t: square(p, t).median(),
        "largest": lambda p, t: square(p, t).max(),
        "sum and mean": lambda p, t: square(p, t).sum() + 0.1 * p.square().mean(),
        "sum and penalty": lambda p, t: square(p, t).sum() + PENALTY.square().sum(),
        "mean and penalty": lambda p, t: square(p, t).mean() + PENALTY.square().sum(),
        "variance": lambda p, t: square(p, t).mean() + p.var(0, correction=0).mean(),
        "positive targets": lambda p, t: (square(p, t) * (t > 0)).sum() / (t > 0).sum().clamp(min=1),
        "selected": lambda p, t: square(p, t)[t > -0.5].mean(),
        "selected, by length": lambda p, t: square(p, t)[t > 0].sum() / len(p),
        "relative": lambda p, t: square(p, t).sum() / t.square().sum(),
    },
}
TABLE = {
    numbers: {f"{name}, {kind}": loss for name, kinds in REGRESSION.items() for kind, loss in kinds.items()},
    rows: {
        "mean": lambda p, t: square(p, t).mean(),
        "sum": lambda p, t: square(p, t).sum(),
        "sum by length": lambda p, t: square(p, t).sum() / len(t),
        "pairs": lambda p, t: F.relu(1 - (p[:, None] - p) * (t[:, None] - t).sign()).mean(),
    },
    halves: {
        f"half {name}": F.mse_loss if name == "mean" else partial(F.mse_loss, reduction="sum")
        for name in ("mean", "sum")
    },
    binary: {
        **{f"binary, {kind}": loss for kind, loss in both(F.binary_cross_entropy_with_logits).items()},
        "dice": dice,
        "balanced": lambda p, t: F.binary_cross_entropy_with_logits(p, t, pos_weight=torch.tensor(3.0)),
        "by positives": lambda p, t: F.binary_cross_entropy_with_logits(p, t, reduction="sum") / t.sum().clamp(min=1),
        "margin": lambda p, t: F.multilabel_soft_margin_loss(p, t),
        "margin, sum": lambda p, t: F.multilabel_soft_margin_loss(p, t, reduction="sum"),
    },
    probabilities: {f"probability, {kind}": loss for kind, loss in both(F.binary_cross_entropy).items()},
    signs: {
        **{f"soft margin, {kind}": loss for kind, loss in both(F.soft_margin_loss).items()},
        **{f"hinge, {kind}": loss for kind, loss in both(F.hinge_embedding_loss).items()},
    },
    positive: {
        "gaussian": lambda p, t: F.gaussian_nll_loss(p, t, p),
        "gaussian, sum": lambda p, t: F.gaussian_nll_loss(p, t, p, reduction="sum"),
        "percentage": lambda p, t: ((p - t).abs() / t).mean(),
        "logarithms": lambda p, t: ((p / t).log() ** 2).sum() / len(p),
    },
    distributions: {
        **{f"kl, {kind}": loss for kind, loss in both(F.kl_div).items()},
        "kl, batch mean": partial(F.kl_div, reduction="batchmean"),
        "cross entropy of probabilities": F.cross_entropy,
        "cross entropy of probabilities, sum": partial(F.cross_entropy, reduction="sum"),
        "weighted cross entropy of probabilities": lambda p, t: F.cross_entropy(p, t, weight=weights_like(p)),
    },
    classes: {
        **{f"cross entropy, {kind}": loss for kind, loss in both(F.cross_entropy).items()},
        **{f"smooth, {kind}": loss for kind, loss in both(F.cross_entropy, label_smoothing=0.1).items()},
        **{f"multi margin, {kind}": loss for kind, loss in both(F.multi_margin_loss).items()},
        "module": nn.CrossEntropyLoss(),
        "half": lambda p, t: F.cross_entropy(p.half(), t).float(),
        "weights by hand": lambda p, t: (
            -(p.log_softmax(1).gather(1, t[:, None])[:, 0] * (weights_like(p) + 0.5)[t]).sum()
            / (weights_like(p) + 0.5)[t].sum()
        ),
        "focal": lambda p, t: ((1 - torch.exp(-F.cross_entropy(p, t, reduction="none"))) ** 2).mean(),
        "one hot": lambda p, t: F.mse_loss(p.softmax(1), F.one_hot(t, p.shape[1]).to(p.dtype)),
        "nll": lambda p, t: F.nll_loss(p.log_softmax(1), t),
    },
    bfloats: {"bfloat16": F.cross_entropy, "bfloat16, sum": partial(F.cross_entropy, reduction="sum")},
    tokens: {
        "tokens": lambda p, t: F.cross_entropy(p.transpose(1, 2), t),
        "tokens, sum": lambda p, t: F.cross_entropy(p.transpose(1, 2), t, reduction="sum"),
        "tokens, sum by samples": lambda p, t: F.cross_entropy(p.transpose(1, 2), t, reduction="sum") / len(p),
        "tokens, smooth": lambda p, t: F.cross_entropy(p.transpose(1, 2), t, label_smoothing=0.1),
        "next token": lambda p, t: F.cross_entropy(p[:, :-1].flatten(0, 1), t[:, 1:].flatten()),
        "selected": lambda p, t: F.cross_entropy(p[t != -100], t[t != -100]),
        "mask": token_mask,
        "values": token_values,
        "sequences": sequence_means,
        "and a penalty": lambda p, t: F.cross_entropy(p.transpose(1, 2), t) + 0.1 * p.square().mean(),
        "two masks": two_masks,
        "perplexity": lambda p, t: F.cross_entropy(p.transpose(1, 2), t).exp(),
        "times the tokens": lambda p, t: F.cross_entropy(p.transpose(1, 2), t) * (t != -100).sum(),
    },
    tasks: {
        "tasks": lambda p, t: F.mse_loss(p["a"], t["a"]) + F.l1_loss(p["b"], t["b"]),
        "tasks, stacked": lambda p, t: torch.stack([F.mse_loss(p[name], t[name]) for name in p]).sum(),
        "tasks, sums": lambda p, t: sum(square(p[name], t[name]).sum() for name in p),
        "tasks, sum and mean": lambda p, t: square(p["a"], t["a"]).sum() + square(p["b"], t["b"]).mean(),
        "tasks, by length": lambda p, t: sum(square(p[name], t[name]).sum() for name in p) / len(t["a"]),
    },
    masked: {
        "mask": masked_mean,
        "mask, a number": spare_masked_mean,
        "mask of samples": lambda p, t: (square(p, t["y"]) * t["mask"]).mean(),
        "mask, rows": lambda p, t: ((square(p, t["y"]) * t["mask"]).sum(1) / t["mask"].sum(1).clamp(min=1)).mean(),
    },
    triples: {
        "triplet": lambda p, t: F.triplet_margin_loss(p[0], p[1], t),
        "triplet, sum": lambda p, t: F.triplet_margin_loss(p[0], p[1], t, reduction="sum"),
        "variational": lambda p, t: square(p[0], t).sum() + (p[1].exp() - p[1] - 1).sum(),
        "variational, half a mean": lambda p, t: square(p[0], t).sum() / len(t) + (p[1].exp() - p[1] - 1).sum(),
        "contrast": lambda p, t: nce(p[0], p[1]) + 0 * t.sum(),
    },
    pairs: {
        "cosine": lambda p, t: F.cosine_embedding_loss(p[0], p[1], t),
        "cosine, sum": lambda p, t: F.cosine_embedding_loss(p[0], p[1], t, reduction="sum"),
        "ranking": lambda p, t: F.margin_ranking_loss(p[0][:, 0], p[1][:, 0], t),
    },
    sequences: {"ctc": partial(ctc, reduction="mean"), "ctc, sum": partial(ctc, reduction="sum")},
}
for name, make in {"later": ignored_later, "first": ignored_first}.items():
    TABLE[make] = {
        f"ignored {name}": F.cross_entropy,
        f"ignored {name}, sum": partial(F.cross_entropy, reduction="sum"),
        f"ignored {name}, module": nn.CrossEntropyLoss(),
        f"ignored {name}, module, sum": nn.CrossEntropyLoss(reduction="sum"),
        f"ignored {name}, class weights": lambda p, t: F.cross_entropy(p, t, weight=weights_like(p) + 0.5),
        f"ignored {name}, a weight of 0": lambda p, t: F.cross_entropy(p, t, weight=weights_like(p)),
        f"ignored {name}, 0 and smooth": lambda p, t: F.cross_entropy(
            p, t, weight=weights_like(p), label_smoothing=0.1
        ),
        f"ignored {name}, weights and sum": lambda p, t: F.cross_entropy(
            p, t, weight=weights_like(p), label_smoothing=0.1, reduction="sum"
        ),
        f"ignored {name}, by length": lambda p, t: F.cross_entropy(p, t, reduction="sum") / len(p),
        f"ignored {name}, and a penalty": lambda p, t: F.cross_entropy(p, t) + 0.1 * p.square().mean(),
        f"ignored {name}, learned factor": Factor(F.cross_entropy),
        f"ignored {name}, scaled": lambda p, t: 0.3 * F.cross_entropy(p, t) + 2,
        f"ignored {name}, values": lambda p, t: (
            F.cross_entropy(p, t, reduction="none").sum() / (t != -100).sum().clamp(min=1)
        ),
    }
CASES = {f"{make.__name__}: {name}": (make, loss) for make, losses in TABLE.items() for name, loss in losses.items()}


def outcomes(make, loss, seeds=(0,), cases=None):
    found = {}
    for width, split in cases or itertools.product(WIDTHS, SPLITS):
        for seed in seeds:
            predictions, targets = make(sum(split), width, seed)
            is_half = any(leaf.dtype in (torch.half, torch.bfloat16) for leaf in flat(predictions))
            rough = is_half or (make, loss) == CASES["classes: half"]
            found[width, split, seed] = outcome(loss, predictions, targets, split, tolerance=2e-2 if rough else 1e-5)
    return found


@pytest.mark.parametrize("name", CASES)
def test_any_split_has_the_loss_and_the_gradient_of_one_call_or_a_warning(name):
    some = [case for place, case in enumerate(itertools.product(WIDTHS, SPLITS)) if place % 3 == 0]
    silent = [case for case, found in outcomes(*CASES[name], cases=some).items() if found == "silent"]
    assert not silent


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_any_split_of_more_batches_has_the_loss_of_one_call_or_a_warning(name):
    silent = [case for case, found in outcomes(*CASES[name], seeds=range(4)).items() if found == "silent"]
    assert not silent


CLEAR = [
    *(name for name in CASES if name.startswith("numbers: ") and "by hand" not in name),
    *("numbers: by hand, sum by length", "numbers: by hand, transposed mean, added", "numbers: by hand, squared norm"),
    *("tokens: tokens", "tokens: next token", "tokens: mask", "tokens: values", "tokens: sequences", "tasks: tasks"),
    *("classes: module", "classes: nll", "ignored_first: ignored first, module", "ignored_later: ignored later"),
    *("ignored_later: ignored later, class weights", "ignored_first: ignored first, learned factor", "sequences: ctc"),
]


@pytest.mark.parametrize("name", CLEAR)
def test_common_losses_are_right_without_a_warning(name):
    found = outcomes(*CASES[name], cases=itertools.product(WIDTHS, SPLITS[::2]))
    assert {*found.values()} == {"right"}


# --- through whole fits


class Rows(nn.Module):
    """A table of predictions, so that the gradient of its weights is that of the loss."""

    def __init__(self, predictions):
        super().__init__()
        self.table = nn.Parameter(predictions.detach().clone())

    def forward(self, index):
        return self.table[index]


FITS = {name: CASES[name] for name in (
    "numbers: by hand, sum by length", "numbers: by hand, transposed mean, added", "numbers: modules, sum",
    "numbers: by hand, samples, stacked and added", "numbers: by hand, root", "classes: module", "tokens: tokens",
    "tokens: and a penalty", "ignored_first: ignored first, module", "masked: mask, a number",
    "ignored_later: ignored later, weights and sum",
)}  # fmt: skip


@pytest.mark.parametrize("parts", ["windows", "micro-batches"])
@pytest.mark.parametrize("name", FITS)
def test_a_fit_in_parts_has_the_weights_of_a_fit_with_whole_batches(name, parts, tmp_path):
    make, loss = FITS[name]
    predictions, targets = make(7, 2)
    index = torch.arange(7)
    rows = {"index": index, **targets} if isinstance(targets, dict) else (index, targets)

    def fit(name, batch_size, accumulate=1, micro_batch=None):
        learner = stoker.Learner(
            Rows(predictions), loss=loss, optimizer=optim.SGD(), lr=0.1, seed=0, accumulate=accumulate
        )
        loader = data.Loader(rows, batch_size=batch_size, shuffle=False)
        return learner.fit(loader, epochs=1, show=False, run=tmp_path / name, micro_batch=micro_batch)

    split = fit("split", 2, accumulate=4) if parts == "windows" else fit("split", 7, micro_batch=2)
    if split.record.events_of("warning"):
        assert name in ("numbers: by hand, root", "tokens: and a penalty", "masked: mask, a number")
        return
    whole = fit("whole", 7)
    torch.testing.assert_close(split.model.table, whole.model.table, rtol=1e-5, atol=1e-6)
    assert split.history["train/loss"] == pytest.approx(whole.history["train/loss"], rel=1e-5)
    is_sum = name in ("numbers: modules, sum", "numbers: by hand, samples, stacked and added")
    expected = loss(split.model(index), targets).item() / (7 if is_sum or name.endswith("and sum") else 1)
    learner = stoker.Learner(Rows(predictions), loss=loss, seed=0)
    for found in (split, stoker.Fitted.load(tmp_path / "split", learner)):
        assert found.evaluate(rows, batch_size=2)["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_is_nowhere_split_causes_no_warning():
    x, y = numbers(8, 2)

    def count_warnings(batch_size=4, accumulate=1, micro_batch=None):
        loss = lambda p, t: square(p, t).mean().sqrt()  # noqa: E731
        learner = stoker.Learner(nn.Linear(2, 2), loss=loss, seed=0, accumulate=accumulate)
        fitted = learner.fit((x, y), batch_size=batch_size, epochs=2, show=False, micro_batch=micro_batch)
        return len(fitted.record.events_of("warning"))

    assert count_warnings() == 0
    assert count_warnings(accumulate=2) == count_warnings(micro_batch=3) == count_warnings(batch_size=3) == 1


# --- trials leave no trace


class Noisy(nn.Module):
    """Draws from every generator, and has parameters, running statistics and a counter."""

    def __init__(self):
        super().__init__()
        self.norm, self.scale, self.calls = nn.BatchNorm1d(2), nn.Linear(2, 2), 0

    def forward(self, predictions, targets):
        self.calls += 1
        noise = torch.rand(()) + random.random() + numpy.random.rand()
        return F.mse_loss(self.scale(self.norm(predictions)), targets) + 0 * noise


def test_the_module_and_the_generators_are_as_after_one_call():
    predictions, targets = numbers(6, 2)

    def states():
        return torch.get_rng_state(), numpy.random.get_state()[1].copy(), random.getstate()

    found = []
    for is_tried in (True, False):
        torch.manual_seed(1)
        numpy.random.seed(1)
        random.seed(1)
        loss = Noisy()
        step = Supervised(nn.Identity(), loss)
        if is_tried:
            value = step.score(predictions, step.parts((predictions, targets))).loss
        else:
            value = loss(predictions, targets)
        torch_state, numpy_state, python_state = states()
        found.append([value.detach(), *loss.state_dict().values(), loss.calls, torch_state, numpy_state])
        found[-1] += [torch.tensor(python_state[1])]
    for with_trials, without in zip(*found, strict=True):
        numpy.testing.assert_equal(numpy.asarray(with_trials), numpy.asarray(without))


def test_the_batch_and_the_class_weights_of_the_user_are_unchanged():
    predictions, labels = ignored_later(6, 3)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 2.0, 3.0]), label_smoothing=0.1)
    before = [predictions.clone(), labels.clone(), loss.weight.clone()]
    step = Supervised(nn.Identity(), loss, warn=[].append)
    output = step.score(predictions, step.parts((predictions, labels)))
    for now, then in zip([predictions, labels, loss.weight], before, strict=True):
        assert torch.equal(now, then) and now.dtype == then.dtype
    loss.weight.mul_(2)  # as a callback may do
    assert step.score(predictions, step.parts((predictions, labels))).count == 2 * output.count


def test_a_compiled_loss_under_autocast_is_tried_eagerly():
    compiled = torch.compile(lambda p, t: F.cross_entropy(p, t), backend="eager")
    predictions, labels = ignored_later(6, 3)
    step = Supervised(nn.Identity(), compiled)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = step.score(predictions, step.parts((predictions, labels)))
    assert output.count == (labels != -100).sum()


def test_a_loss_that_is_the_same_for_all_rows_is_tried_again():
    warnings = []
    step = Supervised(nn.Identity(), lambda p, t: F.relu(p - t - 100).sum(), warn=warnings.append)
    step.count.is_split = True
    predictions, targets = numbers(6, 2)
    step.score(predictions, step.parts((predictions, targets)))
    assert step.sums is None and not step.is_loss_known and not warnings
    step.score(predictions + 200, step.parts((predictions, targets)))
    assert step.sums is True and not warnings


def test_a_loss_with_dropout_is_a_mean_over_samples_by_its_graph():
    warnings = []
    step = Supervised(nn.Identity(), lambda p, t: F.mse_loss(F.dropout(p), t), warn=warnings.append)
    step.count.is_split = True
    predictions, targets = numbers(6, 2)
    output = step.score(predictions.requires_grad_(), step.parts((predictions, targets)))
    assert output.count is None and step.is_loss_known and not warnings


def test_long_rows_are_tried_as_they_are():
    calls = []

    def loss(predictions, targets):
        calls.append(len(predictions))
        return square(predictions, targets).sum()

    step = Supervised(nn.Identity(), loss)
    for count in (4, 2, 1):
        calls.clear()
        step = Supervised(nn.Identity(), loss)
        rows = torch.rand(count, 2**19 + 1)
        step.score(rows, step.parts((rows, torch.zeros(count, 1))))
        assert step.sums is True and len(calls) <= 5 and max(calls) <= 4


@pytest.mark.parametrize("kind", ["weights", "mixed targets"])
def test_batches_without_weights_or_mixed_targets_count_by_their_targets(kind):
    """As in a validation, while the training has sample weights or mixed targets."""
    predictions, labels = ignored_later(6, 3)
    step = Supervised(nn.Identity(), nn.CrossEntropyLoss(ignore_index=-100), warn=[].append)
    batch = step.parts((predictions, labels))
    if kind == "weights":
        step.score(predictions, batch._replace(weight=torch.ones(6)))
    else:
        step.score_mixed(predictions, batch, labels.flip(0), torch.full((6,), 0.7))
    assert step.is_loss_known
    assert step.score(predictions, batch).count == (labels != -100).sum()


def test_time_in_the_first_dimension():
    predictions, targets = torch.randn(5, 3, 2), torch.randn(5, 3, 2)
    for loss, sums in ((F.mse_loss, False), (lambda p, t: square(p, t).mean(0).sum(), True)):
        step = Supervised(nn.Identity(), loss)
        step.score(predictions, step.parts((predictions, targets)), size=3)
        assert step.sums is sums  # over the samples, which are in the second dimension
    labels = torch.randint(0, 2, (5, 3))
    step = Supervised(nn.Identity(), lambda p, t: F.cross_entropy(p.flatten(0, 1), t.flatten()))
    assert step.score(predictions, step.parts((predictions, labels)), size=3).count == 15


@pytest.mark.cuda
def test_on_a_gpu_losses_are_tried_on_the_cpu_or_with_the_rows_as_they_are():
    predictions, labels = (each.cuda() for each in ignored_later(6, 3))
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0], device="cuda")
    for loss in (nn.CrossEntropyLoss(weight=weight), lambda p, t: F.cross_entropy(p, t, weight=weight)):
        step = Supervised(nn.Identity(), loss)
        count = step.score(predictions, step.parts((predictions, labels))).count
        assert count.device.type == "cuda"
        assert count.item() == pytest.approx(weight[labels[labels != -100]].sum().item())
