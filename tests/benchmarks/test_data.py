"""Data made by code: the same every time, and drawn once where drawing takes long."""

import pytest
import torch

from benchmarks import _data
from benchmarks._data import digit_images, pictures, table, token_rows


@pytest.mark.parametrize("make", [lambda: table(8), lambda: pictures(8), lambda: token_rows(8, 4, 32)], ids="tpk")
def test_the_same_every_time_whatever_was_drawn_before(make):
    first = make()
    torch.randn(7)
    for left, right in zip(first, make(), strict=True):
        assert torch.equal(left, right)


def test_the_digits_are_drawn_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(_data, "DRAWN", 500)
    monkeypatch.setattr(_data.tempfile, "tempdir", str(tmp_path))
    images, labels = digit_images(750)
    assert images.shape == (750, 28, 28) and labels.shape == (750,) and images.dtype == torch.float32
    assert torch.equal(images[500:], images[:250])  # more than were drawn are the same again
    (path,) = (tmp_path / "stoker-benchmarks").iterdir()
    before = path.stat().st_mtime_ns
    again, _ = digit_images(10)
    assert torch.equal(again, images[:10]) and path.stat().st_mtime_ns == before


def test_a_target_is_the_next_token():
    tokens, targets = token_rows(4, 6, 32)
    assert tokens.shape == targets.shape == (4, 6)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
