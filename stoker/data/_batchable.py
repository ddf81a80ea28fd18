"""A transform of whole batches, which runs where training runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.data._ghost import Ghost
from stoker.data._views import applied
from stoker.errors import WrongType


@dataclass(frozen=True)
class Batchable:
    """A function that is meant for batches."""

    function: Callable[..., Any]

    def __call__(self, *parts: Any) -> Any:
        return self.function(*parts)


def batchable(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function of a batch (of its parts, where it is a tuple), for a loader's `transform=`.

    >>> import torch
    >>> from stoker.data import Loader
    >>> flip = batchable(lambda images, labels: (images.flip(-1), labels))
    >>> images, labels = torch.arange(6).view(3, 2), torch.arange(3)
    >>> next(iter(Loader((images, labels), batch_size=2, transform=flip)))
    (tensor([[1, 0],
            [3, 2]]), tensor([0, 1]))

    It is called once for a batch, after the batch was joined and moved: on the device, and never in a worker. With
    columns in memory there is then no work for single samples.
    What it draws comes from torch's global generator of that device, as dropout's does: it is a part of training's
    random state, and not keyed by the sample.
    """
    if not callable(transform):
        raise WrongType(f"batchable marks a function of a batch; got {type(transform).__name__}")
    return transform if isinstance(transform, Batchable) else Batchable(transform)


def finished(batch: Any, after: Callable[..., Any] | None) -> Any:
    """The batch as the model gets it: through its batchable transform, where there is one."""
    if after is None:
        return batch
    return Ghost(applied(after, batch.batch)) if isinstance(batch, Ghost) else applied(after, batch)
