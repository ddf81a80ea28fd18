"""Transforms of whole batches, marked with `batchable`."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stoker.data import Loader, PaddingBatch, batchable, mapped
from stoker.errors import InvalidArgument, WrongType

X, Y = torch.arange(20.0).view(10, 2), torch.arange(10)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(x, y) for x, y in zip(X, Y, strict=True)])


def center(x, y):
    return x - x.mean(0), y  # the mean of the batch, which a transform of samples can't know


def negate(batch):
    return -batch


SOURCES = {
    "columns": (X, Y),
    "list": list(zip(X, Y, strict=True)),
    "stream": Stream(),
    "mapped": mapped((X, Y), lambda x, y: (x, y)),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_it_gets_whole_batches(source, workers):
    plain = Loader(source, batch_size=4)
    loader = Loader(source, batch_size=4, workers=workers, transform=batchable(center))
    for (x, y), (raw, targets) in zip(loader, plain, strict=True):
        assert torch.equal(x, raw - raw.mean(0))
        assert torch.equal(y, targets)


def test_it_runs_after_a_batcher_and_after_a_dataloader():
    def stack(samples):
        return torch.stack([x for x, _ in samples])

    assert torch.equal(next(iter(Loader((X, Y), batch_size=4, batcher=stack, transform=batchable(negate)))), -X[:4])
    theirs = DataLoader(TensorDataset(X), batch_size=4, collate_fn=lambda samples: samples[0][0])
    assert torch.equal(next(iter(Loader(theirs, transform=batchable(negate)))), -X[0])
    with pytest.raises(InvalidArgument, match="so transform can't be combined with it"):
        Loader(theirs, transform=negate)


def test_it_runs_on_the_device():
    seen = []
    look = batchable(lambda x, y: seen.append(x.device.type) or (x, y))
    list(Loader((X, Y), batch_size=5, transform=look, device="meta"))
    assert seen == ["meta", "meta"]


def test_raw_batches_are_neither_moved_nor_transformed():
    loader = Loader((X, Y), batch_size=4, shuffle=0, transform=batchable(center), device="meta")
    for raw, (x, _) in zip(loader.at(epoch=1).raw(), Loader((X, Y), batch_size=4, shuffle=0).at(epoch=1), strict=True):
        assert torch.equal(raw[0], x)
        assert torch.equal(loader.apply_batch_transform(raw)[0], x - x.mean(0))


def test_columns_stay_in_memory_and_need_no_workers():
    loader = Loader((X, Y), batch_size=4, workers=2, transform=batchable(center))
    assert loader.nbytes is not None
    assert loader.has_row_selections
    assert not loader.needs_main_thread


@pytest.mark.parametrize("source", ["columns", "list"])
def test_it_draws_from_the_random_state_of_training(source):
    noisy = batchable(lambda x, y: (x + torch.rand(len(x), 1), y))
    loader = Loader(SOURCES[source], batch_size=4, transform=noisy)
    torch.manual_seed(7)
    expected = [torch.rand(size, 1) for size in (4, 4, 2)]
    torch.manual_seed(7)
    drawn = [x - clean for (x, _), clean in zip(loader, X.split(4), strict=True)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(drawn, expected, strict=True))


def test_a_padding_batch_is_transformed_too():
    doubled = batchable(lambda x, y: (x * 2, y))
    loader = Loader((X, Y), batch_size=2, transform=doubled, device="cpu").shared(0, 3)
    for padding in (next(iter(loader)), loader.apply_batch_transform(next(loader.at(epoch=0).raw()))):
        assert isinstance(padding, PaddingBatch)
        assert [part.tolist() for part in padding.batch] == [[[0.0, 2.0]], [0]]


def test_it_is_still_a_function_and_can_be_a_decorator():
    @batchable
    def double(x):
        return 2 * x

    assert double(21) == 42
    assert batchable(double) is double
    assert next(iter(Loader(Y, batch_size=2, transform=double))).tolist() == [0, 2]
    with pytest.raises(WrongType, match="batchable marks a function of a batch; got str"):
        batchable("flip")
