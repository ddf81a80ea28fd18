"""Images of handwritten-looking digits, drawn by code: a dataset for docs, tests and the demo, without a download.

A digit is a few strokes, a stroke is a smooth curve through control points, and dots of ink lie along the curve. A
curve is linear in its control points, and a round soft dot is the outer product of a column and a row, so a whole block
of images takes three batched matrix products.
"""

import hashlib
import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from stoker.data._arguments import check_int
from stoker.errors import InvalidArgument, did_you_mean

_SIDE = 28  # pixels
_BLOCK = 500  # images that share a random stream; a smaller dataset is a prefix of a larger one
_DOTS = 56  # along the strokes of one digit; less than a pixel apart
_FINE = 400  # points along a stroke, from which the evenly spaced dots are chosen
_STRAY_DOTS = 8  # along the stray stroke that some images have
_PARTS = {"train": 60_000, "test": 10_000}  # images, as in MNIST

# Ways to write each digit: strokes, each through its points x,y in hundredths of a square, y downwards. Strokes that
# share a point make a corner there, and move together.
_STYLES: dict[int, list[str]] = {
    0: [
        "50,0 22,12 10,50 22,88 50,100 78,88 90,50 78,12 50,0",
        "62,4 30,12 14,55 30,96 62,94 85,50 74,10 40,6",
    ],
    1: [
        "50,0 50,50 50,100",
        "25,28 56,0 | 56,0 56,50 56,100",
        "28,22 52,0 | 52,0 52,50 52,100 | 22,100 82,100",
    ],
    2: [
        "12,26 28,4 64,2 84,26 68,56 36,80 10,100 | 10,100 50,98 92,100",
        "12,20 42,0 80,20 66,58 30,94 10,90 20,76 45,84 68,98 95,90",
    ],
    3: [
        "14,12 48,0 82,18 70,40 38,47 | 38,47 74,54 88,76 60,99 10,90",
        "12,2 84,0 | 84,0 42,40 | 42,40 80,48 88,78 52,100 10,90",
    ],
    4: [
        "62,0 6,66 | 6,66 94,66 | 62,0 63,50 62,100",
        "20,0 12,32 12,56 | 12,56 50,58 90,54 | 76,8 70,50 68,100",
    ],
    5: [
        "86,0 24,2 | 24,2 18,44 | 18,44 50,36 84,52 84,82 50,100 8,90",
        "88,4 40,4 24,24 34,42 70,50 82,78 50,100 10,90",
    ],
    6: [
        "76,3 34,22 12,62 24,94 58,100 86,78 68,52 30,56 14,76",
        "50,0 24,36 14,74 36,100 70,96 82,72 56,56 20,70",
    ],
    7: [
        "10,2 90,0 | 90,0 56,48 40,100",
        "10,2 88,0 | 88,0 60,48 42,100 | 30,50 86,48",
        "10,20 14,2 | 14,2 50,6 90,0 | 90,0 60,50 50,100",
    ],
    8: [
        "80,16 50,0 20,20 50,46 86,76 50,100 14,76 50,46 80,16",
        "50,44 22,24 50,0 78,24 50,44 | 50,44 14,72 50,100 86,72 50,44",
    ],
    9: [
        "84,20 50,0 16,26 44,50 84,20 | 84,20 80,60 70,100",
        "82,22 54,0 18,22 44,50 82,22 | 82,22 86,66 62,98 20,92",
    ],
}


def digits(part: str, *, size: int | None = None, seed: int = 0) -> TensorDataset:
    """Draws grey 28×28 images of digits in several handwritings: uint8 images and int64 labels, without a download.

    >>> images, labels = digits("train", size=1000).tensors
    >>> images.shape, images.dtype, labels.bincount().tolist()
    (torch.Size([1000, 28, 28]), torch.uint8, [100, 100, 100, 100, 100, 100, 100, 100, 100, 100])

    The parts are "train" (60,000 images by default) and "test" (10,000). The same part and seed give the same images,
    and a smaller size gives the first images of a larger one. Global random state is neither read nor changed. Every
    500 images hold each digit 50 times. Ink is 255 and paper 0; divided by 255, the mean is 0.14 and the standard
    deviation 0.31, close to MNIST.
    """
    if part not in tuple(_PARTS):
        guess = did_you_mean(str(part), _PARTS)
        raise InvalidArgument(f'digits has the parts "train" and "test", not {part!r}{guess}')
    size = check_int("size", _PARTS[part] if size is None else size, least=1)
    seed = check_int("seed", seed, least=0)
    # All tensors are created on the CPU explicitly, because the caller may have set another default device.
    images = torch.empty(size, _SIDE, _SIDE, dtype=torch.uint8, device="cpu")
    labels = torch.empty(size, dtype=torch.int64, device="cpu")
    for start in range(0, size, _BLOCK):
        block_labels, block_images = _draw_block(_stream(part, seed, start // _BLOCK))
        images[start : start + _BLOCK] = block_images[: size - start]
        labels[start : start + _BLOCK] = block_labels[: size - start]
    return TensorDataset(images, labels)


def _stream(part: str, seed: int, block: int) -> "np.random.Generator":
    # A hash keeps the keys apart: torch uses 32 bits of a seed, and numpy joins the words of a list.
    key = hashlib.blake2b(f"{part} {seed} {block}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(key, "big"))


class _Alphabet(NamedTuple):
    """Every style of every digit; styles with fewer control points than the longest have weights of 0 for the rest."""

    points: Tensor  # [styles, points, 2]: control points, centred on the origin, one unit high
    curves: Tensor  # [styles, dots, points]: the weight of each control point in a dot
    length: Tensor  # [styles]: total length of the strokes
    first: Tensor  # [10]: the first style of a digit
    many: Tensor  # [10]: the number of its styles


@cache
def _alphabet() -> _Alphabet:
    styles = [_strokes(style) for digit in range(10) for style in _STYLES[digit]]
    named = [list(dict.fromkeys(point for stroke in style for point in stroke)) for style in styles]
    most = max(map(len, named))
    points, curves = np.zeros((len(styles), most, 2)), np.zeros((len(styles), _DOTS, most))
    lengths = []
    for number, (style, names) in enumerate(zip(styles, named, strict=True)):
        points[number, : len(names)] = np.array(names) / 100 - 0.5
        fine = np.concatenate([_spline([names.index(point) for point in stroke], most) for stroke in style])
        where = fine @ points[number]
        hop = np.linalg.norm(np.diff(where, axis=0), axis=1)
        hop[_FINE - 1 :: _FINE] = 0  # the pen is up between two strokes
        travelled = np.concatenate([[0], np.cumsum(hop)])
        lengths.append(travelled[-1])
        even = (np.arange(_DOTS) + 0.5) / _DOTS * travelled[-1]
        curves[number] = fine[np.searchsorted(travelled, even)]
    many = np.array([len(_STYLES[digit]) for digit in range(10)])
    arrays = points, curves, np.array(lengths), np.cumsum(many) - many, many
    return _Alphabet(*(torch.from_numpy(array) for array in arrays))


def _strokes(style: str) -> list[list[tuple[int, int]]]:
    pairs = [[point.split(",") for point in stroke.split()] for stroke in style.split("|")]
    return [[(int(x), int(y)) for x, y in stroke] for stroke in pairs]


def _spline(stroke: list[int], points: int) -> np.ndarray:
    """A Catmull-Rom spline through the numbered control points, as weights of all of them: [_FINE, points]."""
    place = np.linspace(0, len(stroke) - 1, _FINE)
    left = np.minimum(place.astype(int), len(stroke) - 2)
    t = place - left
    pull = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, -(t**2) + t**3)
    weights = np.zeros((_FINE, points))
    for offset, amount in zip((-1, 0, 1, 2), pull, strict=True):
        control = np.array(stroke)[np.clip(left + offset, 0, len(stroke) - 1)]
        np.add.at(weights, (np.arange(_FINE), control), amount / 2)
    return weights


def _draw_block(random: "np.random.Generator") -> tuple[Tensor, Tensor]:
    """Draws the labels [block] and images [block, 28, 28] of one random stream."""

    def between(low: float, high: float, *shape: int) -> Tensor:
        return torch.from_numpy(low + (high - low) * random.random((_BLOCK, *shape)))

    labels = torch.from_numpy(random.permutation(np.arange(_BLOCK) % 10))
    alphabet = _alphabet()
    style = alphabet.first[labels] + (between(0, 1) * alphabet.many[labels]).long()
    points = alphabet.points[style]
    dots = alphabet.curves[style] @ (points + between(-0.05, 0.05, *points.shape[1:]))  # an unsteady hand

    height = between(15.5, 20.5)  # pixels
    width = height * between(0.6, 1.0)
    turn, slant = between(-0.24, 0.24), between(-0.33, 0.33)  # radians; sideways per unit of height
    place = (_SIDE - 1) / 2 + between(-2.3, 2.3, 1, 2)
    dots = dots @ _affine(height, width, turn, slant) + place  # [block, dots, 2], in pixels

    along = torch.from_numpy(np.linspace(-1, 1, _STRAY_DOTS))[:, None]
    stray = between(1, _SIDE - 2, 1, 2) + between(-3, 3, 1, 2) * along
    spacing = alphabet.length[style] * (height + width) / 2 / _DOTS  # pixels of stroke per dot
    stray_spacing = 0.8 * (between(0, 1) < 0.1).double()  # one image in ten has a stray stroke
    ink = torch.cat([spacing[:, None].expand(-1, _DOTS), stray_spacing[:, None].expand(-1, _STRAY_DOTS)], 1)

    images = _ink(torch.cat([dots, stray], 1), ink, radius=between(0.55, 0.9)) * between(0.9, 1, 1, 1)
    images += between(-1, 1, _SIDE, _SIDE) * between(0, 0.05, 1, 1)  # noise, stronger in some images
    return labels, (images.clamp(0, 1) * 255).round().to(torch.uint8)


def _affine(height: Tensor, width: Tensor, turn: Tensor, slant: Tensor) -> Tensor:
    """Returns matrices that scale, shear and rotate row vectors (x, y): [block, 2, 2]."""
    cos, sin = turn.cos(), turn.sin()
    x = torch.stack([width * cos, width * sin], -1)
    y = torch.stack([height * (slant * cos - sin), height * (slant * sin + cos)], -1)
    return torch.stack([x, y], 1)


def _ink(dots: Tensor, amount: Tensor, *, radius: Tensor) -> Tensor:
    """Draws the ink of a pen that touches the paper at these dots, [block, dots, 2] pixels: images from 0 to 1.

    Double precision: machines whose `exp` and sums differ in the last bit still round to the same grey values.
    """
    pixels = torch.from_numpy(np.arange(_SIDE, dtype=np.float64))[:, None]
    sharpness = (-0.5 / radius.square())[:, None, None]
    across, down = (torch.exp((dots[:, None, :, axis] - pixels).square() * sharpness) for axis in (0, 1))
    amount = amount / (math.sqrt(2 * math.pi) * radius[:, None])  # so that the middle of a long line is 1
    line = (down * amount[:, None]) @ across.mT  # [block, 28, dots] @ [block, dots, 28]
    return (2.4 * line).clamp(max=1)  # a full core with a soft edge
