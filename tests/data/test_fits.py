"""What a fit sees of its data: changed data sets, streams with a length, numbers that change their type."""

import shutil

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import stoker
from stoker import BadData, callbacks, data

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def fit_linear(source, accumulate=1, **options):
    torch.manual_seed(0)
    learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), lr=0.1, seed=0, accumulate=accumulate)
    return learner.fit(source, **{"epochs": 3, "show": False, **options})


class Curriculum(Dataset):
    level = 1.0

    def __len__(self):
        return 12

    def __getitem__(self, number):
        return X[number] * self.level, Y[number]


@pytest.mark.parametrize("hook", ["epoch_end", "epoch_begin", "train_end", "validation"])
def test_workers_see_a_data_set_that_a_callback_changes(hook):
    def weights(workers):
        source = Curriculum()

        def harder(ctx):
            source.level += 1

        loader = data.Loader(source, batch_size=4, shuffle=1, workers=workers)
        valid = data.Loader(source, batch_size=6, workers=workers)
        return fit_linear(loader, valid=valid, callbacks=[callbacks.on(**{hook: harder})]).model.weight

    assert torch.equal(weights(1), weights(0))


@pytest.mark.parametrize("workers", [0, 1])
def test_another_choice_of_samples_is_seen_or_an_error(workers):
    chosen = Subset(Curriculum(), [0, 1, 2, 3])
    loader = data.Loader(chosen, batch_size=4, workers=workers)
    for numbers in ([0, 1, 2, 3], [8, 6, 4, 2]):
        chosen.indices = numbers
        assert torch.equal(next(iter(loader))[0], X[numbers])
    chosen.indices = [1, 2]
    with pytest.raises(BadData, match="the Subset has 2 samples now, and was loaded with 4 samples when the"):
        next(iter(loader))


def test_columns_that_are_replaced_are_an_error():
    dataset, growing = TensorDataset(X, Y), [1, 2, 3]
    for source, change in (
        (dataset, lambda: setattr(dataset, "tensors", (2 * X, Y))),
        (Subset(dataset, [1, 2]), lambda: None),
        (growing, lambda: growing.append(4)),
    ):
        loader = data.Loader(source, batch_size=2)
        assert len(list(loader)) == len(loader)
        change()
        if isinstance(source, Subset):
            source.indices = [3, 4]
        text = "has 4 samples now" if source is growing else "has other tensors or indices now, and was loaded with"
        with pytest.raises(BadData, match=f"the {type(source).__name__} {text}"):
            list(loader)
    x = X.clone()
    loader = data.Loader(TensorDataset(x, Y), batch_size=12)
    x.mul_(2)  # in place: the memory is shared
    assert torch.equal(next(iter(loader))[0], 2 * X)


# --- streams


class Sized(IterableDataset):
    """A stream of 12 samples, whose length may be wrong."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_with_a_length_can_be_fitted(workers):
    reference = fit_linear(data.Loader((X, Y), batch_size=5))
    assert torch.equal(fit_linear(Sized(12), batch_size=5).model.weight, reference.model.weight)

    class Plain:
        __len__, __iter__ = (lambda self: 12), (lambda self: iter(zip(X, Y, strict=True)))

    found = fit_linear(data.Loader(Plain(), batch_size=5, workers=workers), valid=Plain(), batch_size=5)
    assert torch.equal(found.model.weight, reference.model.weight)
    assert torch.equal(fit_linear(Plain(), batch_size=5).model.weight, reference.model.weight)


def test_a_length_that_is_too_small_is_an_error():
    with pytest.raises(
        BadData, match=r"the Sized gives more samples than its __len__ says \(5\); let it return the numb"
    ):
        fit_linear(Sized(5), batch_size=4, accumulate=2)
    with pytest.raises(
        BadData, match=r"the DataLoader gives more batches than len\(\) of it says \(2\); correct the __len__"
    ):
        fit_linear(DataLoader(Sized(5), batch_size=4), accumulate=2)

    class Few(BatchSampler):
        def __len__(self):
            return 1

    with pytest.raises(BadData, match=r"more batches than len\(\) of it says \(1\)"):
        fit_linear(DataLoader(Curriculum(), batch_sampler=Few(range(12), 4, False)))
    assert fit_linear(Sized(100), batch_size=4, accumulate=2).updates == 6  # the epoch ends with the stream


# --- resuming


class Mixed(IterableDataset):
    """A stream over two loaders, of which the smaller one starts again within an epoch."""

    def __init__(self, *loaders):
        self.loaders = loaders

    def __iter__(self):
        return joined(*self.loaders)


def joined(first, second):
    def endless():
        while True:
            yield from second

    for (x, y), (other, _) in zip(first, endless(), strict=False):
        yield from zip(x + 0.1 * other[: len(x)], y, strict=True)


def hidden_loaders():
    first = data.Loader((X, Y), batch_size=4, shuffle=1)
    second = data.Loader((X[:8], Y[:8]), batch_size=4, shuffle=2)

    class Hidden(IterableDataset):
        def __iter__(self):
            return joined(first, second)

    return Hidden()


STREAMS = {
    "attributes": lambda: Mixed(
        data.Loader((X, Y), batch_size=4, shuffle=1), data.Loader((X[:8], Y[:8]), batch_size=4, shuffle=2)
    ),
    "closure": hidden_loaders,
    "torch": lambda: DataLoader(hidden_loaders(), batch_size=3),
    "torch, worker": lambda: DataLoader(hidden_loaders(), batch_size=3, num_workers=1),
}


@pytest.mark.parametrize("stop", [5, 8, 10])  # updates; an epoch has 4
@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_a_stream_over_loaders_resumes_to_the_same_bits(tmp_path, make, stop):
    def run(path, updates):
        source = make()
        size = {} if isinstance(source, DataLoader) else {"batch_size": 3}
        learner = stoker.Learner(lambda: nn.Linear(3, 1), loss=nn.MSELoss(), lr=0.1, seed=0)
        return learner.fit(source, epochs=4, updates=updates, run=path, resume=True, show=False, **size)

    whole = run(tmp_path / "whole", None)
    run(tmp_path / "part", stop)
    shutil.copytree(tmp_path / "part", tmp_path / "copy")
    assert torch.equal(run(tmp_path / "copy", None).model.weight, whole.model.weight)


def test_a_generator_inside_a_stream_of_dataloaders_warns():
    class Over(IterableDataset):
        def __init__(self):
            self.loader = DataLoader(Curriculum(), shuffle=True, generator=torch.Generator().manual_seed(0))

        def __iter__(self):
            return iter(self.loader)

    assert "draws from its own generator (loader.generator)" in data.Loader(Over(), batch_size=2).resume_warning
    assert list(data.Loader(DataLoader(Over())).generator_states()) == ["dataset.loader.generator"]


# --- types


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_type_that_changes_from_batch_to_batch_is_an_error(workers, stream):
    targets = [1, 2, 3, 4, 0.5, 2]
    samples = list(zip(X[:6], targets, strict=True))

    class Streamed(IterableDataset):
        def __iter__(self):
            return iter(samples)

    source = Streamed() if stream else samples
    with pytest.raises(BadData, match="torch.float32 was made of the samples of batch 1, and torch.int64 of those"):
        list(data.Loader(source, batch_size=4, workers=workers))
    fine = data.Loader(source, batch_size=4, workers=workers, transform=lambda x, y: (x, float(y)))
    assert [y.dtype for _, y in fine] == [torch.float32] * 2
    stacked = data.Loader(source, batch_size=4, batcher=lambda rows: torch.tensor([y for _, y in rows]))
    assert [y.dtype for y in stacked] == [torch.int64, torch.float32]  # a batcher decides itself
