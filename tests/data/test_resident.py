import numpy as np
import pytest
import torch
from stoker.data._resident import resident, resident_bytes
from torch.utils.data import DataLoader

from stoker.data import Loader, batchable, concat, split, take, windows
from stoker.data import _resident as room
from stoker.data._columns import Columns, as_columns
from stoker.errors import InvalidArgument
from tests.data.test_pick import leaves, same

CPU, META = torch.device("cpu"), torch.device("meta")


def frozen(count=12):
    """Columns that are no tensors yet, and so are copied to wherever they shall stay, be it the CPU."""
    x, y = np.arange(count * 2.0).reshape(count, 2), np.arange(count)
    x.flags.writeable = y.flags.writeable = False
    return {"x": x, "y": y}


VIEWS = {
    "columns": (lambda: as_columns(frozen()), 12 * 24, "Columns"),
    "a narrowed one": (lambda: take(frozen(), slice(2, 7)), 5 * 24, "Columns"),
    "a selection": (lambda: take(frozen(), [7, 1, 3]), 3 * 24, "Columns"),
    "a selection with repeats": (lambda: take(frozen(), [7] * 100), 12 * 24, "Selected"),
    "two sources": (lambda: concat(frozen(), frozen(3)), 15 * 24, "Columns"),
    "a selection of two": (lambda: take(concat(frozen(), frozen(3)), [13, 1]), 2 * 24, "Columns"),
    "windows": (lambda: windows(frozen(), 5), 12 * 24, "Windows"),
    "windows that don't overlap": (lambda: windows(frozen(), 5, stride=5), 10 * 24, "Columns"),
    "windows of a selection": (lambda: windows(take(frozen(), [7, 1, 3]), 2), 3 * 24, "Windows"),
    "a selection of windows": (lambda: take(windows(frozen(), 5), [7, 1, 2, 3]), 12 * 24, "Selected"),
    "two sources of windows": (lambda: concat(windows(frozen(), 5), windows(frozen(), 5)), 24 * 24, "Joined"),
}


@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize(("make", "size", "kind"), VIEWS.values(), ids=VIEWS)
def test_columns_stay_in_the_shape_that_takes_the_fewest_bytes(make, size, kind, shuffle, monkeypatch):
    monkeypatch.setattr(room, "_AT_ONCE", 50)  # bytes: two rows at a time
    source = make()
    assert resident_bytes(source) == size
    there = resident(source, CPU)
    assert type(there).__name__ == kind
    loader = Loader(source, batch_size=2, shuffle=shuffle)
    twin = loader.resident("cpu")
    assert loader.nbytes == twin.nbytes == size
    assert all(same(a, b) for a, b in zip(loader.at(epoch=1), twin.at(epoch=1), strict=True))


@pytest.mark.parametrize("name", [name for name, (*_, kind) in VIEWS.items() if kind != "Joined"])  # which asks meta
def test_batches_are_made_there(name):
    for batch in Loader(VIEWS[name][0](), batch_size=2, shuffle=0).resident("meta"):
        assert all(leaf.device == META for leaf in leaves(batch))


def test_what_is_there_is_not_copied():
    x = torch.arange(6)
    for view in (Columns(x), take(x, [3, 1]), concat(x, x), windows(x, 2)):
        assert resident(view, CPU) is view
        assert resident(resident(view, META), META).device == META


def test_a_column_that_is_elsewhere_is_copied_whole_and_in_order():
    x = torch.arange(6)[::2]
    there = resident(Columns((x, {"y": x})), META)
    assert there.tree[0].shape == there.tree[1]["y"].shape == (3,)
    assert there.tree[0].is_contiguous()


def test_the_loader_is_the_same_but_for_where_its_columns_are():
    source, flip = frozen(), batchable(dict)
    loader = Loader(source, batch_size=4, shuffle=3, drop_last=True, transform=flip)
    next(iter(loader))
    twin = loader.resident("cpu")
    assert twin.source is source
    assert repr(twin) == repr(loader) == "Loader(dict, batch_size=4, shuffle=3)"
    assert (twin.samples, len(twin), twin.after) == (12, 3, loader.batch_transform)
    assert twin.picks and not loader.picks
    assert same(next(iter(twin)), next(iter(loader.at(epoch=1))))  # epochs are counted on from where it stood
    assert same(next(iter(loader)), next(iter(loader.at(epoch=1))))


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ([1, 2], {"batch_size": 2}),
        (torch.arange(3), {"batch_size": 2, "transform": abs}),
        (torch.arange(3), {"batch_size": 2, "batcher": list}),
        (DataLoader([1, 2]), {}),
    ],
)
def test_what_has_no_columns_cannot_stay(source, options):
    loader = Loader(source, **options)
    assert loader.nbytes is None
    name = type(source).__name__
    with pytest.raises(InvalidArgument, match=f"a {name} can't stay on cuda: only columns in memory can, .*batchable"):
        loader.resident("cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_on_a_gpu_the_batches_are_the_same(name, shuffle, pinned, monkeypatch):
    monkeypatch.setattr(room, "_AT_ONCE", 50)
    loader = Loader(VIEWS[name][0](), batch_size=2, shuffle=shuffle)
    if pinned:
        columns = {key: torch.from_numpy(value.copy()).pin_memory() for key, value in frozen().items()}
        loader = Loader(columns, batch_size=2, shuffle=shuffle)
    twin = loader.resident("cuda")
    assert all(leaf.device.type == "cuda" for batch in twin.at(epoch=1) for leaf in leaves(batch))
    there = [{key: value.cpu() for key, value in batch.items()} for batch in twin.at(epoch=1)]
    assert all(same(a, b) for a, b in zip(loader.at(epoch=1), there, strict=True))
    if twin.picks:
        picked = [{key: value.cpu() for key, value in pick.batch().items()} for pick in twin.at(epoch=1).picks()]
        assert all(same(a, b) for a, b in zip(there, picked, strict=True))
    assert twin.resident("cuda")._feed.view is twin._feed.view


@pytest.mark.cuda
def test_a_batch_of_resident_columns_waits_for_nothing():
    x, y = torch.arange(40.0).view(20, 2), torch.arange(20)
    for source in ((x, y), split((x, y), [0.5, 0.5])[0], windows((x, y), 3)):
        loader = Loader(source, batch_size=4, shuffle=0).resident("cuda")
        for make in (iter, lambda walk: (pick.batch() for pick in walk.picks())):
            batches = make(loader.at(epoch=0))
            next(batches)  # the order of an epoch is copied with the first
            torch.cuda.set_sync_debug_mode("error")
            try:
                list(batches)
            finally:
                torch.cuda.set_sync_debug_mode("default")
