"""Draws docs/digits.png: eight of each digit from `stoker.data.digits`, dark on white."""

import sys
from pathlib import Path

import matplotlib.image
import torch
from torch import Tensor

from stoker.data import digits

ROWS, MARGIN, ZOOM = 8, 2, 2  # images of each digit; margin in pixels; scale


def sheet(images: Tensor, labels: Tensor) -> Tensor:
    """One column for each digit, with its first images."""
    columns = [torch.cat(list(images[labels == digit][:ROWS]), dim=0) for digit in range(10)]
    return torch.cat(columns, dim=1)


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "digits.png"
    images, labels = digits("train", size=500).tensors
    framed = torch.nn.functional.pad(images, [MARGIN] * 4)
    large = sheet(framed, labels).repeat_interleave(ZOOM, 0).repeat_interleave(ZOOM, 1)
    # without the version of matplotlib in the file
    matplotlib.image.imsave(
        path, large.numpy(), cmap="gray_r", vmin=0, vmax=255, pil_kwargs={"optimize": True}, metadata={"Software": None}
    )
    print(f"drew {path}")
