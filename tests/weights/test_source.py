import gzip
import tracemalloc
import zlib

import pytest
import torch
from torch import nn

from stoker.errors import BadFile, MissingFile
from stoker.weights import inspect, load, save
from stoker.weights._source import open_source


def test_a_missing_file_names_one_that_is_near(tmp_path):
    save(nn.Linear(1, 1), tmp_path / "model")
    with pytest.raises(BadFile, match=r"there is no file '.*model'; did you mean '.*model\.safetensors'\?"):
        load(nn.Linear(1, 1), tmp_path / "model")
    with pytest.raises(BadFile, match=r"no file '.*modle.safetensors'; did you mean 'model.safetensors'\?"):
        load(nn.Linear(1, 1), tmp_path / "modle.safetensors")
    for family in (BadFile, FileNotFoundError, MissingFile):
        with pytest.raises(family, match=r"there is no file '.*folder'"):
            load(nn.Linear(1, 1), tmp_path / "no" / "folder")
    with pytest.raises(BadFile, match=r"is a folder"):
        load(nn.Linear(1, 1), tmp_path)


def test_gzip_is_found_by_content_and_not_by_name(tmp_path):
    model = nn.Linear(2, 2)
    packed = save(model, tmp_path / "m", compress=True)
    plain = save(model, tmp_path / "m")
    packed.rename(tmp_path / "x")
    plain.rename(tmp_path / "y.json.gz")
    for path in (tmp_path / "x", tmp_path / "y.json.gz"):
        assert torch.equal(load(nn.Linear(2, 2), path).weight, model.weight)


def bomb(start: bytes, size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    made = [packer.compress(start)]
    made += [packer.compress(b" " * (1 << 20)) for _ in range(size >> 20)]
    return b"".join([*made, packer.flush()])


@pytest.mark.parametrize("start", [
    b'{"tensors": ',
    (90_000_000).to_bytes(8, "little") + b"{",
    b"\x84\xdb\x05\xf5\xe0\x00",
])  # fmt: skip
def test_a_gzip_bomb_is_refused_without_unpacking_it(tmp_path, start):
    path = tmp_path / "bomb"
    path.write_bytes(bomb(start, 200 << 20))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    with pytest.raises(BadFile, match=r"unpacks to more than [\d,]+ bytes.*larger limit="):
        load(nn.Linear(2, 2), path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_limit_can_be_raised_and_lowered(tmp_path):
    model = nn.Linear(2, 2)
    path = save(model, tmp_path / "m", compress=True, metadata={"long": " " * (2 << 20)})
    with pytest.raises(BadFile, match=r"more than 1,"):
        load(nn.Linear(2, 2), path)
    load(nn.Linear(2, 2), path, limit=3 << 20)
    with pytest.raises(BadFile, match=r"more than 1,000 bytes"):
        inspect(path, limit=1000)


def test_gzip_that_goes_on_or_stops_or_lies_is_refused(tmp_path):
    path = save(nn.Linear(20, 20), tmp_path / "m", compress=True)
    good = path.read_bytes()
    path.write_bytes(gzip.compress(gzip.decompress(good) + b"more"))
    with pytest.raises(BadFile, match=r"goes on after its last tensor"):
        load(nn.Linear(20, 20), path)
    path.write_bytes(good[:-100])
    with pytest.raises(BadFile, match=r"ends too early"):
        load(nn.Linear(20, 20), path)
    path.write_bytes(good[:-8] + bytes(8))
    with pytest.raises(BadFile, match=r"damaged gzip"):
        load(nn.Linear(20, 20), path)


def test_asking_for_more_than_there_is_allocates_nothing(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(b"abc")
    tracemalloc.start()
    with open_source(path, limit=10) as source, pytest.raises(BadFile, match=r"ends too early"):
        source.exactly(1 << 40)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
