"""Nested tuples, namedtuples and mappings of things: the structure that a source has, and so its batches."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_namedtuple(value: object) -> bool:
    """Whether a tuple names its parts, and so is made from them one by one."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The same structure, with `function(leaf)` for every leaf; `others` have the same structure, and lend theirs.

    >>> map_leaves(lambda a, b: a + b, (1, {"x": 2}), (10, {"x": 20}))
    (11, {'x': 22})
    """
    if isinstance(tree, tuple):
        parts = [map_leaves(function, *together) for together in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if is_namedtuple(tree) else tuple(parts)
    if isinstance(tree, Mapping):
        return {name: map_leaves(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    return function(tree, *others)


def named_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with the way to it, as one would index the tree.

    >>> list(named_leaves((1, {"x": 2})))
    [('[0]', 1), ("[1]['x']", 2)]
    """
    if isinstance(tree, tuple):
        for place, part in enumerate(tree):
            yield from named_leaves(part, f"{path}[{place}]")
    elif isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from named_leaves(part, f"{path}[{name!r}]")
    else:
        yield path, tree
