"""Media of a run: images, histograms, texts, tables and audio, as files in `media` in its directory.

What is written is always one of four formats (PNG, JSON, plain text, WAV), whatever was given; what is read is checked,
because a run's directory may come from anybody.
"""

import io
import json
import math
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stoker._figure import figure_to_png
from stoker._files import explain_errors, open_regular_file
from stoker.errors import BadFile, InvalidArgument, WrongType
from stoker.record._event import Event, to_json_value

if TYPE_CHECKING:
    from stoker.record._record import Record

MEDIA = "media"
# The types of media: the suffix of the file, and its content type.
MEDIA_TYPES: Mapping[str, tuple[str, str]] = {
    "image": ("png", "image/png"),
    "histogram": ("json", "application/json"),
    "text": ("txt", "text/plain; charset=utf-8"),
    "table": ("json", "application/json"),
    "audio": ("wav", "audio/wav"),
}
_SIGNATURES = {"image": b"\x89PNG\r\n\x1a\n", "audio": b"RIFF"}  # the first bytes of a file
_FILE = re.compile(rf"{MEDIA}/[\w][\w.-]*", re.ASCII)
_MAX_NAME = 200  # characters
_MAX_READ = 1 << 28  # bytes of a file that is read
_GRID, _GAP = 64, 2  # images of a batch that a grid has at most, and pixels between them


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """How large an item may be, and how many a run may have. What is beyond is left out, with one warning."""

    item_bytes: int = 16 << 20
    items: int = 10_000


class Encoded(NamedTuple):
    """The content of a media file, and facts about it for its event."""

    content: bytes
    facts: dict[str, Any]


# --- Reading


def is_media(event: Event) -> bool:
    """Whether an event describes media whose file has a name that stoker would give it."""
    extra = event.extra
    suffix, _ = MEDIA_TYPES.get(str(extra.get("type")), ("", ""))
    file = extra.get("file")
    if not suffix or not isinstance(file, str) or not isinstance(extra.get("name"), str):
        return False
    return bool(_FILE.fullmatch(file)) and file.endswith(f".{suffix}")


def media_path(run: str | os.PathLike[str], event: Event) -> Path:
    """The file of a "media" event, checked: a regular file in the run's own `media`, of the type that it should be.

    Raises `BadFile` for anything else (a link, a path that leads elsewhere, a page instead of an image), `MissingFile`
    if the file is not there.
    """
    path = _checked_path(run, event)
    with explain_errors(path), open_regular_file(path, follow=False) as file:
        _check_content(file.read(16), event, path)
    return path


def read_media(run: str | os.PathLike[str], event: Event) -> bytes:
    """The content of a "media" event's file, checked as by `media_path`."""
    path = _checked_path(run, event)
    with explain_errors(path), open_regular_file(path, follow=False) as file:
        content = file.read(_MAX_READ + 1)
    if len(content) > _MAX_READ:
        raise BadFile(f"{path} is too large; at most {_MAX_READ:,} bytes are read")
    _check_content(content, event, path)
    return content


def _checked_path(run: str | os.PathLike[str], event: Event) -> Path:
    if not is_media(event):
        expected = f"a file in {MEDIA}/ with a name that fits its type"
        raise BadFile(f"a media event names the file {str(event.extra.get('file'))[:200]!r}; expected {expected}")
    folder = Path(run) / MEDIA
    if folder.is_symlink():
        raise BadFile(f"{folder} is a symbolic link; expected a directory of the run itself")
    return Path(run) / event.extra["file"]


def _check_content(content: bytes, event: Event, path: Path) -> None:
    media_type = event.extra["type"]
    if not content.startswith(_SIGNATURES.get(media_type, b"")):
        raise BadFile(f"{path} is not what its event says: expected {MEDIA_TYPES[media_type][1]}")


# --- Logging


class MediaLog:
    """The methods that log media: of the `ctx` of callbacks, and of a `Run` in your own loop.

    >>> from stoker.record import Run
    >>> run = Run.create("runs/pictures")
    >>> run.log_image("samples", np.zeros((8, 8)), caption="all black", update=10)
    >>> run.log_table("mistakes", [{"target": 3, "predicted": 5}], update=10)
    >>> [(event.extra["type"], event.extra["file"]) for event in run.record.media]
    [('image', 'media/00000010-samples.png'), ('table', 'media/00000010-mistakes.json')]
    >>> run.close()

    An item replaces one of the same name and update. Without a run directory, only trackers get it. Limits are in
    `record.media_limits`. With several processes, rank 0 writes.
    """

    __slots__ = ()

    def _media_place(self) -> "tuple[Record, int, int, int]":
        """The record, and the current epoch, batch and update."""
        raise NotImplementedError

    def log_image(
        self, name: str, image: Any, *, caption: str = "", epoch: int | None = None, update: int | None = None
    ) -> None:
        """Logs an image, stored as PNG: a tensor, an array or a PIL image.

        Shapes are [H, W], [C, H, W] or [H, W, C] with 1 to 4 channels; four dimensions are a batch, of which a grid of
        at most 64 images is made. Values are 0 to 255 in integers, or 0 to 1 in floats.
        """
        self._log_media(name, "image", lambda: encode_image(image), caption, epoch, update)

    def log_figure(
        self, name: str, figure: Any, *, caption: str = "", epoch: int | None = None, update: int | None = None
    ) -> None:
        """Logs a matplotlib figure (or axes) as an image."""
        self._log_media(name, "image", lambda: _encode_figure(figure), caption, epoch, update)

    def log_histogram(
        self,
        name: str,
        values: Any,
        *,
        bins: int = 64,
        caption: str = "",
        epoch: int | None = None,
        update: int | None = None,
    ) -> None:
        """Logs the distribution of the values of a tensor or an array; NaN and infinities are counted apart."""
        self._log_media(name, "histogram", lambda: _encode_histogram(values, bins), caption, epoch, update)

    def log_text(
        self, name: str, text: str, *, caption: str = "", epoch: int | None = None, update: int | None = None
    ) -> None:
        """Logs a text; it is shown as it is, never as HTML or Markdown."""
        self._log_media(name, "text", lambda: _encode_text(text), caption, epoch, update)

    def log_table(
        self, name: str, table: Any, *, caption: str = "", epoch: int | None = None, update: int | None = None
    ) -> None:
        """Logs a table: a list of rows (mappings or sequences), a mapping of columns, or a DataFrame."""
        self._log_media(name, "table", lambda: _encode_table(table), caption, epoch, update)

    def log_audio(
        self,
        name: str,
        samples: Any,
        rate: int,
        *,
        caption: str = "",
        epoch: int | None = None,
        update: int | None = None,
    ) -> None:
        """Logs a sound, stored as WAV: samples of shape [T] or [C, T], floats from -1 to 1 or 16-bit integers."""
        self._log_media(name, "audio", lambda: _encode_audio(samples, rate), caption, epoch, update)

    def _log_media(
        self, name: str, kind: str, encode: Callable[[], Encoded], caption: str, epoch: int | None, update: int | None
    ) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise InvalidArgument(f"the name is {name!r:.80}; expected a text of 1 to {_MAX_NAME} characters")
        if not isinstance(caption, str):
            raise WrongType(f"caption is a {type(caption).__name__}; expected a text")
        record, current_epoch, batch, current_update = self._media_place()
        place = current_epoch if epoch is None else epoch, batch, current_update if update is None else update
        extra = {"name": name, "type": kind, "caption": caption}
        record.append_media(Event("media", time.time(), *place, extra=extra), encode)


def file_name(event: Event) -> str:
    """The file of a media event, from its update and its name, with characters that any file system and URL takes."""
    name = event.extra["name"]
    clean = re.sub(r"[^a-z0-9._-]+", "_", name.lower(), flags=re.ASCII)[:80].lstrip(".") or "_"
    unique = "" if clean == name else f"-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
    return f"{MEDIA}/{event.update:08d}-{clean}{unique}.{MEDIA_TYPES[event.extra['type']][0]}"


def write_media(directory: Path, file: str, content: bytes) -> None:
    """Writes a media file atomically; a link in its place is replaced, and one in the place of `media` is an error."""
    folder = directory / MEDIA
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise OSError(f"{folder} is a symbolic link")
    path = directory / file
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as new:  # not synced, which would take time: a power cut may lose an item
            new.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# --- Encoding


def _to_array(value: Any, method: str) -> np.ndarray:
    """A tensor, an array, a PIL image or nested lists as an array of numbers."""
    if isinstance(value, str | bytes | os.PathLike):
        raise WrongType(f"{method} takes a tensor or an array of numbers, not a path or a file's content")
    if hasattr(value, "detach"):  # a tensor; this package does not import torch
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    elif hasattr(value, "getbands"):  # a PIL image; palettes and the like become colors
        value = value if value.mode in ("L", "LA", "RGB", "RGBA") else value.convert("RGB")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise WrongType(f"{method} takes a tensor or an array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise WrongType(f"{method} takes a tensor or an array of numbers; got {type(value).__name__} of {array.dtype}")
    return array


def encode_image(image: Any) -> Encoded:
    """A PNG of an image, or of a grid of a batch."""
    array = _to_array(image, "log_image")
    is_tensor = hasattr(image, "detach")
    if array.size == 0 or not 2 <= array.ndim <= 4:
        raise InvalidArgument(
            f"log_image: got the shape {list(array.shape)}; expected [H, W], [C, H, W], [H, W, C], or a batch of those "
            "with channels"
        )
    pixels = _to_bytes(array[..., None] if array.ndim == 2 else array)
    if array.ndim > 2:
        first, last = pixels.shape[-3] in (1, 2, 3, 4), pixels.shape[-1] in (1, 2, 3, 4)
        if not first and not last:
            raise InvalidArgument(
                f"log_image: got the shape {list(array.shape)}; expected 1 to 4 channels before or after the height "
                "and width (a batch of gray images: [B, 1, H, W])"
            )
        if first and (is_tensor or not last):
            pixels = np.moveaxis(pixels, -3, -1)
    pixels = _grid(pixels) if pixels.ndim == 4 else pixels
    height, width, _ = pixels.shape
    return Encoded(_png(pixels), {"width": width, "height": height})


def _to_bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        array = np.nan_to_num(array.astype(np.float32), nan=0.0) * 255
        return np.rint(np.clip(array, 0, 255)).astype(np.uint8)
    return array.astype(np.uint8) * 255 if array.dtype.kind == "b" else np.clip(array, 0, 255).astype(np.uint8)


def _grid(images: np.ndarray) -> np.ndarray:
    """[B, H, W, C] as one image."""
    images = images[:_GRID]
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    grid = np.zeros((rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, channels), dtype=np.uint8)
    for place, image in enumerate(images):
        top, left = place // columns * (height + _GAP), place % columns * (width + _GAP)
        grid[top : top + height, left : left + width] = image
    return grid


def _png(pixels: np.ndarray) -> bytes:
    """[H, W, C] of bytes as PNG; each line is stored as its difference to the one above, which compresses well."""
    height, width, channels = pixels.shape
    lines = pixels.reshape(height, width * channels)
    filtered = np.empty((height, width * channels + 1), dtype=np.uint8)
    filtered[:, 0] = 2  # the filter "up"
    filtered[0, 1:] = lines[0]
    filtered[1:, 1:] = lines[1:] - lines[:-1]
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 4)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return _SIGNATURES["image"] + b"".join(chunks)


def _encode_figure(figure: Any) -> Encoded:
    figure = figure if hasattr(figure, "savefig") else getattr(figure, "figure", None)
    if not hasattr(figure, "savefig"):
        raise WrongType("log_figure takes a matplotlib figure or axes")
    content = figure_to_png(figure)
    width, height = struct.unpack(">II", content[16:24])
    return Encoded(content, {"width": width, "height": height})


def _encode_histogram(values: Any, bins: int) -> Encoded:
    array = _to_array(values, "log_histogram").astype(np.float64).ravel()
    if not isinstance(bins, int) or not 1 <= bins <= 10_000:
        raise InvalidArgument(f"log_histogram: bins={bins!r}; expected a number from 1 to 10,000")
    finite = array[np.isfinite(array)]
    counts, edges = np.histogram(finite, bins=bins)  # of nothing: from 0 to 1
    facts = {"count": len(array), "not_finite": len(array) - len(finite)}
    if len(finite):
        facts |= {"minimum": float(finite.min()), "maximum": float(finite.max()), "mean": float(finite.mean())}
    return Encoded(json.dumps({"edges": edges.tolist(), "counts": counts.tolist()}).encode(), facts)


def _encode_text(text: str) -> Encoded:
    if not isinstance(text, str):
        raise WrongType(f"log_text takes a text; got {type(text).__name__}")
    return Encoded(text.encode("utf-8", "replace"), {"characters": len(text)})


def _encode_table(table: Any) -> Encoded:
    columns, rows = _read_table(table)
    content = json.dumps({"columns": columns, "rows": [[_cell(value) for value in row] for row in rows]})
    return Encoded(content.encode(), {"rows": len(rows), "columns": len(columns)})


def _read_table(table: Any) -> tuple[list[str], list[Sequence[Any]]]:
    """The names of the columns, and the rows."""
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):  # a DataFrame of pandas or polars
        table = {name: list(table[name]) for name in table.columns}
    if isinstance(table, Mapping):
        columns = {str(name): list(values) for name, values in table.items()}
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            sizes = ", ".join(f"{name!r}: {len(values)}" for name, values in columns.items())
            raise InvalidArgument(f"log_table: the columns have different lengths ({sizes})")
        return list(columns), list(zip(*columns.values(), strict=True))
    if isinstance(table, str | bytes) or not isinstance(table, Iterable):
        raise WrongType(f"log_table takes rows, a mapping of columns or a DataFrame; got {type(table).__name__}")
    rows = list(table)
    if all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(str(name) for row in rows for name in row))
        given = [{str(name): value for name, value in row.items()} for row in rows]
        return names, [[row.get(name) for name in names] for row in given]
    if any(isinstance(row, str | bytes | Mapping) or not isinstance(row, Iterable) for row in rows):
        raise WrongType("log_table takes rows that are all mappings, or all sequences of cells")
    cells = [list(row) for row in rows]
    width = max(map(len, cells), default=0)
    return [str(number) for number in range(width)], [row + [None] * (width - len(row)) for row in cells]


def _cell(value: Any) -> Any:
    if hasattr(value, "tolist"):  # a tensor, an array, or a number of numpy
        value = value.tolist()
    return to_json_value(value)


def _encode_audio(samples: Any, rate: int) -> Encoded:
    import wave

    array = _to_array(samples, "log_audio")
    if array.ndim not in (1, 2) or not array.size:
        raise InvalidArgument(f"log_audio: got the shape {list(array.shape)}; expected [T] or [C, T]")
    if isinstance(rate, bool) or not isinstance(rate, int) or not 1 <= rate <= 1_000_000:
        raise InvalidArgument(f"log_audio: rate={rate!r}; expected the number of samples per second")
    array = array[None] if array.ndim == 1 else array
    if array.shape[0] > array.shape[1]:  # [T, C]
        array = array.T
    if len(array) > 16:
        raise InvalidArgument(f"log_audio: got {len(array)} channels; expected at most 16, in the shape [C, T]")
    if array.dtype.kind == "f":
        array = np.rint(np.clip(np.nan_to_num(array.astype(np.float32)), -1, 1) * 32767)
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(len(array))
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(np.clip(array, -32768, 32767).T.astype("<i2").tobytes())
    facts = {"rate": rate, "seconds": array.shape[1] / rate, "channels": len(array)}
    return Encoded(file.getvalue(), facts)
