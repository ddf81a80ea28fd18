"""What is in a weights file, without loading it."""

import os
from dataclasses import dataclass
from pathlib import Path

from stoker.weights._file import open_weights
from stoker.weights._head import Entry

_MOST_SHOWN = 40  # lines of a repr


@dataclass(frozen=True, repr=False)
class Listing:
    """The names, dtypes and shapes in a weights file, and its metadata; its `repr` is a table."""

    path: Path
    format: str
    compressed: bool
    precision: str | None  # None where another program made the file
    tensors: dict[str, Entry]
    aliases: dict[str, str]  # the other names of tied tensors -> the name in `tensors`
    metadata: dict[str, str]

    def __repr__(self) -> str:
        """A line about the file, then one for each tensor."""
        size = sum(entry.size for entry in self.tensors.values())
        kind = f"{self.format}{', gzipped' if self.compressed else ''}"
        kind += f", {self.precision} precision" if self.precision else ""
        lines = [f"{self.path.name}: {kind}, {len(self.tensors)} tensors, {size:,} numbers"]
        rows = [(name, repr(entry)) for name, entry in self.tensors.items()]
        rows += [(name, f"is {owner}") for name, owner in self.aliases.items()]
        width = max((len(name) for name, _ in rows[:_MOST_SHOWN]), default=0)
        lines += [f"  {name:<{width}}  {said}" for name, said in rows[:_MOST_SHOWN]]
        if len(rows) > _MOST_SHOWN:
            lines.append(f"  and {len(rows) - _MOST_SHOWN} more")
        lines += [f"  {key}: {value}" for key, value in self.metadata.items()]
        return "\n".join(lines)


def inspect(path: str | os.PathLike[str], *, limit: int = 1 << 26) -> Listing:
    """Reads the names, dtypes, shapes and metadata of a weights file, and none of its numbers.

    >>> import tempfile
    >>> from torch import nn
    >>> from stoker.weights import inspect, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     inspect(save(nn.Linear(3, 2), f"{folder}/model", metadata={"trained on": "digits"}))
    model.safetensors: safetensors, full precision, 2 tensors, 8 numbers
      weight  float32 [2, 3]
      bias    float32 [2]
      trained on: digits

    So damage among the numbers is noticed only by `load`. A JSON file has to be read whole all the same. `limit` is the
    most bytes that are unpacked of a gzipped file (64 MiB).
    """
    with open_weights(Path(path), limit) as (source, format, contents):
        head = contents.head
        return Listing(
            Path(path),
            format,
            source.compressed,
            head.seal.precision if head.seal else None,
            head.tensors,
            head.seal.aliases if head.seal else {},
            head.metadata,
        )
