"""Images that are read back by somebody else."""

import io

import numpy as np
import pytest
from PIL import Image
from stoker.view.report._png import image, looks_like_an_image, pixels_of, png

from tests.view.report.pages import Page


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (1, 1)], ids=str)
def test_another_reader_sees_the_same_pixels(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape)
    assert np.array_equal(np.array(Image.open(io.BytesIO(png(pixels)))), pixels)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((28, 28), True), ((1, 8, 8), True), ((3, 8, 8), True), ((4, 8, 8), False), ((8,), False), ((2, 8), False)],
    ids=str,
)
def test_what_can_be_looked_at(shape, expected):
    assert looks_like_an_image(np.zeros(shape)) is expected


def test_any_values_become_pixels():
    found = pixels_of(np.array([[-1.0, 0.0, 1.0, np.nan]] * 4))
    assert found[0].tolist() == [0, 128, 255, 128]
    assert pixels_of(np.ones((1, 4, 4))).max() == 0 and pixels_of(np.full((4, 4), np.inf)).shape == (4, 4)
    assert pixels_of(np.zeros((3, 1000, 500))).shape == (250, 125, 3)
    assert Page(image(np.zeros((4, 4)), alt="<b>")).all("img")[0]["alt"] == "<b>"
