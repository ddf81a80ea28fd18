"""The options of a `Loader` that say how batches are made, and which sources can use them."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stoker.data._loader import Loader


class Option(NamedTuple):
    """An option, and what it needs of a source; a source of ready batches takes none of them."""

    name: str
    is_for_samples: bool = False  # of one source: several sources have it each
    why_not_for_streams: str = ""  # if it needs samples that have numbers; `{source}` is the type of the stream


OPTIONS = (
    Option("batch_size"),
    Option(
        "shuffle",
        why_not_for_streams="a {source} gives its samples in its own order, which shuffle= can't change; "
        "shuffle inside it, or pass a source that has len() and indexing",
    ),
    Option("workers"),
    Option("batcher", is_for_samples=True),
    Option("transform", is_for_samples=True),
    Option("drop_last"),
    Option(
        "sampling_weights",
        is_for_samples=True,
        why_not_for_streams="sampling_weights need numbered samples, which a stream does not have",
    ),
    Option(
        "bucket_by",
        is_for_samples=True,
        why_not_for_streams="bucket_by needs numbered samples, which a stream does not have; pad_to= works for it",
    ),
    Option("pad_to", is_for_samples=True),
)


def find_given(loader: "Loader") -> list[Option]:
    """The options that a loader was given. A batchable transform is not one: it is for the batches of any source."""
    defaults = {"workers": 0, "drop_last": False}
    values = {option: getattr(loader, option.name) for option in OPTIONS}
    return [
        option
        for option, value in values.items()
        if value is not None
        and not (option.name in defaults and value == defaults[option.name])
        and not (option.name == "transform" and loader.batch_transform is not None)
    ]
