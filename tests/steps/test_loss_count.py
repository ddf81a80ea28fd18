"""What a loss is a mean over is found out from its graph."""

import pytest
import torch
import torch.nn.functional as F

from stoker.steps import LossCount

LOGITS = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
LABELS = torch.tensor([[1, -100, -100], [-100, 3, 4], [5, 1, 1], [2, -100, -100]])
INPUTS = torch.tensor([[1, 2, 2], [0, 3, 4], [5, 1, 1], [2, 4, 4]])


def entropy(labels=LABELS, **settings):
    return F.cross_entropy(LOGITS.flatten(0, 1), labels.flatten(), **settings)


def shifted(labels=LABELS):
    """As Transformers computes the loss of a causal language model."""
    return entropy(F.pad(labels, (0, 1), value=-100)[..., 1:])


def sliced(labels=LABELS):
    """As many others do."""
    return F.cross_entropy(LOGITS[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def observe(loss, batch, samples=4):
    warnings = []
    count = LossCount("step", warnings.append)
    count.is_split = True
    count.observe(loss, batch, samples)
    count.follow(None, batch, samples)
    return count, warnings


BATCHES = {
    "mapping": {"input_ids": INPUTS, "labels": LABELS},
    "tuple": (INPUTS, LABELS),
    "nested": {"inputs": {"ids": INPUTS}, "y": (LABELS, INPUTS.float())},
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(
    ("loss", "first"),
    [
        (entropy, 0),
        (shifted, 1),
        (sliced, 1),
        (lambda: 0.5 * entropy().double() + 0.0, 0),
        (lambda: entropy(label_smoothing=0.1), 0),
        (lambda: F.nll_loss(LOGITS.transpose(1, 2).log_softmax(1), LABELS), 0),
    ],
)
def test_a_cross_entropy_is_a_mean_over_the_targets_that_are_not_ignored(loss, first, batch):
    count, warnings = observe(loss(), batch)
    assert count(batch).item() == (LABELS[:, first:] != -100).sum() and count.knows(batch) and not warnings
    other = {"input_ids": INPUTS, "labels": LABELS[:2]} if "labels" in batch else (INPUTS, LABELS[:2])
    if "inputs" not in batch:
        assert count(other).item() == (LABELS[:2, first:] != -100).sum()
    restored = LossCount("step")
    restored.load(count.saved)
    assert restored(batch) == count(batch) and restored.knows(batch)


class FusedEntropy(torch.autograd.Function):
    """A cross-entropy whose graph shows nothing, like that of a compiled model or a fused kernel."""

    @staticmethod
    def forward(ctx, logits, labels):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("shift", [0, 1])
def test_a_loss_whose_graph_shows_nothing_is_recognised_by_its_value(shift):
    used = F.pad(LABELS, (0, 1), value=-100)[..., 1:] if shift else LABELS
    loss, batch, warnings = FusedEntropy.apply(LOGITS, used), {"ids": 50 + INPUTS, "labels": LABELS}, []
    count = LossCount("step", warnings.append)
    count.observe(loss, batch, 4, predictions=LOGITS)
    assert count(batch).item() == (LABELS[:, shift:] != -100).sum() and not warnings
    count = LossCount("step", warnings.append)
    count.observe(2 * loss, batch, 4, predictions=LOGITS)
    count.follow(None, batch, 4)
    assert count(batch) is None and not warnings  # one batch: it does not matter
    count.follow(None, batch, 3)
    assert "ends in FusedEntropy" in warnings[0]


def test_labels_that_equal_the_inputs_are_found_by_their_name():
    batch = {"labels": INPUTS, "input_ids": INPUTS.clone()}
    count, _ = observe(shifted(INPUTS), batch)
    assert count({"labels": LABELS, "input_ids": INPUTS}).item() == (LABELS[:, 1:] != -100).sum()


def test_another_ignore_index_is_known():
    labels = LABELS.where(LABELS >= 0, 5)
    count, _ = observe(entropy(labels, ignore_index=5), (INPUTS, labels))
    assert count((INPUTS, labels)).item() == (labels != 5).sum()


def test_a_batch_whose_targets_are_all_ignored_shows_nothing_yet():
    nothing = torch.full_like(LABELS, -100)
    count, warnings = observe(shifted(nothing), (INPUTS, nothing))
    assert not count.is_known and count.saved is None and not warnings
    assert count((INPUTS, nothing)).item() == 0
    count.observe(shifted(), (INPUTS, LABELS), 4)
    assert count.is_known and count((INPUTS, LABELS)).item() == (LABELS[:, 1:] != -100).sum()


def test_the_losses_of_samples_are_means_over_samples_without_a_warning():
    x = torch.randn(4, 6, requires_grad=True)
    y = torch.ones(4, 6)
    for loss in (
        F.mse_loss(x, y),
        F.l1_loss(x, y) + 0.1 * F.smooth_l1_loss(x, y),
        F.binary_cross_entropy_with_logits(x, y),
        x.square().sum() / 4,
        (x.square().sum(1) / 2).mean() - F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        torch.stack([F.mse_loss(x, y), x.mean()]).sum() / 2,
        F.cross_entropy(x @ x.T, torch.arange(4)),  # contrastive: the batch has no targets
        F.cross_entropy(x @ x.T, torch.arange(4), label_smoothing=0.1),
        F.cross_entropy(x, y.softmax(1)),
        torch.stack([F.mse_loss(row, y[0]) for row in x]).mean(),
        torch.stack([row[: 1 + n].square().mean() for n, row in enumerate(x)]).mean(),
        torch.stack([row.square().sum() for row in x]).mean(),
        torch.cat([row.norm()[None] for row in x]).mean(),
        sum([row[: 1 + n].square().mean() for n, row in enumerate(x)]) / len(x),
        sum([F.mse_loss(x, y), F.cross_entropy(x, torch.arange(4))]),
    ):
        count, warnings = observe(loss, (x, y))
        assert count((x, y)) is None and count.is_known and not warnings


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda: (LOGITS.square() * (LABELS >= 0)[..., None]).sum() / (LABELS >= 0).sum(), "is a mean over 7 elements"),
        (lambda: entropy() + LOGITS.square().mean(), "mean over 7 and 72 elements"),
        (lambda: entropy(weight=torch.rand(6)), "is a mean over"),
        (lambda: LOGITS.square().mean().sqrt(), "ends in Sqrt"),
        (lambda: entropy(LABELS.where(LABELS != 5, -100)), "is a mean over 6 elements"),  # of other targets
        (lambda: LOGITS.square().sum() / torch.ones(4, 3).sum(), "12 elements, which depends on values"),  # a full mask
        (lambda: torch.stack([LOGITS[0].mean(), LOGITS[:3, 0, :3].mean()]).mean(), "mean over 18 and 9 elements"),
        (lambda: LOGITS.square().sum(), "step returned a sum over the batch"),
        (lambda: entropy(reduction="sum"), "step returned a sum over the batch"),
    ],
)
def test_a_loss_that_may_not_be_a_mean_over_samples_is_reported_once(loss, text):
    count, warnings = observe(loss(), (INPUTS.float(), LABELS.float()))
    count.observe(loss(), (INPUTS.float(), LABELS.float()), 4)
    count.follow(None, (INPUTS.float(), LABELS.float()), 4)
    assert len(warnings) == 1 and text in warnings[0]


def test_class_weights_are_counted_and_restored():
    weight = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    count, warnings = observe(entropy(weight=weight), (INPUTS, LABELS))
    restored = LossCount("step")
    restored.load(count.saved)
    expected = weight[LABELS[LABELS != -100]].sum().item()
    assert not warnings and count((INPUTS, LABELS)).item() == restored((INPUTS, LABELS)).item() == expected
    assert all(torch.equal(each, weight) for each in (*count.class_weights, *restored.class_weights))


def test_batches_of_another_source_are_found_out_anew():
    count, warnings = observe(entropy(), {"small": (INPUTS, LABELS)})
    other, third = {"large": (INPUTS, LABELS)}, {"large": (INPUTS, LABELS, INPUTS)}
    assert count.knows({"small": (INPUTS[:1], LABELS[:1])}) and not count.knows(other)
    count.observe(sliced(), other, 4)
    count.observe(LOGITS.square().mean(), third, 4)
    restored = LossCount("step")
    restored.load(count.saved)
    for each in (count, restored):
        assert each({"small": (INPUTS, LABELS)}).item() == (LABELS != -100).sum()
        assert each(other).item() == (LABELS[:, 1:] != -100).sum() and each(third) is None
    assert not warnings


def test_lists_of_samples_are_alike_whatever_their_number():
    x = torch.ones(2, 3, requires_grad=True)
    for make in (
        lambda n: [{"image": torch.ones(3, 4)} for _ in range(n)],
        lambda n: ([torch.ones(3, 4)] * n, [{"boxes": torch.ones(2, 4)}] * n),
        lambda n: {"text": ["a"] * n, "ids": [torch.ones(k + 1) for k in range(n)]},
    ):
        count, _ = observe(x.mean(), make(4), 4)
        assert count.knows(make(2)) and count.knows(make(3))


@pytest.mark.parametrize(("length", "is_clear"), [(6, True), (4, False)])
def test_one_sample_does_not_show_that_a_mean_is_over_samples(length, is_clear):
    row = torch.randn(1, 6, requires_grad=True)
    count, warnings = observe(row.mean(), {"x": row}, samples=1)
    assert not count.knows({"x": row}) and count({"x": row}) is None and not warnings
    restored = LossCount("step", warnings.append)
    restored.load(count.saved)
    for each in (count, restored):
        each.observe(row[:, :length].mean(), {"x": row}, 1)
        each.is_split = True
        each.follow(None, {"x": row}, 1)
        assert each.knows({"x": row}) and bool(warnings) != is_clear
        assert is_clear or "of one sample it is a mean over 6 elements, of another over 4" in warnings.pop()
    for loss in (torch.stack([row.mean()]).mean(), F.mse_loss(row.mean(1), torch.ones(1))):
        count, warnings = observe(loss, {"x": row}, samples=1)
        assert count.knows({"x": row}) and not warnings
