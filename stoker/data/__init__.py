"""Loading data: batches of any source of samples, in an order that is a pure function of (seed, epoch).

A source is a tensor, an array, a tuple or mapping of them, a table, a list, a torch or Hugging Face dataset, or a
`DataLoader`. `Loader` gives batches with the structure of the samples.
"""

from typing import TYPE_CHECKING

from stoker._lazy import import_on_use
from stoker.data._batch import PaddingBatch, RowSelection, batchable, move_batch
from stoker.data._batching import RowSelections
from stoker.data._combine import Combination, Zip, by_epoch, cycle, mix, zip
from stoker.data._loader import EpochBatches, Loader, change_options, is_batched
from stoker.data._prefetch import prefetch
from stoker.data._source import Source
from stoker.data._views import concat, mapped, shuffled, split, take, windows

if TYPE_CHECKING:
    from stoker.data._digits import digits
else:  # what a plain fit does not use
    __getattr__, __dir__ = import_on_use(__name__, {"_digits": "digits"})

__all__ = [
    "Loader",
    "PaddingBatch",
    "Source",
    "batchable",
    "by_epoch",
    "concat",
    "cycle",
    "digits",
    "is_batched",
    "mapped",
    "mix",
    "move_batch",
    "prefetch",
    "shuffled",
    "split",
    "take",
    "windows",
    "zip",
]
