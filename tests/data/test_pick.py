import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stoker.data import Loader, batchable, concat, split, take, windows

X, Y = torch.arange(46.0).view(23, 2), torch.arange(23)
SOURCES = {
    "a tensor": X,
    "a tuple": (X, Y),
    "a mapping": {"x": X, "more": (Y, X)},
    "a selection": split((X, Y), [0.7, 0.3], seed=4)[0],
    "a narrowed one": take((X, Y), slice(3, 20)),
    "windows": windows((X, Y), 3, stride=2),
    "a selection of windows": split(windows((X, Y), 3), [0.5, 0.5])[1],
    "other strides": (X.T.contiguous().T, Y[::1]),
}


def leaves(batch):
    """The tensors of a batch, in order."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [leaf for part in (batch.values() if isinstance(batch, dict) else batch) for leaf in leaves(part)]


def same(first, second):
    assert type(first) is type(second)
    pairs = list(zip(leaves(first), leaves(second), strict=True))
    return all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs)


@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_pick_makes_the_batch_that_the_loader_gives(source, shuffle):
    loader = Loader(source, batch_size=4, shuffle=shuffle)
    assert loader.picks
    for batch in (0, 2, len(loader)):
        walk = loader.at(epoch=2, batch=batch)
        pairs = list(zip(walk.picks(), walk, strict=True))
        assert len(pairs) == len(walk)
        for pick, expected in pairs:
            assert same(pick.batch(), expected)
            assert len(pick) == len(leaves(expected)[0]) == len(pick.numbers)
            assert pick.numbers.dtype == torch.int64


def test_numbers_are_slices_of_one_tensor():
    for shuffle in (None, 0):
        first, second, *_ = Loader(X, batch_size=4, shuffle=shuffle).at(epoch=0).picks()
        assert first.numbers.untyped_storage().data_ptr() == second.numbers.untyped_storage().data_ptr()


def test_the_same_columns_with_other_numbers():
    pick = next(Loader((X, Y), batch_size=4, shuffle=0).at(epoch=0).picks())
    before = pick.numbers.tolist()
    other = pick.of(torch.tensor([5, 5, 1]))
    assert other.batch()[1].tolist() == [5, 5, 1]
    assert len(other) == 3
    assert pick.numbers.tolist() == before
    static = torch.zeros(4, dtype=torch.int64)
    graph = pick.of(static)
    static.copy_(torch.arange(4))  # as a CUDA graph is fed
    assert graph.batch()[1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_same_numbers_of_other_columns(source):
    pick = next(Loader(source, batch_size=4, shuffle=1).at(epoch=0).picks())
    columns = pick.columns()
    doubled = pick.with_columns([2 * column for column in columns])
    for once, twice in zip(leaves(pick.batch()), leaves(doubled.batch()), strict=True):
        assert torch.equal(2 * once, twice)
    assert all(a is b for a, b in zip(columns, pick.columns(), strict=True))


def test_columns_are_not_copies():
    (x, y) = next(Loader((X, Y), batch_size=4).at(epoch=0).picks()).columns()
    assert x is X
    assert y is Y


def test_a_gather_can_be_traced_with_fake_columns():
    pick = next(Loader(SOURCES["windows"], batch_size=4, shuffle=0).at(epoch=0).picks())
    with FakeTensorMode() as mode:
        fake = pick.with_columns([mode.from_tensor(each) for each in pick.columns()])
        x, _ = fake.of(mode.from_tensor(pick.numbers)).batch()
    assert x.shape == (4, 3, 2)


def test_a_batchable_transform_is_a_part_of_it():
    noisy = batchable(lambda x, y: (x + torch.rand(len(x), 1), y))
    walk = Loader((X, Y), batch_size=4, shuffle=0, transform=noisy).at(epoch=0)
    torch.manual_seed(0)
    expected = list(walk)
    torch.manual_seed(0)
    assert all(same(pick.batch(), batch) for pick, batch in zip(walk.picks(), expected, strict=True))


def test_what_cannot_be_picked():
    frozen = np.arange(8)
    frozen.flags.writeable = False
    for source, options in (
        (frozen, {}),  # no tensor
        (concat(X, X), {}),  # whose gather waits for the device
        (X, {"transform": abs}),
        (X, {"batcher": torch.stack}),
        ([1, 2, 3], {}),
    ):
        assert not Loader(source, batch_size=2, **options).picks
