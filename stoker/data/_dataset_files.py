"""Datasets in files: MNIST and others in the idx format, and CIFAR-10 in its binary version."""

import gzip
import math
import os
import zlib
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from stoker.data._arguments import choose_part
from stoker.errors import BadFile, MissingFile

_PathLike = str | os.PathLike[str]

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}  # all big-endian
_IDX_DIMENSIONS = 64  # the most that a numpy array can have
_CHUNK = 1 << 20  # bytes read at a time, so that memory grows with the file and not with what its header claims
_CLASSES = 10
_CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the red, green and blue planes


def idx(folder: _PathLike, part: str = "train") -> TensorDataset:
    """Reads MNIST, Fashion-MNIST or any dataset with their file names: uint8 images [n, 28, 28], int64 labels [n].

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # a dataset of one image
    ...     header = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28])
    ...     _ = Path(folder, "t10k-images-idx3-ubyte").write_bytes(header + bytes(28 * 28))
    ...     _ = Path(folder, "t10k-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1]) + bytes([7]))
    ...     images, labels = idx(folder, "test").tensors
    >>> images.shape, labels
    (torch.Size([1, 28, 28]), tensor([7]))

    The folder holds `train-images-idx3-ubyte` and `train-labels-idx1-ubyte` (for "test" `t10k-…`), or the same with a
    dot (`train-images.idx3-ubyte`), each plain or gzipped.
    """
    prefix = choose_part("idx", part, {"train": "train", "test": "t10k"})
    images_path = _find_idx(Path(folder), f"{prefix}-images", "idx3-ubyte")
    labels_path = _find_idx(Path(folder), f"{prefix}-labels", "idx1-ubyte")
    images, labels = read_idx(images_path), read_idx(labels_path)
    for path, tensor, dimensions in ((images_path, images, 3), (labels_path, labels, 1)):
        if tensor.dtype != torch.uint8 or tensor.dim() != dimensions:
            content = f"{tensor.dtype} of shape {list(tensor.shape)}"
            raise BadFile(f"{path}: expected bytes with {dimensions} dimension(s), as in its name; it holds {content}")
    if len(images) != len(labels):
        raise BadFile(
            f"{images_path} holds {len(images)} images and {labels_path.name} {len(labels)} labels, so they do not "
            "belong together; download both files again"
        )
    return TensorDataset(images, _check_labels(labels, labels_path))


def cifar10(folder: _PathLike, part: str = "train") -> TensorDataset:
    """Reads CIFAR-10 from its binary version: uint8 images [n, 3, 32, 32] in red, green, blue, int64 labels [n].

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # a dataset of one black horse
    ...     _ = Path(folder, "test_batch.bin").write_bytes(bytes([7]) + bytes(3 * 32 * 32))
    ...     images, labels = cifar10(folder, "test").tensors
    >>> images.shape, labels
    (torch.Size([1, 3, 32, 32]), tensor([7]))

    The folder, or `cifar-10-batches-bin` in it, holds `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
    The Python version of the dataset is not supported, because unpickling runs code from the file.
    """
    training = [f"data_batch_{number}.bin" for number in range(1, 6)]
    names = choose_part("cifar10", part, {"train": training, "test": ["test_batch.bin"]})
    records = torch.cat([_read_cifar10(path) for path in _find_cifar10(Path(folder), names)])
    return TensorDataset(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long())


def read_idx(path: _PathLike) -> Tensor:
    """Reads the tensor of an idx file, plain or gzipped, of any of the format's six types.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "three-shorts"
    ...     _ = file.write_bytes(bytes([0, 0, 0x0B, 1]) + bytes([0, 0, 0, 3]) + bytes([0, 1, 1, 0, 255, 255]))
    ...     read_idx(file)
    tensor([  1, 256,  -1], dtype=torch.int16)
    """
    path = Path(path)
    if path.is_dir():
        raise BadFile(f"{path} is a folder; pass the path of an idx file")
    if not path.is_file():
        raise MissingFile(f"there is no file {path}")
    with path.open("rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            return _parse_idx(file, path)
        try:
            with gzip.open(file) as unzipped:
                return _parse_idx(unzipped, path)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise BadFile(f"{path} is a broken gzip file ({error}); download it again") from error


def _parse_idx(file: BufferedReader | gzip.GzipFile, path: Path) -> Tensor:
    """Reads an opened idx file."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES or magic[3] > _IDX_DIMENSIONS:
        raise BadFile(
            f"{path} is not an idx file: it starts with the bytes {magic.hex(' ') or '(none)'}; expected 00 00, "
            f"a type ({', '.join(f'{code:02x}' for code in _IDX_TYPES)}) and the number of dimensions"
        )
    header = file.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise BadFile(f"{path} is truncated: it ends inside its header; download it again")
    shape = [int.from_bytes(header[at : at + 4], "big") for at in range(0, len(header), 4)]
    text = "×".join(map(str, shape)) + " values" if shape else "one value"
    if 0 in shape:
        raise BadFile(f"{path} is empty: its header describes {text}")
    dtype = np.dtype(_IDX_TYPES[magic[2]])
    expected = math.prod(shape) * dtype.itemsize
    content = bytearray()
    while chunk := file.read(min(_CHUNK, expected + 1 - len(content))):
        content += chunk
    if len(content) < expected:
        raise BadFile(
            f"{path} is truncated: its header describes {text}, which takes {expected} bytes, but the file holds "
            f"{len(content)}; download it again"
        )
    if len(content) > expected:
        raise BadFile(f"{path} has more than the {expected} bytes of the {text} in its header; it is not an idx file")
    array = np.frombuffer(content, dtype).astype(dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(array).reshape(shape)


def _read_cifar10(path: Path) -> Tensor:
    """Reads the records of one file, [n, 3073]."""
    size = path.stat().st_size
    if size == 0 or size % _CIFAR_RECORD:
        raise BadFile(
            f"{path} is truncated, or not a binary batch of CIFAR-10: its {size} bytes are not a multiple of "
            f"{_CIFAR_RECORD}, the size of a record; download it again"
        )
    records = torch.from_numpy(np.fromfile(path, np.uint8)).reshape(-1, _CIFAR_RECORD)
    _check_labels(records[:, 0], path)
    return records


def _check_labels(labels: Tensor, path: Path) -> Tensor:
    """Returns the labels as int64, or raises if one is not a class number."""
    wrong = (labels >= _CLASSES).nonzero()
    if len(wrong):
        place = int(wrong[0])
        raise BadFile(f"{path}: label {place} is {int(labels[place])}; expected 0 to {_CLASSES - 1}")
    return labels.long()


def _find_idx(folder: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{separator}{kind}{suffix}" for separator in "-." for suffix in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise MissingFile(f"{folder} has no {' or '.join(names)}; {_describe_folder(folder)}")


def _find_cifar10(folder: Path, names: list[str]) -> list[Path]:
    places = [folder, folder / "cifar-10-batches-bin"]
    for place in places:
        if all((place / name).is_file() for name in names):
            return [place / name for name in names]
    place = next((place for place in reversed(places) if place.is_dir()), folder)
    missing = [name for name in names if not (place / name).is_file()]
    pickled = [folder / "data_batch_1", folder / "test_batch", folder / "cifar-10-batches-py"]
    found = next((path for path in pickled if path.exists()), None)
    if found is not None and missing == names:
        raise BadFile(
            f"{found} is the Python version of CIFAR-10, a pickle: reading it would run code from the file; "
            f"download the binary version (cifar-10-binary.tar.gz) and unpack it in {folder}"
        )
    raise MissingFile(f"{place} has no {', '.join(missing)}; {_describe_folder(place)}")


def _describe_folder(folder: Path) -> str:
    if not folder.is_dir():
        return "it is a file; pass the folder that it is in" if folder.exists() else "there is no such folder"
    names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"it holds {', '.join(names[:10])}{more}" if names else "it is empty"
