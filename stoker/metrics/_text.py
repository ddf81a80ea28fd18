"""Metrics of sequences of tokens: perplexity, and word and character error rates."""

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType
from stoker.metrics._kept import PADDING, keep, keep_all, kept
from stoker.metrics._metric import Metric, State
from stoker.metrics._reading import read_raw, read_scores
from stoker.metrics._sums import add, fresh, ratio, weighted


class Perplexity(Metric):
    """How many tokens the model wavers between: the exponential of the mean negative log-likelihood of a token.

    >>> from stoker.steps import SequenceOutput
    >>> logits, targets = torch.zeros(1, 3, 8), torch.tensor([[1, 2, 0]])
    >>> metric = Perplexity()
    >>> state = metric.init(torch.device("cpu"))
    >>> state = metric.update(state, SequenceOutput(torch.tensor(2.0), logits, targets, mask=targets != 0))
    >>> round(metric.compute(state), 6)
    8.0

    The mean is over all tokens seen, by their weights; those that are masked or equal to `ignore` count for nothing.
    """

    ignore: int = -100

    direction = "min"

    def init(self, device: torch.device) -> State:
        return {"sum": fresh(device), "count": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task="multiclass", ignore=self.ignore)
        scores = scored.scores if scored.scores.dtype == torch.float64 else scored.scores.float()
        weights = torch.ones_like(scores[:, 0]) if scored.weights is None else scored.weights
        targets = scored.targets if scored.targets.ndim == 2 else scored.targets.where(weights != 0, 0)
        surprise = F.cross_entropy(scores, targets, reduction="none")
        amounts = {"sum": weighted(surprise, weights), "count": weighted(torch.ones_like(surprise), weights)}
        return {name: add(state[name], amount) for name, amount in amounts.items()}

    def compute(self, state: State) -> float:
        mean = ratio(state["sum"], state["count"])
        return torch.tensor(mean, dtype=torch.float64).exp().item()  # infinite where math.exp would raise


class ErrorRate(Metric):
    """Insertions, deletions and substitutions that turn what was said into what is, per word or character of it.

    >>> from types import SimpleNamespace as Output
    >>> said, meant = torch.tensor([[5, 6, 7]]), torch.tensor([[5, 7, -100]])
    >>> metric = ErrorRate("characters")
    >>> state = metric.update(metric.init(torch.device("cpu")), Output(predictions=said, targets=meant))
    >>> metric.name, metric.compute(state)
    ('cer', 0.5)

    Reads token numbers, or scores of which the largest counts ([samples, tokens, vocabulary]). Each token is a word (or
    character); with `separator`, words are what stands between tokens of this number. A sequence ends before its first
    `end`; targets below 0 and masked places are left out, on both sides where predictions and targets are as long.
    Sequences are kept on their device until `compute`, which compares them on the host.
    """

    per: Literal["words", "characters"] = "words"
    separator: int | None = None
    end: int | None = None

    direction = "min"

    def default_name(self) -> str:
        return "wer" if self.per == "words" else "cer"

    @property
    def static(self) -> bool:
        """Never: what is kept grows."""
        return False

    def init(self, device: torch.device) -> State:
        return {}

    def update(self, state: State, output: Any) -> State:
        said, meant = read_raw(output)
        if not isinstance(said, Tensor) or not isinstance(meant, Tensor) or meant.ndim != 2 or said.ndim not in (2, 3):
            raise WrongType(
                f"{self.name} needs predictions and targets that are tensors [samples, tokens]; "
                f"{type(output).__name__} has none"
            )
        said = said.argmax(-1) if said.ndim == 3 else said.long()
        mask = getattr(output, "mask", None)
        counted = (meant >= 0) if mask is None else (meant >= 0) & mask
        if said.shape == meant.shape:
            said = said.where(counted, PADDING)
        weights = getattr(output, "weight", None)
        if weights is None:
            weights = torch.ones(len(meant), device=meant.device)
        if weights.shape != meant.shape[:1]:
            raise InvalidArgument(f"{self.name}: a weight has one number a sequence; got {list(weights.shape)}")
        return keep(state, {"said": said, "meant": meant.where(counted, PADDING), "weights": weights})

    def merge(self, a: State, b: State) -> State:
        return keep_all(a, b)

    def compute(self, state: State) -> float:
        columns = kept(state)
        errors = length = 0.0
        for said, meant, weight in zip(*(columns[name].tolist() for name in columns), strict=True):
            truth = self._parts(meant)
            errors += weight * edit_distance(self._parts(said), truth)
            length += weight * len(truth)
        return errors / length if length else float("nan")

    def _parts(self, tokens: list[int]) -> list[Any]:
        """A sequence as what is compared: its tokens, or its words as tuples of them."""
        tokens = [token for token in tokens if token >= 0]
        if self.end in tokens:
            tokens = tokens[: tokens.index(self.end)]
        if self.separator is None or self.per == "characters":
            return tokens
        words: list[list[int]] = [[]]
        for token in tokens:
            if token == self.separator:
                words.append([])
            else:
                words[-1].append(token)
        return [tuple(word) for word in words if word]


def edit_distance(said: list[Any], meant: list[Any]) -> int:
    """The smallest number of insertions, deletions and substitutions that turn one sequence into the other."""
    numbers = {part: number for number, part in enumerate(dict.fromkeys([*said, *meant]))}
    columns = np.array([numbers[part] for part in meant], dtype=np.int64)
    offsets = np.arange(len(meant) + 1)
    row = offsets
    for place, part in enumerate(said, start=1):
        below = np.minimum(row[1:] + 1, row[:-1] + (columns != numbers[part]))
        # An insertion costs one more than its left neighbour: a running minimum, once the offsets are taken off.
        row = np.minimum.accumulate(np.concatenate(([place], below)) - offsets) + offsets
    return int(row[-1])
