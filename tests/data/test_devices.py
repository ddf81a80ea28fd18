"""Batches on devices: moving, columns that stay there, and rows that the training step gathers."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, TensorDataset

from stoker.data import Loader, RowSelection, batchable, concat, move_batch, split, take, windows
from stoker.errors import InvalidArgument
from tests.data.batches import same, tensors

META = torch.device("meta")  # a device that every machine has
X, Y = torch.arange(46.0).view(23, 2), torch.arange(23)
Pair = namedtuple("Pair", ["a", "b"])


@dataclass(frozen=True)
class Batch:
    images: torch.Tensor
    names: list


class Packed(dict):
    """A container that moves itself, as the batches of a tokenizer do."""

    device = torch.device("cpu")

    def to(self, device):
        packed = Packed(self)
        packed.device = device
        return packed


# --- moving


def test_tensors_move_wherever_they_are():
    x = torch.zeros(2)
    batch = move_batch((x, [x, {"x": x}], Pair(x, "a"), Batch(x, ["b"]), Packed(x=x), None, "word", 3), META)
    found = [batch[0], batch[1][0], batch[1][1]["x"], batch[2].a, batch[3].images, batch[4]]
    assert [each.device for each in found] == [META] * 6
    assert (type(batch[4]), batch[2].b, batch[3].names, batch[5:]) == (Packed, "a", ["b"], (None, "word", 3))


@pytest.mark.parametrize("source", [(X, Y), list(zip(X, Y, strict=True)), DataLoader(TensorDataset(X, Y))])
def test_a_loader_moves_its_batches(source):
    size = {} if isinstance(source, DataLoader) else {"batch_size": 6}
    for x, y in Loader(source, **size, device="meta"):
        assert x.device == y.device == META
    assert next(iter(Loader(source, **size, device=torch.device("cpu"))))[0].device.type == "cpu"


# --- row selections

SOURCES = {
    "tensor": X,
    "tuple": (X, Y),
    "mapping": {"x": X, "more": (Y, X)},
    "selection": split((X, Y), [0.7, 0.3], seed=4)[0],
    "slice": take((X, Y), slice(3, 20)),
    "windows": windows((X, Y), 3, stride=2),
    "selection of windows": split(windows((X, Y), 3), [0.5, 0.5])[1],
    "other strides": (X.T.contiguous().T, Y[::1]),
}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


def first_selection(source, **options):
    return next(Loader(source, batch_size=4, **options).at(epoch=0).row_selections())


@pytest.mark.parametrize("shuffle", [None, 3])
@each_source
def test_a_row_selection_gathers_the_batch_that_the_loader_gives(source, shuffle):
    loader = Loader(source, batch_size=4, shuffle=shuffle)
    assert loader.has_row_selections
    for batch in (0, 2, len(loader)):
        batches = loader.at(epoch=2, batch=batch)
        pairs = list(zip(batches.row_selections(), batches, strict=True))
        assert len(pairs) == len(batches)
        for selection, expected in pairs:
            assert isinstance(selection, RowSelection)
            assert same(selection.gather(), expected)
            assert len(selection) == len(tensors(expected)[0]) == len(selection.rows)
            assert selection.rows.dtype == torch.int64
        assert len({id(selection.source) for selection, _ in pairs}) <= 1


def test_the_rows_of_an_epoch_are_slices_of_one_tensor():
    for shuffle in (None, 0):
        first, second, *_ = Loader(X, batch_size=4, shuffle=shuffle).at(epoch=0).row_selections()
        assert first.rows.untyped_storage().data_ptr() == second.rows.untyped_storage().data_ptr()


@each_source
def test_the_same_rows_of_other_columns(source):
    selection = first_selection(source, shuffle=1)
    columns = selection.columns()
    doubled = selection.with_columns([2 * column for column in columns])
    for once, twice in zip(tensors(selection.gather()), tensors(doubled.gather()), strict=True):
        assert torch.equal(2 * once, twice)
    assert all(a is b for a, b in zip(columns, selection.columns(), strict=True))


def test_a_gather_can_be_traced_with_fake_columns():
    selection = first_selection(SOURCES["windows"], shuffle=0)
    with FakeTensorMode() as mode:
        fake = selection.with_columns([mode.from_tensor(each) for each in selection.columns()])
        x, _ = fake.with_rows(mode.from_tensor(selection.rows)).gather()
    assert x.shape == (4, 3, 2)


def test_a_gather_includes_the_batchable_transform():
    noisy = batchable(lambda x, y: (x + torch.rand(len(x), 1), y))
    batches = Loader((X, Y), batch_size=4, shuffle=0, transform=noisy).at(epoch=0)
    torch.manual_seed(0)
    expected = list(batches)
    torch.manual_seed(0)
    assert all(same(each.gather(), batch) for each, batch in zip(batches.row_selections(), expected, strict=True))


def test_other_sources_have_no_row_selections():
    frozen = np.arange(8)
    frozen.flags.writeable = False
    for source, options in (
        (frozen, {}),  # not a tensor
        (concat(X, X), {}),  # its gather waits for the device
        (X, {"transform": abs}),
        (X, {"batcher": torch.stack}),
        ([1, 2, 3], {}),
    ):
        loader = Loader(source, batch_size=2, **options)
        assert not loader.has_row_selections
        with pytest.raises(InvalidArgument, match="row selections need columns in memory, without a transform or ba"):
            loader.at(epoch=0).row_selections()


# --- columns that stay on a device


def frozen(count=12):
    """Arrays of 24 bytes per row that are copied to any device, because they are read-only."""
    x, y = np.arange(count * 2.0).reshape(count, 2), np.arange(count)
    x.flags.writeable = y.flags.writeable = False
    return {"x": x, "y": y}


# name: (source, rows of 24 bytes that are copied)
VIEWS = {
    "columns": (frozen, 12),
    "slice": (lambda: take(frozen(), slice(2, 7)), 5),
    "selection": (lambda: take(frozen(), [7, 1, 3]), 3),
    "selection with repeats": (lambda: take(frozen(), [7] * 100), 12),
    "two sources": (lambda: concat(frozen(), frozen(3)), 15),
    "selection of two": (lambda: take(concat(frozen(), frozen(3)), [13, 1]), 2),
    "windows": (lambda: windows(frozen(), 5), 12),
    "windows that do not overlap": (lambda: windows(frozen(), 5, stride=5), 10),
    "windows of a selection": (lambda: windows(take(frozen(), [7, 1, 3]), 2), 4),
    "selection of windows": (lambda: take(windows(frozen(), 5), [7, 1, 2, 3]), 12),
    "two sources of windows": (lambda: concat(windows(frozen(), 5), windows(frozen(), 5)), 24),
}


@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize(("make", "rows"), VIEWS.values(), ids=VIEWS)
def test_resident_columns_give_the_same_batches_and_take_the_fewest_bytes(make, rows, shuffle):
    loader = Loader(make(), batch_size=2, shuffle=shuffle)
    twin = loader.resident("cpu")
    assert loader.nbytes == twin.nbytes == rows * 24
    assert all(same(a, b) for a, b in zip(loader.at(epoch=1), twin.at(epoch=1), strict=True))


def test_more_columns_than_are_copied_at_a_time():
    x = np.broadcast_to(np.arange(20.0)[:, None], (20, 1_000_000))  # 160 MB, of which 64 MB are copied at a time
    twin = Loader((x[:, :1], x), batch_size=7).resident("cpu")
    assert [batch[1][:, -1].tolist() for batch in twin] == [list(range(7)), list(range(7, 14)), list(range(14, 20))]


@pytest.mark.parametrize(
    "name", [name for name in VIEWS if name != "two sources of windows"]
)  # its gather synchronises
def test_batches_of_resident_columns_are_on_the_device(name):
    for batch in Loader(VIEWS[name][0](), batch_size=2, shuffle=0).resident("meta"):
        assert all(tensor.device == META for tensor in tensors(batch))


def test_columns_that_are_on_the_device_are_not_copied():
    x = torch.arange(6)
    for source in (x, take(x, [3, 1]), windows(x, 2)):
        loader = Loader(source, batch_size=2).resident("cpu")
        assert next(loader.at(epoch=0).row_selections()).columns()[0].data_ptr() == x.data_ptr()


def test_a_resident_loader_is_otherwise_the_same():
    source = frozen()
    loader = Loader(source, batch_size=4, shuffle=3, drop_last=True, transform=batchable(dict))
    list(loader)
    twin = loader.resident("cpu")
    assert twin.source is source
    assert repr(twin) == repr(loader) == "Loader(dict, batch_size=4, shuffle=3)"
    assert (twin.samples, len(twin), twin.batch_transform) == (12, 3, loader.batch_transform)
    assert twin.has_row_selections and not loader.has_row_selections
    assert same(next(iter(twin)), next(iter(loader.at(epoch=1))))  # the count of epochs continues
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
def test_other_sources_cannot_stay_on_a_device(source, options):
    loader = Loader(source, **options)
    assert loader.nbytes is None
    name = type(source).__name__
    with pytest.raises(InvalidArgument, match=f"a {name} can't stay on cuda: only columns in memory can, .*batchable"):
        loader.resident("cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_batches_on_a_gpu_are_the_same(name, shuffle, pinned):
    loader = Loader(VIEWS[name][0](), batch_size=2, shuffle=shuffle)
    if pinned:
        columns = {key: torch.from_numpy(value.copy()).pin_memory() for key, value in frozen().items()}
        loader = Loader(columns, batch_size=2, shuffle=shuffle)
    twin = loader.resident("cuda")
    assert all(tensor.device.type == "cuda" for batch in twin.at(epoch=1) for tensor in tensors(batch))
    found = [{key: value.cpu() for key, value in batch.items()} for batch in twin.at(epoch=1)]
    assert all(same(a, b) for a, b in zip(loader.at(epoch=1), found, strict=True))
    if twin.has_row_selections:
        gathered = [move_batch(each.gather(), torch.device("cpu")) for each in twin.at(epoch=1).row_selections()]
        assert all(same(a, b) for a, b in zip(found, gathered, strict=True))
        columns = next(twin.at(epoch=1).row_selections()).columns()
        again = next(twin.resident("cuda").at(epoch=1).row_selections()).columns()
        assert all(a is b for a, b in zip(columns, again, strict=True))


@pytest.mark.cuda
def test_a_batch_of_resident_columns_does_not_synchronise():
    x, y = torch.arange(40.0).view(20, 2), torch.arange(20)
    for source in ((x, y), split((x, y), [0.5, 0.5])[0], windows((x, y), 3)):
        loader = Loader(source, batch_size=4, shuffle=0).resident("cuda")
        for iterate in (iter, lambda batches: (each.gather() for each in batches.row_selections())):
            batches = iterate(loader.at(epoch=0))
            next(batches)  # the order of the epoch is copied with the first batch
            torch.cuda.set_sync_debug_mode("error")
            try:
                list(batches)
            finally:
                torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_workers_refuse_a_source_on_a_gpu():
    with pytest.raises(InvalidArgument, match="the source is on cuda:0, which worker processes can't use"):
        Loader(split((X.cuda(), Y.cuda()), [0.5, 0.5])[0], batch_size=4, workers=1, transform=lambda row: row)


@pytest.mark.cuda
def test_samples_of_a_gpu_are_collated_there():
    batch = next(iter(Loader([(row.cuda(), 1) for row in X], batch_size=4)))
    assert batch[0].device.type == "cuda" and torch.equal(batch[0].cpu(), X[:4])
