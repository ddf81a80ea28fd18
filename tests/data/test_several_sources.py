"""Several sources in one loader: side by side, mixed by weight, and by epoch."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

import stoker
from stoker import data
from stoker.data import Loader, PaddingBatch
from stoker.errors import BadData, InvalidArgument, WrongType


class Stream(IterableDataset):
    """Numbers from `start` on, plus 100 for each epoch."""

    def __init__(self, start, count):
        self.start, self.count, self.epoch = start, count, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(self.start + 100 * self.epoch, self.start + 100 * self.epoch + self.count))


def as_lists(batches):
    return [{name: part.tolist() for name, part in batch.items()} for batch in batches]


def numbers_of(batches, name):
    return [number for batch in as_lists(batches) for number in batch.get(name, [])]


# --- zip


def test_a_zip_ends_with_its_shortest_source_and_has_full_batches_only():
    loader = Loader(data.zip(a=torch.arange(7), b=torch.arange(100, 120)), batch_size=3)
    assert len(loader) == 2
    assert as_lists(loader) == [{"a": [0, 1, 2], "b": [100, 101, 102]}, {"a": [3, 4, 5], "b": [103, 104, 105]}]


def test_sources_of_a_zip_are_shuffled_independently_and_differently_in_each_epoch():
    loader = Loader(data.zip(a=torch.arange(50), b=torch.arange(50)), batch_size=10, shuffle=0)
    first, second = list(loader.at(epoch=0)), list(loader.at(epoch=1))
    assert numbers_of(first, "a") != numbers_of(first, "b")
    assert numbers_of(first, "a") != numbers_of(second, "a")
    assert sorted(numbers_of(first, "a")) == sorted(numbers_of(first, "b")) == list(range(50))


def test_a_cycled_source_gives_every_sample_equally_often_over_epochs_and_ends():
    loader = Loader(data.zip(few=data.cycle(torch.arange(3)), many=torch.arange(40)), batch_size=8, shuffle=4)
    epochs = [list(loader.at(epoch=epoch)) for epoch in range(6)]
    assert [len(epoch) for epoch in epochs] == [5] * 6
    seen = [numbers_of(epoch, "few") for epoch in epochs]
    assert all(len(epoch) == 40 for epoch in seen)
    passes = torch.tensor(seen).view(-1, 3).tolist()
    assert len(passes) == 80
    assert all(sorted(each) == [0, 1, 2] for each in passes)
    assert len({tuple(each) for each in passes}) == 6  # in every possible order


def test_a_long_cycled_source_continues_in_the_next_epoch():
    loader = Loader(data.zip(short=torch.arange(4), long=data.cycle(torch.arange(10))), batch_size=2)
    assert [numbers_of(loader.at(epoch=epoch), "long") for epoch in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 0, 1],
    ]


def test_sources_may_be_loaders_with_their_own_options():
    labeled = Loader(list(range(10)), batch_size=2, shuffle=1, transform=lambda number: number * 10)
    unlabeled = DataLoader(list(range(100, 130)), batch_size=6)
    loader = Loader(data.zip(labeled=data.cycle(labeled), unlabeled=unlabeled))
    batches = as_lists(loader)
    assert len(batches) == len(loader) == 5
    assert sorted(numbers_of(loader.at(epoch=0), "labeled")) == list(range(0, 100, 10))
    assert batches[4]["unlabeled"] == list(range(124, 130))


def combinations():
    a, b = torch.arange(23), [torch.tensor(number) for number in range(100, 140)]
    return {
        "zip": Loader(data.zip(a=data.cycle(a), b=b), batch_size=4, shuffle=3),
        "zip with a stream": Loader(data.zip(a=data.cycle(a), b=Stream(100, 33)), batch_size=4, shuffle=3),
        "mix": Loader(data.mix(a=a, b=b), batch_size=4, shuffle=3),
        "mix by weight": Loader(data.mix(a=a, b=b, weights={"a": 3, "b": 1}), batch_size=4, shuffle=3),
        "mix with a stream": Loader(
            data.mix(a=a, b=Stream(100, 6), weights={"a": 1, "b": 2}, length=9), batch_size=4, shuffle=3
        ),
        "cycled stream": Loader(data.zip(a=a, b=data.cycle(Stream(100, 9))), batch_size=4, shuffle=3),
        "DataLoaders": Loader(data.zip(a=data.cycle(DataLoader(a, 5, shuffle=True)), b=DataLoader(b, 4, shuffle=True))),
    }


@pytest.mark.parametrize("kind", list(combinations()))
def test_a_position_gives_the_same_batches_as_the_whole_epoch(kind):
    before = torch.get_rng_state()
    for epoch in (0, 3):
        whole = as_lists(combinations()[kind].at(epoch=epoch))
        for batch in range(len(whole) + 1):
            torch.manual_seed(batch)  # what is drawn elsewhere has no effect
            assert as_lists(combinations()[kind].at(epoch=epoch, batch=batch)) == whole[batch:]
    torch.set_rng_state(before)


def test_a_zip_leaves_the_random_numbers_of_the_process_alone():
    loader = combinations()["DataLoaders"]
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(loader)
    assert torch.equal(torch.rand(3), expected)


def test_ranks_divide_every_batch_of_a_zip():
    loader = Loader(data.zip(a=torch.arange(9), b=torch.arange(100, 130)), batch_size=4, shuffle=0)
    shares = [as_lists(loader.shared(rank, 2).at(epoch=1)) for rank in range(2)]
    joined = [{name: one[name] + other[name] for name in one} for one, other in zip(*shares, strict=True)]
    assert joined == as_lists(loader.at(epoch=1))
    with pytest.raises(InvalidArgument, match="'a' has batches of 4 samples, which 3 ranks can't divide equally"):
        loader.shared(0, 3)


def test_a_rank_reads_its_own_stream_of_ready_batches_beside_its_share_of_another_source():
    class Ready(IterableDataset):
        def __iter__(self):
            return (torch.tensor([n, n]) for n in range(6))

    own = Loader(Ready(), batched=True, sharded=True)
    shares = [Loader(data.zip(a=own, b=torch.arange(12)), batch_size=2).shared(rank, 2) for rank in range(2)]
    for rank, share in enumerate(shares):
        assert as_lists(share) == [{"a": [n, n], "b": [2 * n + rank]} for n in range(6)]


def test_batchable_transforms_of_sources_and_of_the_zip_are_applied():
    double = Loader(torch.arange(4), batch_size=2, transform=data.batchable(lambda part: part * 2))
    loader = Loader(
        data.zip(a=double, b=torch.arange(4)),
        batch_size=2,
        transform=data.batchable(lambda batch: batch["a"] + batch["b"]),
    )
    assert [batch.tolist() for batch in loader] == [[0, 3], [6, 9]]
    raw = next(loader.at(epoch=0).raw())
    assert loader.apply_batch_transform(raw).tolist() == [0, 3]


def test_wrong_zips_say_what_to_do():
    x = torch.arange(5)
    with pytest.raises(InvalidArgument, match="needs at least two sources with names"):
        data.zip(a=x)
    with pytest.raises(InvalidArgument, match="every source of this zip is repeated, so an epoch has no end"):
        Loader(data.zip(a=data.cycle(x), b=data.cycle(x)), batch_size=2)
    with pytest.raises(InvalidArgument, match=r"'a' has 5 samples, less than a batch of 8.* data.cycle"):
        Loader(data.zip(a=x, b=torch.arange(20)), batch_size=8)
    with pytest.raises(InvalidArgument, match="cycle is for a source of data.zip"):
        Loader(data.cycle(x), batch_size=2)
    with pytest.raises(InvalidArgument, match="transform is for the samples of one source"):
        Loader(data.zip(a=x, b=x), batch_size=2, transform=float)
    with pytest.raises(InvalidArgument, match="batch_size has no effect: every source is a Loader or DataLoader"):
        Loader(data.zip(a=DataLoader(x), b=DataLoader(x)), batch_size=2)
    with pytest.raises(WrongType, match="'a' is a zip, which can't be a source of zip"):
        data.zip(a=data.zip(a=x, b=x), b=x)
    own = type("Own", (list,), {"__module__": "litdata"})(range(5))  # a data set that is divided among ranks
    for part in (Loader(x, batch_size=2, sharded=True), own):
        for source in (data.zip(a=part, b=x), data.by_epoch(lambda _, part=part: part)):
            with pytest.raises(InvalidArgument, match="is sharded, and among several sources a rank can't"):
                Loader(source, batch_size=2)
    with pytest.raises(InvalidArgument, match="sharded=True is for one source"):
        Loader(data.zip(a=x, b=x), batch_size=2, sharded=True)
    with pytest.raises(WrongType, match="a loader over several sources has no number of samples"):
        _ = Loader(data.zip(a=x, b=x), batch_size=2).samples
    with pytest.raises(WrongType, match="got a Zip"):
        data.split(data.zip(a=x, b=x), [0.5, 0.5])


# --- mix


def test_without_weights_a_mix_has_every_batch_once_in_random_order():
    loader = Loader(data.mix(a=torch.arange(10), b=torch.arange(100, 121)), batch_size=4, shuffle=0)
    first, second = (list(loader.at(epoch=epoch)) for epoch in range(2))
    assert len(loader) == len(first) == 3 + 6
    for epoch in (first, second):
        assert sorted(numbers_of(epoch, "a")) == list(range(10))
        assert sorted(numbers_of(epoch, "b")) == list(range(100, 121))
    assert [list(batch) for batch in first] != [list(batch) for batch in second]


def test_weights_are_the_exact_parts_of_every_epoch_and_samples_come_equally_often():
    loader = Loader(
        data.mix(a=torch.arange(6), b=torch.arange(100, 200), weights={"a": 0.75, "b": 0.25}, length=8),
        batch_size=3,
        shuffle=1,
    )
    epochs = [list(loader.at(epoch=epoch)) for epoch in range(20)]
    assert all(Counter(next(iter(batch)) for batch in epoch) == {"a": 6, "b": 2} for epoch in epochs)
    assert set(Counter(number for epoch in epochs for number in numbers_of(epoch, "a")).values()) == {60}
    seen = Counter(number for epoch in epochs for number in numbers_of(epoch, "b"))
    assert len(seen) == 100  # 120 places: every sample once before any comes again
    assert set(seen.values()) == {1, 2}


def test_a_mix_of_samples_gives_plain_batches_in_the_given_proportions():
    a, b = (torch.arange(20), torch.zeros(20)), (torch.arange(100, 150), torch.ones(50))
    loader = Loader(data.mix(a=a, b=b, weights={"a": 1, "b": 1}, by="sample"), batch_size=10, shuffle=0)
    assert len(loader) == 7
    numbers, which = (torch.cat(parts) for parts in zip(*loader.at(epoch=0), strict=True))
    assert which.sum() == 35
    assert set(Counter(numbers[which == 0].tolist()).values()) == {1, 2}
    assert len(set(numbers[which == 1].tolist())) == 35
    assert not torch.equal(numbers, torch.cat([x for x, _ in loader.at(epoch=1)]))
    middle = list(loader.at(epoch=0, batch=5))
    assert torch.equal(middle[0][0], numbers[50:60])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mix_of_samples_takes_a_transform_and_a_batcher(workers):
    mixed = data.mix(a=torch.arange(3), b=torch.arange(10, 13), weights={"a": 1, "b": 1}, by="sample")
    loader = Loader(mixed, batch_size=2, transform=float, batcher=sum, workers=workers)
    assert list(loader) == [0.0 + 10.0, 1.0 + 11.0, 2.0 + 12.0]


def test_without_a_seed_sources_are_evenly_spaced():
    loader = Loader(data.mix(a=torch.arange(2), b=torch.arange(4)), batch_size=1)
    assert [next(iter(batch)) for batch in loader] == ["b", "a", "b", "b", "a", "b"]


def test_an_empty_share_of_a_mixed_batch_is_padding():
    loader = Loader(data.mix(a=torch.arange(3), b=torch.arange(4)), batch_size=2)
    shares = [list(loader.shared(rank, 2)) for rank in range(2)]
    assert [isinstance(batch, PaddingBatch) for batch in shares[0]].count(True) == 1
    padding = next(batch for batch in shares[0] if isinstance(batch, PaddingBatch))
    assert padding.batch["a"].tolist() == [2]


def test_wrong_mixes_say_what_to_do():
    x = torch.arange(5)
    with pytest.raises(InvalidArgument, match="weights needs a number for each of a, b"):
        data.mix(a=x, b=x, weights={"a": 1})
    with pytest.raises(InvalidArgument, match="weights are more than 0 and finite"):
        data.mix(a=x, b=x, weights={"a": 1, "b": 0})
    with pytest.raises(InvalidArgument, match="length= needs weights="):
        data.mix(a=x, b=x, length=9)
    with pytest.raises(InvalidArgument, match="pass length=, the batches of an epoch, and weights="):
        Loader(data.mix(a=x, b=Stream(0, 5)), batch_size=2)
    with pytest.raises(InvalidArgument, match="the weight of 'b' is so small that an epoch of 4 never reads it"):
        Loader(data.mix(a=x, b=x, weights={"a": 1000, "b": 1}, length=4), batch_size=2)
    with pytest.raises(InvalidArgument, match="'a' gives batches, and by=\"sample\" mixes samples"):
        Loader(data.mix(a=DataLoader(x), b=x, weights={"a": 1, "b": 1}, by="sample"), batch_size=2)
    with pytest.raises(InvalidArgument, match="sampling_weights can't be combined with it"):
        by_sample = data.mix(a=x, b=x, weights={"a": 1, "b": 1}, by="sample")
        Loader(by_sample, batch_size=2, shuffle=0, sampling_weights=torch.ones(10))


# --- by epoch, and sampling weights


def test_data_may_be_a_function_of_the_epoch():
    loader = Loader(data.by_epoch(lambda epoch: torch.arange(4 + 2 * epoch)), batch_size=4, shuffle=0)
    assert [sorted(torch.cat(list(loader.at(epoch=epoch))).tolist()) for epoch in range(2)] == [
        list(range(4)),
        list(range(6)),
    ]
    with pytest.raises(TypeError, match="can't be counted in advance"):
        len(loader)
    with pytest.raises(BadData, match="another kind of data for epoch 1"):
        list(Loader(data.by_epoch(lambda epoch: [1, 2] if epoch else torch.arange(2)), batch_size=1).at(epoch=1))


def test_a_batchable_transform_of_a_loader_by_epoch_is_passed_to_the_loader_around_it():
    x = torch.arange(1, 4)
    negate = data.batchable(torch.neg)
    for given in (Loader(x, batch_size=3), x):
        around = Loader(data.by_epoch(lambda _, given=given: given), batch_size=3, transform=negate)
        assert [batch.tolist() for batch in around] == [[-1, -2, -3]]
    inside = Loader(x, batch_size=3, transform=negate)
    for given in (inside, data.zip(a=inside, b=x), data.zip(a=inside, b=inside)):
        with pytest.raises(InvalidArgument, match="batchable transform for epoch 0"):
            Loader(data.by_epoch(lambda _, given=given: given), batch_size=3)
    with pytest.raises(InvalidArgument, match="transform has no effect"):
        Loader(data.by_epoch(lambda _: Loader(x, batch_size=3)), transform=float)


def test_sampling_weights_draw_with_replacement_in_their_proportions():
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0]).repeat(500)
    loader = Loader(torch.arange(2000), batch_size=100, shuffle=0, sampling_weights=weights)
    drawn = torch.cat([batch for epoch in range(5) for batch in loader.at(epoch=epoch)])
    assert len(loader) == 20
    counts = torch.bincount(drawn % 4, minlength=4)
    assert counts[0] == counts[3] == 0
    expected = torch.tensor(list(WeightedRandomSampler(weights, 10_000)))
    assert abs(counts[2] / counts[1] - 3) < 0.25  # 4 standard deviations
    assert abs((expected % 4 == 2).sum() - counts[2]) < 250
    assert torch.equal(next(iter(loader.at(epoch=3, batch=7))), list(loader.at(epoch=3))[7])


def test_a_sample_that_is_drawn_twice_gets_other_random_numbers():
    few = data.zip(
        few=data.cycle(Loader([0.0], batch_size=1, shuffle=0, transform=lambda x: x + torch.rand(()))), b=range(5)
    )
    drawn = numbers_of(Loader(few, batch_size=1), "few")
    assert len(set(drawn)) == 5
    assert numbers_of(Loader(few, batch_size=1).at(epoch=0, batch=2), "few") == drawn[2:]


def test_a_cycled_source_keeps_its_sampling_weights():
    weights = torch.tensor([1.0, 0.0]).repeat(10)
    drawn = Loader(torch.arange(20), batch_size=5, shuffle=0, sampling_weights=weights)
    loader = Loader(data.zip(a=data.cycle(drawn), b=torch.arange(60)), batch_size=5)
    assert numbers_of(loader.at(epoch=0), "a")[:20] == torch.cat(list(drawn.at(epoch=0))).tolist()
    assert all(number % 2 == 0 for epoch in range(2) for number in numbers_of(loader.at(epoch=epoch), "a"))
    mixed = Loader(data.mix(a=drawn, b=torch.arange(20), weights={"a": 2, "b": 1}, length=9), batch_size=5)
    assert all(number % 2 == 0 for number in numbers_of(mixed, "a"))


def test_wrong_sampling_weights_say_what_to_do():
    with pytest.raises(InvalidArgument, match=r"one weight for each of the 5 .* shape \[3\]; of class weights"):
        Loader(range(5), batch_size=1, shuffle=0, sampling_weights=[1, 2, 3])
    with pytest.raises(InvalidArgument, match="pass shuffle=True"):
        Loader(range(3), batch_size=1, sampling_weights=[1, 2, 3])
    with pytest.raises(InvalidArgument, match="at least 0 and finite"):
        Loader(range(3), batch_size=1, shuffle=0, sampling_weights=[1, -2, 3])


# --- in a fit


class Consistent(nn.Module):
    """A supervised loss on one source, and a penalty on another."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def train_step(self, batch):
        x, y = batch["labeled"]
        return nn.functional.mse_loss(self.linear(x)[:, 0], y) + 0.1 * self.linear(batch["unlabeled"]).square().mean()

    def valid_step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.linear(x)[:, 0], y)


def test_a_fit_on_a_zip_equals_the_plain_loop_and_explains_its_length():
    torch.manual_seed(0)
    x, y, more = torch.randn(10, 3), torch.randn(10), torch.randn(40, 3)
    sources = data.zip(labeled=data.cycle((x, y)), unlabeled=more)
    learner = stoker.Learner(Consistent(), optimizer=stoker.optim.SGD(), lr=0.1, seed=5)
    plain = Consistent()
    plain.load_state_dict(learner.model.state_dict())
    text = learner.explain(sources, epochs=2, batch_size=8)
    assert "5 batches, side by side: labeled (10 samples, 4 times, in batches of 8), unlabeled (40 samples" in text
    fitted = learner.fit(sources, valid=(x, y), epochs=2, batch_size=8, show=False, keep="last")
    for epoch in range(2):
        for batch in Loader(sources, batch_size=8, shuffle=5).at(epoch=epoch):
            plain.zero_grad()
            plain.train_step(batch).backward()
            with torch.no_grad():
                for parameter in plain.parameters():
                    parameter -= 0.1 * parameter.grad
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(fitted.model.state_dict()[name], value)
    with pytest.raises(InvalidArgument, match="several sources have no common order for predictions"):
        fitted.predict(sources)


def test_terms_over_sources_of_different_batch_sizes_are_no_reason_for_doubt():
    """All batches weigh their sources alike. A term that divides by a mask is one, as in every step."""
    x, y, more = torch.randn(10, 3), torch.randn(10), torch.randn(40, 3)
    sources = data.zip(labeled=data.cycle((x, y)), unlabeled=Loader(more, batch_size=7, shuffle=1))

    def masked(model, batch):
        errors, is_large = model(batch["unlabeled"]).square(), batch["unlabeled"].sum(1, keepdim=True) > 0
        return Consistent.train_step(model, batch) + (errors * is_large).sum() / is_large.sum()

    for step, count in ((None, 0), (masked, 1)):

        class Model(Consistent):
            def forward(self, x):
                return self.linear(x)

        learner = stoker.Learner(Model(), step=step, lr=0.1, seed=5, accumulate=2)  # so that it matters
        fitted = learner.fit(sources, epochs=1, batch_size=4, show=False)
        assert len(fitted.record.events_of("warning")) == count


def test_a_run_is_not_resumed_with_another_order_of_a_source(tmp_path):
    def train(seed, updates):
        unlabeled = Loader(torch.ones(40, 3), batch_size=8, shuffle=seed)
        sources = data.zip(labeled=(torch.ones(40, 3), torch.ones(40)), unlabeled=unlabeled)
        learner = stoker.Learner(Consistent(), seed=5)
        return learner.fit(sources, updates=updates, batch_size=8, run=tmp_path / "run", resume=True, show=False)

    train(1, 2)
    with pytest.raises(stoker.errors.StateMismatch, match="sources: 5 batches, side by side"):
        train(2, 4)
    assert train(1, 4).history["train/loss"]


def test_a_curriculum_by_epoch_equals_the_plain_loop():
    torch.manual_seed(0)
    x, y = torch.randn(24, 3), torch.randn(24, 1)
    learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), optimizer=stoker.optim.SGD(), lr=0.1, seed=5)
    plain = nn.Linear(3, 1)
    plain.load_state_dict(learner.model.state_dict())
    fitted = learner.fit(
        data.by_epoch(lambda epoch: (x[: 8 * (epoch + 1)], y[: 8 * (epoch + 1)])), epochs=3, batch_size=8, show=False
    )
    for epoch in range(3):
        for inputs, targets in Loader((x[: 8 * (epoch + 1)], y[: 8 * (epoch + 1)]), batch_size=8, shuffle=5).at(
            epoch=epoch
        ):
            plain.zero_grad()
            nn.functional.mse_loss(plain(inputs), targets).backward()
            with torch.no_grad():
                for parameter in plain.parameters():
                    parameter -= 0.1 * parameter.grad
    torch.testing.assert_close(fitted.model.weight, plain.weight)


@pytest.mark.cuda
def test_a_zip_stays_on_a_gpu_and_trains_as_on_a_cpu():
    x, y, more = torch.randn(10, 3), torch.randn(10), torch.randn(40, 3)
    sources = data.zip(labeled=data.cycle((x, y)), unlabeled=more)
    start, weights = Consistent().state_dict(), []
    for device in ("cpu", "cuda"):
        model = Consistent()
        model.load_state_dict(start)
        learner = stoker.Learner(model, optimizer=stoker.optim.SGD(), lr=0.1, seed=5, device=device)
        weights.append(learner.fit(sources, epochs=3, batch_size=8, show=False).model.linear.weight.detach().cpu())
    torch.testing.assert_close(weights[0], weights[1])


class Levels(torch.utils.data.Dataset):
    """A dataset that a callback makes harder after each epoch."""

    level = 0

    def __len__(self):
        return 12

    def __getitem__(self, number):
        return torch.full((3,), float(number + self.level)), torch.ones(1)


class RaiseLevel(stoker.Callback):
    def __init__(self, dataset):
        self.dataset = dataset

    def on_epoch_end(self, ctx):
        self.dataset.level += 1

    def state_dict(self):
        return {"level": self.dataset.level}

    def load_state_dict(self, state):
        self.dataset.level = state["level"]


def test_a_dataset_that_a_callback_changes_is_resumed_with_the_state_of_the_callback(tmp_path):
    def train(run, **limits):
        torch.manual_seed(0)
        dataset, seen = Levels(), []
        learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), optimizer=stoker.optim.SGD(), lr=1e-4, seed=1)
        loader = Loader(
            dataset, batch_size=4, shuffle=0, transform=lambda x, y: (seen.append(dataset.level), (x, y))[1]
        )
        options = {"callbacks": [RaiseLevel(dataset)], "run": run, "resume": True, "show": False}
        return learner.fit(loader, **limits, **options).model.weight, seen

    whole, levels = train(tmp_path / "whole", updates=8)
    assert levels == [0] * 12 + [1] * 12 + [2] * 8
    train(tmp_path / "parts", updates=4)
    weight, levels = train(tmp_path / "parts", updates=8)
    assert levels == [1] * 8 + [2] * 8
    assert torch.equal(weight, whole)
