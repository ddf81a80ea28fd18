"""weights: takes a module and a path, gives a file, and the other way round; `save` and `load` are what to know.

A file is safetensors, MessagePack or JSON, plain or gzipped, at full, half or double precision, and says itself which.
It appears whole or not at all, it carries checksums, and reading one runs no code: no pickle, no import by name.
`inspect` reads names, shapes and metadata only (a `Listing`); `load_torch` reads the tensors of a `.pt` safely.
`write_tensors` and `read_tensors` are for who keeps more than a model: any tensors by name, in an open file.
Of a sharded tensor (DTensor), `local_of` is the part that is here and `region_of` where it belongs; `fill` fills any.
"""

from stoker.weights._inspect import Listing, inspect
from stoker.weights._load import load
from stoker.weights._save import save
from stoker.weights._sharded import fill, is_sharded, local_of, part_for, region_of, settle_shards, with_local
from stoker.weights._tensors import check_tensor, read_tensors, write_tensors
from stoker.weights._torch import load_torch

__all__ = [
    "Listing",
    "check_tensor",
    "fill",
    "inspect",
    "is_sharded",
    "load",
    "load_torch",
    "local_of",
    "part_for",
    "read_tensors",
    "region_of",
    "save",
    "settle_shards",
    "with_local",
    "write_tensors",
]
