"""weights: takes a module and a path, gives a file, and the other way round; `save` and `load` are what to know.

A file is safetensors, MessagePack or JSON, plain or gzipped, at full, half or double precision, and says itself which.
It appears whole or not at all, it carries checksums, and reading one runs no code: no pickle, no import by name.
`inspect` reads names, shapes and metadata only (a `Listing`); `load_torch` reads the tensors of a `.pt` safely.
`write_tensors` and `read_tensors` are for who keeps more than a model: any tensors by name, in an open file.
"""

from stoker.weights._inspect import Listing, inspect
from stoker.weights._load import load
from stoker.weights._save import save
from stoker.weights._tensors import check_tensor, read_tensors, write_tensors
from stoker.weights._torch import load_torch

__all__ = ["Listing", "check_tensor", "inspect", "load", "load_torch", "read_tensors", "save", "write_tensors"]
