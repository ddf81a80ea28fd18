"""Samples of different lengths: batches of similar length, padding to a few lengths, and numbers that do not change."""

import builtins
import random
from collections import Counter, namedtuple
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker.data import Loader, PaddingBatch, by_epoch, cycle, zip
from stoker.errors import BadData, InvalidArgument, WrongType
from tests.data.batches import plain, random_state


def make_rows(lengths):
    """Token lists; the first token of each is the number of its sample, from 1."""
    return [[number + 1] * length for number, length in enumerate(lengths)]


def numbers(batches):
    return [[row[0] - 1 for row in batch.tolist()] for batch in batches]


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 9),
    st.sampled_from([1, 7, "power of two", [5, 11, 40]]),
    st.sampled_from([None, 0, 3]),
    st.integers(0, 3),
)
def test_every_sample_comes_once_padded_to_an_allowed_length(lengths, size, pad_to, shuffle, epoch):
    rows = make_rows(lengths)
    loader = Loader(rows, batch_size=size, shuffle=shuffle, bucket_by=len, pad_to=pad_to)
    batches = list(loader.at(epoch=epoch))
    order = numbers(batches)
    assert sorted(chain(*order)) == list(range(len(rows)))
    assert len(batches) == len(loader) and [len(batch) for batch in batches] == list(loader.at(epoch=epoch).sizes())
    for batch, members in builtins.zip(batches, order, strict=True):
        longest = max(lengths[number] for number in members)
        allowed = {1: [longest], 7: range(7, 50, 7), "power of two": [2**power for power in range(7)]}
        expected = min(
            length for length in (pad_to if isinstance(pad_to, list) else allowed[pad_to]) if length >= longest
        )
        assert batch.tolist() == [rows[number] + [0] * (expected - lengths[number]) for number in members]
    # The order is a function of (seed, epoch): from any batch on, for any rank, with lengths that are given.
    start = epoch % len(loader)
    assert numbers(loader.at(epoch=epoch, batch=start)) == order[start:]
    given_lengths = Loader(rows, batch_size=size, shuffle=shuffle, bucket_by=np.array(lengths), pad_to=pad_to)
    assert numbers(given_lengths.at(epoch=epoch)) == order
    shares = [list(loader.shared(rank, 2).at(epoch=epoch)) for rank in range(2)]
    for place, members in enumerate(order):
        parts = [share[place] for share in shares if not isinstance(share[place], PaddingBatch)]
        assert [*chain(*numbers(parts))] == members
    dropped = Loader(rows, batch_size=size, shuffle=shuffle, bucket_by=len, pad_to=pad_to, drop_last=len(rows) >= size)
    assert numbers(dropped.at(epoch=epoch)) == [
        members for members in order if len(members) == size or len(rows) < size
    ]


LENGTHS = random.Random(0).choices(range(20, 501), k=2000)


@pytest.mark.parametrize("pad_to", ["power of two", 64, range(50, 501, 50)])
def test_a_few_shapes_cover_the_batches_with_little_padding(pad_to):
    rows = make_rows(LENGTHS)
    bucketed = list(Loader(rows, batch_size=16, shuffle=0, bucket_by=LENGTHS, pad_to=pad_to))
    shapes = Counter(batch.shape for batch in bucketed)
    assert sum(count for _, count in shapes.most_common(12)) >= 0.9 * len(bucketed)
    plain_padding = sum(batch.numel() for batch in Loader(rows, batch_size=16, shuffle=0, pad_to=1))
    assert sum(batch.numel() for batch in bucketed) < (0.8 if pad_to == "power of two" else 0.65) * plain_padding


def test_batches_come_in_a_random_order_of_random_samples():
    rows = make_rows(LENGTHS)
    loader = Loader(rows, batch_size=16, shuffle=0, bucket_by=len, pad_to=64)
    first, second = numbers(loader.at(epoch=0)), numbers(loader.at(epoch=1))
    assert {frozenset(batch) for batch in first}.isdisjoint(frozenset(batch) for batch in second)
    longest = [max(LENGTHS[number] for number in batch) for batch in first]
    middle = len(longest) // 2
    assert abs(sum(longest[:middle]) / middle - sum(longest[middle:]) / (len(longest) - middle)) < 100  # no trend
    assert numbers(Loader(rows, batch_size=16, shuffle=1, bucket_by=len, pad_to=64).at(epoch=0)) != first


@pytest.mark.parametrize("workers", [0, 2])
def test_random_transforms_workers_and_draws_are_as_without_buckets(workers):
    rows = make_rows([3, 9, 4, 8, 2, 7])

    def noisy(row):
        return torch.tensor(row) + torch.rand(len(row))

    def draw(**options):
        batches = Loader(rows, batch_size=2, shuffle=0, transform=noisy, pad_to=10, **options).at(epoch=2)
        return {int(row[0]): row.tolist() for batch in batches for row in batch}

    before = random_state()
    assert draw(bucket_by=len, workers=workers) == draw()
    assert random_state() == before


Pair = namedtuple("Pair", ["tokens", "label"])


def test_parts_are_padded_with_their_own_values():
    rows = [{"input_ids": [5] * n, "attention_mask": [1] * n, "labels": [n] * n, "name": str(n)} for n in (2, 3)]
    batch = next(iter(Loader(rows, batch_size=2, pad_to=4, pad_value=9)))
    assert plain(batch) == {
        "input_ids": [[5, 5, 9, 9], [5, 5, 5, 9]],
        "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 0]],
        "labels": [[2, 2, -100, -100], [3, 3, 3, -100]],
        "name": ["2", "3"],
    }
    both = [{"source": [1] * n, "target": [2] * (n + 2), "features": [0.5, 0.5]} for n in (1, 2)]
    batch = next(iter(Loader(both, batch_size=2, pad_to=1, pad_value={"source": 0, "target": -1}, pad_mask="mask")))
    assert plain(batch) == {
        "source": [[1, 0], [1, 1]],
        "target": [[2, 2, 2, -1], [2, 2, 2, 2]],
        "features": [[0.5, 0.5], [0.5, 0.5]],
        "mask": [[1, 0], [1, 1]],
    }
    pairs = [Pair(torch.ones(n, 2), np.full(n, n)) for n in (1, 3)]
    batch = next(iter(Loader(pairs, batch_size=2, pad_to=[2, 4], pad_value={0: 0, 1: 7})))
    assert type(batch) is Pair and batch.tokens.shape == (2, 4, 2) and batch.tokens.sum() == 8
    assert batch.label.tolist() == [[1, 7, 7, 7], [3, 3, 3, 7]]


def test_a_collate_fn_gets_padded_samples():
    rows = [([1] * n, n % 2) for n in (4, 1, 3, 2)]
    loader = Loader(rows, batch_size=2, bucket_by=lambda tokens, _: len(tokens), pad_to=2, collate_fn=list)
    assert list(loader) == [[([1, 0], 1), ([1, 1], 0)], [([1] * 4, 0), ([1, 1, 1, 0], 1)]]


def test_buckets_are_for_one_of_several_sources_and_for_sources_that_change():
    rows = make_rows([3, 1, 3, 1])
    one = Loader(rows, batch_size=2, shuffle=0, bucket_by=len, pad_to=1)
    both = list(Loader(zip(ragged=one, other=cycle(torch.arange(3))), batch_size=2, shuffle=0))
    assert sorted(batch["ragged"].shape[1] for batch in both) == [1, 3]
    changing = Loader(by_epoch(lambda epoch: rows[epoch:]), batch_size=2, shuffle=0, bucket_by=len, pad_to=4)
    assert [sorted(chain(*numbers(changing.at(epoch=epoch)))) for epoch in (0, 2)] == [[0, 1, 2, 3], [2, 3]]
    streamed = Loader(Stream(rows), batch_size=2, pad_to=4)
    assert [batch.shape for batch in streamed] == [(2, 4), (2, 4)]


class Stream:
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


ROWS = [{"input_ids": [1, 2], "features": [1.0]}, {"input_ids": [1], "features": [1.0]}]


@pytest.mark.parametrize(
    ("source", "options", "error", "text"),
    [
        (ROWS, {"pad_to": "two"}, InvalidArgument, "pad_to is a list of lengths, .* or \"power of two\"; got 'two'"),
        (ROWS, {"pad_to": 0}, InvalidArgument, "pad_to has to be at least 1"),
        (ROWS, {"pad_to": []}, InvalidArgument, "got an empty list"),
        (ROWS, {"pad_value": 3}, InvalidArgument, "pad_value needs pad_to"),
        (ROWS, {"pad_to": 4}, BadData, "'input_ids' and 'features' of a sample have lengths 2 and 1; say which to pad"),
        (ROWS, {"pad_to": 4, "pad_value": {"tokens": 0}}, InvalidArgument, "pad_value names 'tokens', .* there are"),
        ([[1, 2], [1]], {"pad_to": [1]}, BadData, "has length 2, and the longest of pad_to is 1; add a length"),
        (ROWS, {"bucket_by": "tokens"}, InvalidArgument, "names a column, and sample 0, a dict, does not have it"),
        (ROWS, {"bucket_by": [1]}, InvalidArgument, "one length for each of the 2 samples.*shape \\[1\\]"),
        (ROWS, {"bucket_by": [1.0, 2.0]}, InvalidArgument, "an integer of at least 0; got torch.float32"),
        (ROWS, {"bucket_by": object()}, WrongType, "bucket_by is a function of a sample"),
        (ROWS, {}, BadData, r"pad_to=64\) pads sequences"),
        ([1, 2], {"pad_to": 4}, BadData, "a sample has none"),
        ([[1], [1, 2]], {"pad_to": 4, "pad_mask": "mask"}, InvalidArgument, "adds a part to samples that are mappings"),
        (torch.ones(4, 2), {"pad_to": 4}, InvalidArgument, "the rows of columns in memory have one length"),
        (Stream(ROWS), {"bucket_by": len}, InvalidArgument, "bucket_by needs numbered samples"),
        (zip(a=[1], b=[2]), {"bucket_by": len}, InvalidArgument, "bucket_by is for the samples of one source"),
    ],
)
def test_options_that_do_not_fit_say_what_to_do(source, options, error, text):
    with pytest.raises(error, match=text):
        list(Loader(source, batch_size=2, **options))


def test_a_length_that_fails_names_its_sample():
    with pytest.raises(TypeError) as caught:
        Loader([([1, 2], 0)], batch_size=1, bucket_by=len)
    assert "bucket_by, the length, of sample 0; the 2 parts of a tuple are separate" in caught.value.__notes__[0]


class Tagger(nn.Module):
    """Scores every token, and mixes in the mean of those that are not padding."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 5)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].float()
        embedded = self.embed(input_ids)
        return self.head(embedded + (embedded * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).transpose(1, 2)


def tag_step(model, batch):
    scores = model(batch["input_ids"], batch["attention_mask"])
    return {"loss": nn.functional.cross_entropy(scores, batch["labels"])}


def test_losses_and_weights_depend_neither_on_padding_nor_on_buckets():
    choose = random.Random(1)
    lengths = [choose.randint(2, 30) for _ in range(24)]
    tokens = [[choose.randint(1, 49) for _ in range(length)] for length in lengths]
    rows = [{"input_ids": each, "labels": [token % 5 for token in each]} for each in tokens]

    def train(size, **options):
        def load(part, shuffle):
            return Loader(part, batch_size=size, shuffle=shuffle, pad_mask="attention_mask", **options)

        torch.manual_seed(0)
        learner = stoker.Learner(Tagger(), step=tag_step, lr=0.05, seed=0)
        valid = {"short": load(rows[:7], None), "long": load(rows[7:], None)}
        return learner.fit(load(rows, 0), valid=valid, epochs=2, show=False)

    reference = train(24, pad_to=1)
    for options in ({"pad_to": 64}, {"pad_to": "power of two", "bucket_by": "input_ids", "workers": 1}):
        other = train(24, **options)
        for name in ("train/loss", "short/loss", "long/loss"):
            assert other.history[name] == pytest.approx(reference.history[name], rel=1e-5), name
    # With smaller batches the evaluations are still those of the same samples and tokens.
    small = Loader(rows, batch_size=5, shuffle=None, pad_mask="attention_mask", pad_to=16, bucket_by=lengths)
    whole = Loader(rows, batch_size=24, shuffle=None, pad_mask="attention_mask", pad_to=1)
    assert reference.evaluate(small)["loss"] == pytest.approx(reference.evaluate(whole)["loss"], rel=1e-5)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        return (tokens != 0).sum(1, keepdim=True) * self.scale


def test_predictions_are_in_the_order_of_the_data_and_a_fit_resumes_inside_an_epoch(tmp_path):
    lengths = [7, 2, 9, 4, 4, 1, 8, 3]
    rows = [([1] * length, [float(length + 1)]) for length in lengths]

    def fit(directory, **options):
        loader = Loader(rows, batch_size=2, shuffle=0, bucket_by=lengths, pad_to=4, pad_value={0: 0})
        learner = stoker.Learner(Counted(), loss=nn.MSELoss(), optimizer=stoker.optim.SGD(), lr=0.01, seed=0)
        return learner.fit(loader, epochs=2, run=directory, show=False, **options)

    whole = fit(tmp_path / "whole")
    fit(tmp_path / "parts", updates=3)
    parts = fit(tmp_path / "parts", resume=True)
    assert torch.equal(whole.model.scale, parts.model.scale)
    loader = Loader(rows, batch_size=3, bucket_by=lengths, pad_to=4, pad_value={0: 0})
    predicted = whole.predict(loader).flatten() / whole.model.scale.detach()
    assert predicted.round().tolist() == lengths
