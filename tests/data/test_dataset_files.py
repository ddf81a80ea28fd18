"""Datasets in files: idx and CIFAR-10, complete or broken in any way."""

import gzip
import pickle
import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stoker.data import cifar10, idx, read_idx
from stoker.errors import BadFile, InvalidArgument, MissingFile

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
TYPES = [np.dtype(name) for name in CODES]


def as_idx(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, code, array.ndim]) + shape + array.astype(array.dtype.newbyteorder(">")).tobytes()


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = (np.arange(12) % 10).astype(np.uint8)


def write_mnist(folder: Path, *, mark: str = "-", zipped: bool = False, images=IMAGES, labels=LABELS) -> Path:
    for prefix in ("train", "t10k"):
        flip = -1 if prefix == "t10k" else 1  # the test part is the train part in reverse
        for name, array in ((f"images{mark}idx3", images[::flip]), (f"labels{mark}idx1", labels[::flip])):
            content = as_idx(array)
            path = folder / f"{prefix}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(TYPES).flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, max_dims=5))),
    st.booleans(),
)
def test_read_idx_returns_what_was_written(tmp_path_factory, array, zipped):
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(as_idx(array), 1) if zipped else as_idx(array))
    tensor = read_idx(path)
    assert tensor.shape == array.shape
    assert tensor.numpy().dtype == array.dtype
    assert tensor.numpy().tobytes() == array.tobytes()  # bit for bit, NaN included


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("mark", ["-", "."])
def test_idx_reads_the_usual_names(tmp_path, mark, zipped):
    folder = write_mnist(tmp_path, mark=mark, zipped=zipped)
    images, labels = idx(folder).tensors
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert images.numpy().tobytes() == IMAGES.tobytes()
    assert labels.tolist() == LABELS.tolist()
    images.zero_()  # it is writable
    images, labels = idx(str(folder), "test").tensors
    assert images[0].tolist() == IMAGES[-1].tolist()
    assert labels.tolist() == LABELS[::-1].tolist()


def fails(path: Path, content: bytes, text: str) -> None:
    path.write_bytes(content)
    with pytest.raises(BadFile, match=text):
        read_idx(path)


WHOLE = as_idx(IMAGES)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", r"is not an idx file: it starts with the bytes \(none\); expected 00 00, a type \(08, 09, "),
        (b"PK\3\4 zipped", r"is not an idx file: it starts with the bytes 50 4b 03 04"),
        (b"\0\0\x08\xff" + bytes(2000), r"is not an idx file: it starts with the bytes 00 00 08 ff"),
        (WHOLE[:9], r"is truncated: it ends inside its header"),
        (WHOLE[:-1], r"its header describes 12×28×28 values, which takes 9408 bytes, but the file holds 9407; down"),
        (WHOLE + b"\0", r"has more than the 9408 bytes of the 12×28×28 values in its header"),
        (as_idx(IMAGES[:0]), r"is empty: its header describes 0×28×28 values"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_bad_idx_files(tmp_path, content, text, zipped):
    fails(tmp_path / "file", gzip.compress(content) if zipped else content, text)


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        (lambda whole: whole[: len(whole) // 2], "is a broken gzip file .*download it again"),
        (lambda whole: whole[:-8] + bytes(4) + whole[-4:], r"is a broken gzip file \(CRC check failed"),
        (lambda whole: whole + b"garbage", "is a broken gzip file"),
    ],
)
def test_broken_gzip(tmp_path, cut, text):
    fails(tmp_path / "file.gz", cut(gzip.compress(WHOLE)), text)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2**32 - 1,) * 3, "is truncated: its header describes 4294967295×4294967295×4294967295 values"),
        ((1, 1, 3), "has more than the 3 bytes of the 1×1×3 values in its header"),
    ],
)
def test_a_header_that_claims_too_much_or_too_little_costs_no_memory(tmp_path, zipped, shape, text):
    content = bytes([0, 0, 0x08, 3]) + struct.pack(">3I", *shape) + bytes(1 << 20)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content, 1) if zipped else content)
    tracemalloc.start()
    try:
        with pytest.raises(BadFile, match=text):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@settings(deadline=None, max_examples=60)
@given(st.data(), st.booleans())
def test_a_changed_file_is_read_or_raises_bad_file(tmp_path_factory, data, zipped):
    content = bytearray(as_idx(np.arange(24, dtype=np.int16).reshape(2, 3, 4)))
    content = bytearray(gzip.compress(bytes(content))) if zipped else content
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(content)
    try:
        tensor = read_idx(path)
    except BadFile:
        return
    assert tensor.numel() > 0


def test_a_missing_file_lists_the_names_and_the_folder(tmp_path):
    looked = r"has no train-images-idx3-ubyte or train-images-idx3-ubyte\.gz or train-images\.idx3-ubyte or .*; "
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(BadFile, match=r"is a folder; pass the path of an idx file"):
        read_idx(tmp_path)
    with pytest.raises(MissingFile, match=f"{looked}there is no such folder"):
        idx(tmp_path / "nowhere")
    with pytest.raises(MissingFile, match=r"has no test_batch\.bin; it is empty"):
        cifar10(tmp_path, "test")
    write_mnist(tmp_path)
    (tmp_path / "raw").mkdir()
    with pytest.raises(BadFile, match=f"{looked}it is a file; pass the folder that it is in"):
        idx(tmp_path / "train-images-idx3-ubyte")
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        BadFile, match=r"has no t10k-labels-idx1-ubyte or .*; it holds raw/, t10k-images-idx3-ubyte, tr"
    ):
        idx(tmp_path, "test")
    for number in range(20):
        (tmp_path / f"a{number:02}").touch()
    with pytest.raises(BadFile, match=r"it holds a00, .*, a09 and 14 more$"):
        idx(tmp_path, "test")


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (IMAGES[:11], LABELS, r"train-images-idx3-ubyte holds 11 images and train-labels-idx1-ubyte 12 labels"),
        (IMAGES, LABELS + 1, r"train-labels-idx1-ubyte: label 9 is 10; expected 0 to 9"),
        (
            IMAGES[0],
            LABELS,
            r"images-idx3-ubyte: expected bytes with 3 dimension\(s\).*torch.uint8 of shape \[28, 28\]",
        ),
        (IMAGES, LABELS.astype(np.int32), r"labels-idx1-ubyte: expected bytes with 1 .*torch.int32 of shape \[12\]"),
    ],
)
def test_images_and_labels_that_do_not_belong_together(tmp_path, images, labels, text):
    write_mnist(tmp_path, images=images, labels=labels)
    with pytest.raises(BadFile, match=text):
        idx(tmp_path)


@pytest.mark.parametrize("reader", [idx, cifar10])
def test_an_unknown_part_raises(tmp_path, reader):
    name = reader.__name__
    with pytest.raises(
        InvalidArgument, match=f'{name} has the parts "train" and "test", not \'tets\'; did you mean \'t'
    ):
        reader(tmp_path, "tets")


BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def write_cifar10(folder: Path, records: int = 4) -> np.ndarray:
    """Writes six files of random images; returns their content, [6, records, 3073]."""
    batches = np.random.default_rng(1).integers(0, 256, (6, records, 3073), dtype=np.uint8)
    batches[:, :, 0] %= 10
    for name, batch in zip(BATCHES, batches, strict=True):
        (folder / name).write_bytes(batch.tobytes())
    return batches


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar10_reads_the_binary_batches(tmp_path, inside):
    (tmp_path / inside).mkdir(exist_ok=True)
    batches = write_cifar10(tmp_path / inside)
    for part, chosen in (("train", batches[:5]), ("test", batches[5:])):
        records = chosen.reshape(-1, 3073)
        images, labels = cifar10(tmp_path, part).tensors
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        assert labels.tolist() == records[:, 0].tolist()
        assert images.shape == (len(records), 3, 32, 32)
        # the format: 1024 bytes of red, then green, then blue, each row by row
        assert images[2, 1, 5, 7] == records[2, 1 + 1024 + 5 * 32 + 7]
        assert images.flatten(1).numpy().tobytes() == records[:, 1:].tobytes()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", r"data_batch_3\.bin is truncated, or not a binary batch of CIFAR-10: its 0 bytes"),
        (bytes(3072), r"its 3072 bytes are not a multiple of 3073, the size of a record; download it again"),
        (bytes(3073) + bytes([11]) + bytes(3072), r"data_batch_3\.bin: label 1 is 11; expected 0 to 9"),
    ],
)
def test_bad_cifar10_files(tmp_path, content, text):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(BadFile, match=text):
        cifar10(tmp_path)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('code from a file has run')",)


@pytest.mark.parametrize("inside", [".", "cifar-10-batches-py"])
def test_the_pickled_version_is_never_opened(tmp_path, inside):
    (tmp_path / inside).mkdir(exist_ok=True)
    for name in BATCHES:
        (tmp_path / inside / name.removesuffix(".bin")).write_bytes(pickle.dumps(Bomb()))
    folder = re.escape(str(tmp_path))
    text = rf"is the Python version of CIFAR-10, a pickle: .*binary version \(cifar-10-binary\.tar\.gz\) .*{folder}"
    for part in ("train", "test"):
        with pytest.raises(BadFile, match=text):
            cifar10(tmp_path, part)
