import pickle

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stoker.data import Loader, batchable, mapped
from stoker.data._columns import Columns
from stoker.errors import InvalidArgument, WrongType

X, Y = torch.arange(20.0).view(10, 2), torch.arange(10)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(x, y) for x, y in zip(X, Y, strict=True)])


def centred(x, y):
    return x - x.mean(0), y  # of the whole batch, which no sample knows


def whole(batch):
    return -batch


SOURCES = {
    "columns": (X, Y),
    "samples": list(zip(X, Y, strict=True)),
    "a stream": Stream(),
    "mapped": mapped((X, Y), lambda x, y: (x, y)),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_it_is_given_whole_batches(source, workers):
    plain = Loader(source, batch_size=4)
    loader = Loader(source, batch_size=4, workers=workers, transform=batchable(centred))
    for (x, y), (raw, targets) in zip(loader, plain, strict=True):
        assert torch.equal(x, raw - raw.mean(0))
        assert torch.equal(y, targets)


def test_it_comes_after_a_batcher_and_after_a_dataloader():
    def joined(samples):
        return torch.stack([x for x, _ in samples])

    assert torch.equal(next(iter(Loader((X, Y), batch_size=4, batcher=joined, transform=batchable(whole)))), -X[:4])
    theirs = DataLoader(TensorDataset(X), batch_size=4, collate_fn=lambda samples: samples[0][0])
    assert torch.equal(next(iter(Loader(theirs, transform=batchable(whole)))), -X[0])
    with pytest.raises(InvalidArgument, match="so transform can't be given with it"):
        Loader(theirs, transform=whole)


def test_it_comes_after_the_move_to_the_device():
    seen = []
    look = batchable(lambda x, y: seen.append(x.device.type) or (x, y))
    list(Loader((X, Y), batch_size=5, transform=look, device="meta"))
    assert seen == ["meta", "meta"]


def test_raw_batches_are_before_the_move_and_the_transform():
    loader = Loader((X, Y), batch_size=4, shuffle=0, transform=batchable(centred), device="meta")
    for raw, (x, _) in zip(loader.at(epoch=1).raw(), Loader((X, Y), batch_size=4, shuffle=0).at(epoch=1), strict=True):
        assert torch.equal(raw[0], x)
        assert torch.equal(loader.apply_batch_transform(raw)[0], x - x.mean(0))


def test_without_one_a_batch_is_finished_as_it_is():
    batch = (X, Y)
    loader = Loader((X, Y), batch_size=4)
    assert loader.batch_transform is None
    assert loader.apply_batch_transform(batch) is batch
    assert Loader((X, Y), batch_size=4, transform=centred).after is None


def test_columns_keep_their_way_without_single_samples(monkeypatch):
    monkeypatch.setattr(Columns, "sample", lambda *_: pytest.fail("a sample was fetched by itself"))
    loader = Loader((X, Y), batch_size=4, workers=2, transform=batchable(centred))
    assert len(list(loader)) == 3
    assert loader.picks
    assert not loader.needs_main_thread


@pytest.mark.parametrize("source", ["columns", "samples"])
def test_what_it_draws_is_trainings(source):
    noisy = batchable(lambda x, y: (x + torch.rand(len(x), 1), y))
    loader = Loader(SOURCES[source], batch_size=4, transform=noisy)
    torch.manual_seed(7)
    expected = [torch.rand(size, 1) for size in (4, 4, 2)]
    torch.manual_seed(7)
    drawn = [x - clean for (x, _), clean in zip(loader, X.split(4), strict=True)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(drawn, expected, strict=True))


def test_it_is_a_function_still_and_a_decorator():
    @batchable
    def double(x):
        return 2 * x

    assert double(21) == 42
    assert batchable(double) is double
    assert next(iter(Loader(Y, batch_size=2, transform=double))).tolist() == [0, 2]


def test_a_loader_with_one_can_be_copied():
    loader = pickle.loads(pickle.dumps(Loader((X, Y), batch_size=4, transform=batchable(centred))))
    assert loader.batch_transform is centred


def test_only_functions_can_be_marked():
    with pytest.raises(WrongType, match="batchable marks a function of a batch; got str"):
        batchable("flip")
