"""An array as a PNG inside a page."""

import base64
import struct
import zlib

import numpy as np

from stoker.view.report._markup import Html, element

_GREY, _COLOUR = 0, 2  # PNG's numbers for one channel and for three


def image(pixels: np.ndarray, *, alt: str) -> Html:
    """Bytes of shape [height, width] or [height, width, 3] as an element that needs no other file."""
    data = base64.b64encode(png(pixels)).decode()
    return element("img", src=f"data:image/png;base64,{data}", alt=alt)


def png(pixels: np.ndarray) -> bytes:
    """The file that bytes of shape [height, width] or [height, width, 3] make."""
    height, width = pixels.shape[:2]
    rows = pixels.astype(np.uint8).reshape(height, -1)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # 0: a row as it is
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR if pixels.ndim == 3 else _GREY, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(name, content) for name, content in parts)


def looks_like_an_image(sample: np.ndarray) -> bool:
    """Whether a sample can be looked at: [height, width], and 1 or 3 channels of that; no sliver."""
    shape = sample.shape[-2:]
    return (sample.ndim == 2 or (sample.ndim == 3 and sample.shape[0] in (1, 3))) and min(shape) >= 4


def pixels_of(sample: np.ndarray, *, most: int = 256) -> np.ndarray:
    """A sample from its lowest value (black) to its highest (white), every so many pixels where it is larger."""
    values = sample.astype(np.float64)
    values = values[0] if values.ndim == 3 and values.shape[0] == 1 else values
    values = np.moveaxis(values, 0, -1) if values.ndim == 3 else values
    every = -(-max(values.shape[:2]) // most)
    values = np.nan_to_num(values[::every, ::every], posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    return np.round((values - low) / ((high - low) or 1.0) * 255)


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
