"""data: anything that holds samples goes in, batches come out, in an order that is a pure function of (seed, epoch).

Takes tensors, arrays, tables, lists, torch and Hugging Face data sets (a `Source`, or what can be made one). Gives
batches, with the structure of the samples. The one type to know is `Loader`.
"""

from stoker.data._ahead import ahead
from stoker.data._batchable import batchable
from stoker.data._concat import concat
from stoker.data._digits import digits
from stoker.data._files import cifar10, idx, read_idx
from stoker.data._ghost import Ghost
from stoker.data._loader import Loader
from stoker.data._move import moved
from stoker.data._pick import Pick
from stoker.data._source import Source
from stoker.data._split import split
from stoker.data._views import mapped, shuffled, take
from stoker.data._walk import Walk
from stoker.data._windows import windows

__all__ = [
    "Ghost",
    "Loader",
    "Pick",
    "Source",
    "Walk",
    "ahead",
    "batchable",
    "cifar10",
    "concat",
    "digits",
    "idx",
    "mapped",
    "moved",
    "read_idx",
    "shuffled",
    "split",
    "take",
    "windows",
]
