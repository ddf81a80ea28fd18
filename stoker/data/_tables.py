"""Tables as columns, by what they can do: pandas, polars, Arrow and Hugging Face, none of which is imported."""

from typing import Any


def table_columns(source: Any) -> dict[Any, Any] | None:
    """The columns of a table by name; `None` for what is no table, or one that is better read row by row.

    >>> import pandas
    >>> list(table_columns(pandas.DataFrame({"x": [1, 2], "y": [3.0, 4.0]})))
    ['x', 'y']
    """
    if hasattr(source, "column_names") and hasattr(source, "with_format"):
        return _hugging_face(source)
    if hasattr(source, "column_names") and hasattr(source, "schema") and hasattr(source, "column"):  # Arrow
        return {name: source.column(name) for name in source.column_names}
    if hasattr(source, "columns") and hasattr(source, "dtypes") and hasattr(source, "to_numpy"):  # pandas, polars
        return {name: source[name] for name in source.columns}
    return None


def _hugging_face(dataset: Any) -> dict[str, Any] | None:
    """Tensors, where every column is a plain number and no transform of the user's is set; else sample by sample.

    The dtypes are those that Hugging Face's own torch format gives (int64, float32), so they are the same both ways.
    """
    if not hasattr(dataset, "__len__"):  # its IterableDataset, which is a stream
        return None
    shown = dataset.format
    if shown["type"] not in (None, "torch", "numpy") or shown["format_kwargs"]:
        return None
    kinds = [getattr(dataset.features[name], "dtype", "") for name in shown["columns"]]
    if not kinds or not all(
        isinstance(kind, str) and kind.startswith(("int", "uint", "float", "bool")) for kind in kinds
    ):
        return None
    stored = dataset.with_format("arrow", columns=shown["columns"])[:]
    if len(dataset) == 0 or any(stored.column(name).null_count for name in shown["columns"]):
        return None  # sample by sample, a missing value is seen and named, where here it would turn into NaN
    return dataset.with_format("torch", columns=shown["columns"])[:]
