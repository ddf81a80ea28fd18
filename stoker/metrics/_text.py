"""Metrics of token sequences: perplexity, and word and character error rates."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType
from stoker.metrics._means import Mean, add_values
from stoker.metrics._metric import Metric, State
from stoker.metrics._outputs import read_pair, read_scores
from stoker.metrics._states import PADDING, append_rows, merge_rows, read_rows


class Perplexity(Mean):
    """The exponential of the mean negative log-likelihood of a token.

    >>> from stoker.steps import SequenceOutput
    >>> logits, targets = torch.zeros(1, 3, 8), torch.tensor([[1, 2, 0]])
    >>> metric = Perplexity()
    >>> state = metric.init(torch.device("cpu"))
    >>> state = metric.update(state, SequenceOutput(torch.tensor(2.0), logits, targets, mask=targets != 0))
    >>> round(metric.compute(state), 6)
    8.0

    The mean is over all tokens by their weights; masked tokens and those equal to `ignore` do not count.
    """

    ignore: int = -100

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task="multiclass", ignore=self.ignore)
        scores = scored.scores if scored.scores.dtype == torch.float64 else scored.scores.float()
        weights = torch.ones_like(scores[:, 0]) if scored.weights is None else scored.weights
        targets = scored.targets if scored.targets.ndim == 2 else scored.targets.where(weights != 0, 0)
        return add_values(state, F.cross_entropy(scores, targets, reduction="none"), weights)

    def compute(self, state: State) -> float:
        mean = super().compute(state)
        return torch.tensor(mean, dtype=torch.float64).exp().item()  # infinity where math.exp raises


class _ErrorRate(Metric):
    """The insertions, deletions and substitutions between prediction and target, per unit of the target.

    Sequences are stored on their device until `compute`, which compares them on the host.
    """

    end: int | None = None

    direction = "min"

    @property
    def static(self) -> bool:
        """Never: every sequence is stored."""
        return False

    def init(self, device: torch.device) -> State:
        return {}

    def update(self, state: State, output: Any) -> State:
        predicted, expected = read_pair(output)
        tensors = isinstance(predicted, Tensor) and isinstance(expected, Tensor)
        if not tensors or expected.ndim != 2 or predicted.ndim not in (2, 3):
            raise WrongType(
                f"{self.name} needs predictions and targets that are tensors [samples, tokens]; "
                f"{type(output).__name__} does not have them"
            )
        predicted = predicted.argmax(-1) if predicted.ndim == 3 else predicted.long()
        mask = getattr(output, "mask", None)
        counted = (expected >= 0) if mask is None else (expected >= 0) & mask
        if predicted.shape == expected.shape:
            predicted = predicted.where(counted, PADDING)
        weights = getattr(output, "weight", None)
        if weights is None:
            weights = torch.ones(len(expected), device=expected.device)
        if weights.shape != expected.shape[:1]:
            raise InvalidArgument(f"{self.name}: a weight has one number per sequence; got {list(weights.shape)}")
        # The column names are in checkpoints.
        return append_rows(state, {"said": predicted, "meant": expected.where(counted, PADDING), "weights": weights})

    def merge(self, a: State, b: State) -> State:
        return merge_rows(a, b)

    def compute(self, state: State) -> float:
        rows = read_rows(state)
        errors = length = 0.0
        for predicted, expected, weight in zip(*(column.tolist() for column in rows.values()), strict=True):
            units = self._split(expected)
            errors += weight * _edit_distance(self._split(predicted), units)
            length += weight * len(units)
        return errors / length if length else float("nan")

    def _split(self, tokens: list[int]) -> list[Any]:
        """The units of a sequence that are compared."""
        tokens = [token for token in tokens if token >= 0]
        return tokens[: tokens.index(self.end)] if self.end in tokens else tokens


class WordErrorRate(_ErrorRate):
    """The insertions, deletions and substitutions of words between prediction and target, per word of the target.

    >>> from types import SimpleNamespace as Output
    >>> predicted, expected = torch.tensor([[5, 6, 7]]), torch.tensor([[5, 7, -100]])
    >>> metric = WordErrorRate()
    >>> state = metric.update(metric.init(torch.device("cpu")), Output(predictions=predicted, targets=expected))
    >>> metric.name, metric.compute(state)
    ('wer', 0.5)

    Reads token numbers, or scores [samples, tokens, vocabulary], of which the largest counts. Each token is a word;
    with `separator`, words are separated by tokens of this number. A sequence ends before its first `end`. Targets
    below 0 and masked positions are left out, in the predictions too if both have the same length. Sequences are stored
    on their device until `compute`, which compares them on the host.
    """

    separator: int | None = None

    def default_name(self) -> str:
        return "wer"

    def _split(self, tokens: list[int]) -> list[Any]:
        tokens = super()._split(tokens)
        if self.separator is None:
            return tokens
        words: list[list[int]] = [[]]
        for token in tokens:
            if token == self.separator:
                words.append([])
            else:
                words[-1].append(token)
        return [tuple(word) for word in words if word]


class CharErrorRate(_ErrorRate):
    """The insertions, deletions and substitutions of characters, per character of the target.

    Each token is a character; otherwise it reads and stores sequences as `WordErrorRate` does. Its default name is
    `cer`.
    """

    def default_name(self) -> str:
        return "cer"


def _edit_distance(predicted: list[Any], expected: list[Any]) -> int:
    """The smallest number of insertions, deletions and substitutions between two sequences."""
    numbers = {part: number for number, part in enumerate(dict.fromkeys([*predicted, *expected]))}
    columns = np.array([numbers[part] for part in expected], dtype=np.int64)
    offsets = np.arange(len(expected) + 1)
    row = offsets
    for index, part in enumerate(predicted, start=1):
        below = np.minimum(row[1:] + 1, row[:-1] + (columns != numbers[part]))
        # An insertion costs one more than the left neighbour: a running minimum after subtracting the offsets.
        row = np.minimum.accumulate(np.concatenate(([index], below)) - offsets) + offsets
    return int(row[-1])
