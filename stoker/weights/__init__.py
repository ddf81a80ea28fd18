"""weights: saves the weights of a model to a file and loads them; `save` and `load` are the main functions.

A file is safetensors, MessagePack or JSON, plain or gzipped, at full, half or double precision; `load` recognises
which. Files are written atomically and carry checksums, and reading one runs no code: no pickle, no import by name.
`inspect` returns names, shapes and metadata without reading the numbers (a `Listing`). `load_torch` reads the tensors
of a `.pt` file safely. `write_tensors` and `read_tensors` are for code that stores other tensors in an open file.
"""

from stoker.weights._file import Listing, inspect
from stoker.weights._load import load
from stoker.weights._safetensors import read_tensors, write_tensors
from stoker.weights._save import save
from stoker.weights._tensors import check_tensor
from stoker.weights._torch import load_torch

__all__ = [
    "Listing",
    "inspect",
    "load",
    "load_torch",
    "read_tensors",
    "save",
    "write_tensors",
]
