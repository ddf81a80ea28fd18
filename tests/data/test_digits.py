"""Digits drawn by code: their format, that they never change, and how hard they are to classify."""

import hashlib
import random
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stoker.data import digits
from stoker.errors import StokerError

ROOT = Path(__file__).parents[2]


def digest(part: str, **options: int) -> str:
    images, labels = digits(part, **options).tensors
    return hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()


@pytest.fixture(scope="module")
def train() -> tuple[Tensor, ...]:
    return digits("train", size=20_000).tensors


@pytest.fixture(scope="module")
def test() -> tuple[Tensor, ...]:
    return digits("test").tensors


def test_the_parts_have_the_sizes_and_types_of_mnist(train, test):
    assert len(test[0]) == 10_000
    for images, labels in (train, test):
        assert (images.shape[1:], images.dtype) == ((28, 28), torch.uint8)
        assert (labels.shape, labels.dtype) == ((len(images),), torch.int64)
    dataset = digits("train", size=3)
    image, label = dataset[2]
    assert (len(dataset), image.shape, label.shape) == (3, (28, 28), ())


def test_each_digit_is_equally_frequent_in_random_order(train):
    labels = train[1]
    blocks = labels.view(-1, 500)
    assert all(block.bincount(minlength=10).tolist() == [50] * 10 for block in blocks)
    assert len({tuple(block.tolist()) for block in blocks}) == len(blocks)
    assert 0.08 < (labels[1:] == labels[:-1]).float().mean() < 0.12  # one in ten repeats the one before, as by chance


def test_the_grey_values_are_close_to_those_of_mnist(train):
    ink = train[0].float() / 255
    assert ink.mean().item() == pytest.approx(0.14, abs=0.005)
    assert ink.std().item() == pytest.approx(0.31, abs=0.01)
    assert ink.flatten(1).sum(1).min() > 20  # no image is empty


def test_all_images_differ_within_and_between_parts_and_seeds(train, test):
    drawn = [train[0][:5000], test[0][:5000]]
    drawn += [digits("train", size=1000, seed=seed).tensors[0] for seed in (1, 1 + 2**32)]
    seen = {image.tobytes() for images in drawn for image in images.numpy()}
    assert len(seen) == 12_000


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["train", "test"]), st.integers(1, 1100), st.integers(1, 1100), st.integers(0, 2**70))
def test_a_smaller_size_is_a_prefix_of_a_larger_one(part, one, other, seed):
    small, large = sorted((one, other))
    heads, wholes = (digits(part, size=size, seed=seed).tensors for size in (small, large))
    for head, whole in zip(heads, wholes, strict=True):
        assert len(head) == small
        assert torch.equal(head, whole[:small])


def test_the_images_never_change_from_release_to_release():
    # A change gives users other data under the same name, and belongs in the changelog.
    assert digest("train", size=500, seed=1) == "4ba484d91dec9f20b2bf48ccf77bcbba46440e43334b6254f9dff74ad61df885"


def test_no_global_random_state_is_read_or_changed():
    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    before, first = states(), digest("train", size=10)
    assert states() == before
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert digest("train", size=10) == first


def test_threads_default_device_autocast_and_default_dtype_change_nothing():
    expected, threads = digest("train", size=500), torch.get_num_threads()
    with torch.device("meta"):
        assert digest("train", size=500) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert digest("train", size=500) == expected
    torch.set_default_dtype(torch.float16)
    torch.set_num_threads(threads + 1)
    try:
        assert digest("train", size=500) == expected
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"part": "tran"}, r"parts \"train\" and \"test\", not 'tran'; did you mean 'train'\?"),
        ({"part": "train", "size": 0}, r"size has to be at least 1; got 0"),
        ({"part": "train", "size": 0.5}, r"size has to be an integer; got 0\.5"),
        ({"part": "test", "seed": -1}, r"seed has to be at least 0; got -1"),
    ],
)
def test_wrong_arguments_raise(arguments, text):
    with pytest.raises(StokerError, match=text):
        digits(**arguments)


def test_the_picture_in_the_docs_is_up_to_date(tmp_path, monkeypatch):
    from matplotlib.image import imread

    monkeypatch.setattr(sys, "argv", ["draw_digits.py", str(tmp_path / "digits.png")])
    runpy.run_path(str(ROOT / "examples" / "draw_digits.py"), run_name="__main__")
    assert np.array_equal(imread(tmp_path / "digits.png"), imread(ROOT / "docs" / "digits.png"))


@pytest.mark.soak
def test_a_linear_model_stays_below_95_percent(train, test):
    from sklearn.linear_model import LogisticRegression

    x, y = train[0][:10_000].flatten(1).float() / 255, train[1][:10_000]
    test_x = test[0][:2000].flatten(1).float() / 255
    model = LogisticRegression(C=0.1, max_iter=200).fit(x.numpy(), y.numpy())
    assert 0.9 < model.score(test_x.numpy(), test[1][:2000].numpy()) < 0.95  # the lower bound shows that it is trained
