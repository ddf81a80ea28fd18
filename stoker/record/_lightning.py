"""What Lightning's loggers leave in a folder: metrics.csv and hparams.yaml."""

import csv
from pathlib import Path
from typing import Any

from stoker.errors import BadFile, MissingExtra
from stoker.record._retell import Row

METRICS, HPARAMS = "metrics.csv", "hparams.yaml"
_LARGEST = 2**63 - 1  # of whole numbers, in most programs
_PYTHON = "tag:yaml.org,2002:python/"  # before the kind of a Python object, in YAML


def read_metrics(path: Path) -> list[Row]:
    """The rows of Lightning's CSVLogger; it keeps no times, so they are spread between its files' own.

    Its steps and epochs count from 0, ours say how many are done.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_row(line) for line in csv.DictReader(file)]
    except (KeyError, ValueError, TypeError, OverflowError, csv.Error) as error:
        raise BadFile(f"{path}: expected the metrics of Lightning's CSVLogger, but: {error!r}") from error
    begin, end = _span(path)
    last = max((row.update for row in rows), default=1)
    if last == 0:
        raise BadFile(f"{path}: expected steps from 0 up, got -1 alone")
    return [row._replace(time=begin + (end - begin) * row.update / last) for row in rows]


def _row(line: dict[str, str]) -> Row:
    values = {name: float(each) for name, each in line.items() if name not in ("epoch", "step") and each}
    epoch = line.get("epoch")
    return Row(_done(line["step"]), _done(epoch) if epoch else None, 0.0, values)


def _done(count: str) -> int:
    """How many are done; -1 is Lightning's for before the first."""
    done = int(count) + 1
    if not 0 <= done <= _LARGEST:
        raise ValueError(f"expected a count from 0 up to {_LARGEST - 1}, got {count[:20]!r}")
    return done


def read_hparams(folder: Path) -> tuple[Any, str]:
    """The hyperparameters, and what there is to say where they can't be taken; no code in the file is run."""
    path = folder / HPARAMS
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    except OSError as error:
        raise BadFile(f"{path} can't be read: {error.strerror}; move it away, to import without a config") from error
    if text.strip() in ("", "{}"):
        return None, ""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra(f"{path} needs PyYAML: pip install pyyaml (or move that file away)") from error
    try:
        # A few aliases make a file that fills the memory.
        if any(isinstance(each, yaml.AliasEvent) for each in yaml.parse(text, Loader=yaml.SafeLoader)):
            return None, f"{HPARAMS} is left out: it has aliases"
        return yaml.load(text, Loader=_plain_loader(yaml.SafeLoader)), ""
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, f"{HPARAMS} is left out: {str(error).splitlines()[0]}"


def _plain_loader(safe: Any) -> Any:
    """A safe loader that takes Python's tuples for lists, and says of other Python objects only what they were."""
    loader = type("PlainLoader", (safe,), {})
    loader.add_constructor(f"{_PYTHON}tuple", lambda loader, node: loader.construct_sequence(node, deep=True))
    loader.add_multi_constructor(_PYTHON, lambda loader, kind, node: kind)
    return loader


def _span(path: Path) -> tuple[float, float]:
    """When the log began and ended, as its files say."""
    end = path.stat().st_mtime
    beside = path.with_name(HPARAMS)
    return min(end, beside.stat().st_mtime if beside.exists() else end), end
