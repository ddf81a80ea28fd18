"""A fitted model judged on a data set, for pictures and reports: its answers, the targets, and the worst samples."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stoker.errors import BadData
from stoker.steps import Parts, Supervised

if TYPE_CHECKING:
    from stoker.view.report import Evaluation


def judge(
    answers: Any, walk: Callable[[], Iterable[Any]], *, supervised: Supervised, labels: Sequence[str] | None = None
) -> "Evaluation":
    """What a data set says of a model; `walk` gives its batches, twice, and of the samples only the worst are kept."""
    from stoker.view.report import evaluate_predictions  # imported only when needed

    targets = [supervised.parts(batch).targets for batch in walk()]
    if not isinstance(answers, Tensor) or not all(isinstance(each, Tensor) for each in targets):
        raise BadData(
            "to judge a model, its answers have to be one tensor, and the targets one tensor in each batch; "
            "report.evaluate_predictions takes arrays"
        )
    found = evaluate_predictions(answers.numpy(), torch.cat(targets).cpu().numpy(), labels=labels)
    places = {sample.place for sample in found.worst}
    inputs: dict[int, Any] = {}
    first = 0
    for batch in walk():
        parts = supervised.parts(batch)
        after = first + len(parts.targets)
        inputs |= {place: _input(parts, place - first) for place in places if first <= place < after}
        first = after
    return found.with_inputs(inputs)


def _input(parts: Parts, place: int) -> Any:
    """A sample's first input: what there is to look at."""
    first = next(iter((*parts.args, *parts.kwargs.values())))
    return first[place].cpu().numpy() if isinstance(first, Tensor) else str(first[place])
