"""weights: takes a module and a path, gives a file, and the other way round; `save` and `load` are what to know.

A file is safetensors, MessagePack or JSON, plain or gzipped, at full, half or double precision, and says itself which.
It appears whole or not at all, it carries checksums, and reading one runs no code: no pickle, no import by name.
`inspect` reads names, shapes and metadata only (a `Listing`); `load_torch` reads the tensors of a `.pt` safely.
"""

from stoker.weights._inspect import Listing, inspect
from stoker.weights._load import load
from stoker.weights._save import save
from stoker.weights._torch import load_torch

__all__ = ["Listing", "inspect", "load", "load_torch", "save"]
