"""Perplexity and error rates against torchmetrics."""

import math
from types import SimpleNamespace

import pytest
import torch
import torchmetrics.functional.text as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import InvalidArgument, WrongType
from stoker.metrics import CharErrorRate, Perplexity, WordErrorRate
from stoker.steps import SequenceOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
DRAW = torch.Generator().manual_seed(0)


def test_perplexity_equals_torchmetrics():
    logits, targets = torch.randn(3, 7, 5, generator=DRAW), torch.randint(5, (3, 7), generator=DRAW)
    mask = torch.rand(3, 7, generator=DRAW) < 0.5
    expected = reference.perplexity(logits, targets.where(mask, -100), ignore_index=-100).item()
    logits[~mask] = float("nan")
    assert value(Perplexity(), SequenceOutput(LOSS, logits, targets, mask)) == pytest.approx(expected)
    ignored = SequenceOutput(LOSS, logits, targets.where(mask, -100))
    assert value(Perplexity(), ignored) == pytest.approx(expected)


def test_perplexity_weighs_tokens_and_can_be_infinite():
    logits, targets = torch.randn(2, 3, 5, generator=DRAW).double(), torch.randint(5, (2, 3), generator=DRAW)
    weight = torch.rand(2, 3, generator=DRAW).double()
    nll = -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    expected = ((nll * weight).sum() / weight.sum()).exp().item()
    assert value(Perplexity(), SequenceOutput(LOSS, logits, targets, weight=weight)) == pytest.approx(
        expected, rel=1e-12
    )
    far = torch.tensor([[[1e4, 0.0]]])
    assert value(Perplexity(), SequenceOutput(LOSS, far, torch.tensor([[1]]))) == math.inf
    assert math.isnan(value(Perplexity(), SequenceOutput(LOSS, logits, targets, torch.zeros(2, 3, dtype=torch.bool))))


def padded(rows, padding):
    width = max(map(len, rows), default=0)
    return torch.tensor([row + [padding] * (width - len(row)) for row in rows], dtype=torch.long)


SENTENCES = st.lists(st.integers(0, 3), max_size=7)


@settings(max_examples=60)
@given(pairs=st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=4), cut=st.integers(0, 4))
def test_error_rates_equal_torchmetrics(pairs, cut):
    """Tokens 1 to 3 are letters, 0 is the space; -1 pads."""
    predicted, expected_rows = ([row for row, _ in pairs], [row for _, row in pairs])

    def texts(rows):
        return ["".join(" abc"[token] for token in row) for row in rows]

    def output(a, b):
        part = SimpleNamespace(
            loss=LOSS, predictions=padded(predicted[a:b], -1), targets=padded(expected_rows[a:b], -1)
        )
        if part.predictions.shape == part.targets.shape:  # equal lengths: the mask of the targets would apply to both
            part.predictions = torch.nn.functional.pad(part.predictions, (0, 1), value=-1)
        return part

    outputs = [output(0, cut), output(cut, len(pairs))] if 0 < cut < len(pairs) else [output(0, len(pairs))]
    letters = sum(map(len, expected_rows))
    expected = reference.char_error_rate(texts(predicted), texts(expected_rows)).item() if letters else math.nan
    assert value(CharErrorRate(), *outputs) == pytest.approx(expected, nan_ok=True)
    words = sum(len(text.split()) for text in texts(expected_rows))
    expected = reference.word_error_rate(texts(predicted), texts(expected_rows)).item() if words else math.nan
    assert value(WordErrorRate(separator=0), *outputs) == pytest.approx(expected, nan_ok=True)


def test_error_rates_of_scores_with_mask_end_and_weights():
    targets = torch.tensor([[1, 2, 3, 0], [3, 3, 0, 0]])
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 2, 2, 9], [3, 9, 9, 9]]), 10).float()
    mask = targets != 0
    output = SequenceOutput(LOSS, logits, targets, mask)
    assert value(CharErrorRate(), output) == 2 / 5
    assert value(CharErrorRate(end=3), output) == 1 / 2  # [1, 2, 2] for [1, 2], and [] for []
    weighted = SequenceOutput(LOSS, logits, targets, mask, weight=torch.tensor([2.0, 1.0]))
    assert value(CharErrorRate(), weighted) == (2 * 1 + 1) / (2 * 3 + 2)


def test_outputs_that_cannot_be_read_are_named():
    with pytest.raises(WrongType, match=r"wer needs predictions and targets that are tensors \[samples, tokens\]"):
        value(WordErrorRate(), SupervisedOutput(LOSS, torch.zeros(3), torch.zeros(3)))
    tokens = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(InvalidArgument, match=r"cer: a weight has one number per sequence; got \[2, 3\]"):
        value(CharErrorRate(), SupervisedOutput(LOSS, tokens, tokens, torch.ones(2, 3)))
