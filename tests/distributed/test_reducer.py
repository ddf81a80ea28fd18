"""Reduction of gradients: every split of a batch over processes gives the gradients of one process."""

import contextlib
import functools
import itertools
import math
import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Accumulator, backward
from stoker.distributed import Agreement, World, join
from stoker.errors import InvalidArgument
from stoker.gradients import GradientReducer, Gradients

from .processes import run

ROWS = 11  # not divisible by 2, 3 or 4


class Net(nn.Module):
    """A layer that is used twice, buffers, a parameter that nothing uses and one that some ranks use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.tied = nn.Linear(4, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.again = self.tied
        self.unused = nn.Parameter(torch.ones(5))
        self.sometimes = nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x, sometimes=False):
        hidden = self.again(torch.tanh(self.tied(torch.tanh(self.first(x * self.scale)))))
        scores = self.last(hidden)
        return scores + self.sometimes if sometimes else scores


def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 4, generator=generator), torch.randint(0, 3, (ROWS,), generator=generator)


def share_of(world, *tensors):
    """The rows of a rank, split like a loader does."""
    rows = slice(ROWS * world.rank // world.size, ROWS * (world.rank + 1) // world.size)
    return [each[rows] for each in tensors]


def sharded(model, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world.size,))
    for layer in (model.first, model.tied):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def make(world, mode, model=None, **settings):
    model = Net() if model is None else model
    if mode == "fsdp":
        sharded(model, world)
    buckets = {"bucket_mb": 1e-5} if mode == "ddp" else {}  # without overlap, DDP would not be used
    return model, GradientReducer(model, world, mode=mode, **{"reduce": "mean", **buckets, **settings})


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def largest_difference(grads, expected):
    """The largest difference of two sets of gradients of the same names."""
    assert list(grads) == list(expected), (list(grads), list(expected))
    assert [t.dtype for t in grads.values()] == [t.dtype for t in expected.values()]
    return max(float((whole(grads[name]) - expected[name]).abs().max()) for name in expected)


def batch(world, mode):
    """Uneven shares, three batches in a row, for means in one bucket and sums in several."""
    x, y = samples()
    worst = 0.0
    for reduce, settings in (("mean", {}), ("sum", {"bucket_mb": 1e-5})):
        model, reducer = make(world, mode, reduce=reduce, **settings)
        for times in (1, 2, 3):
            own, targets = share_of(world, x * times, y)
            loss = F.cross_entropy(reducer.forward(functools.partial(model, own)), targets, reduction=reduce)
            grads = reducer.backward(loss, len(own))
            assert all(each.grad is None for each in model.parameters())
            assert reducer.weight == ROWS
            reference = Net()
            expected = backward(F.cross_entropy(reference(x * times), y, reduction=reduce), reference)
            worst = max(worst, largest_difference(grads, expected) / (ROWS if reduce == "sum" else 1))
    return worst


def tokens(world, mode):
    """Weights are tensors that differ a lot; a rank whose share is all masked has a NaN loss."""
    x, y = samples()
    masked = torch.arange(ROWS) < 4  # several ranks have nothing at all
    model, reducer = make(world, mode)
    own, targets, counted = share_of(world, x, y, ~masked)
    if mode == "fsdp":  # its NaN would come through
        total = (F.cross_entropy(model(own), targets, reduction="none") * counted).sum() / counted.sum().clamp(min=1)
    else:
        total = (F.cross_entropy(model(own), targets, reduction="none") * counted).sum() / counted.sum()
        assert bool(total.isnan()) == (not counted.any())
    grads = reducer.backward(total, counted.sum())
    assert reducer.weight == int((~masked).sum())
    reference = Net()
    return largest_difference(grads, backward(F.cross_entropy(reference(x[~masked]), y[~masked]), reference))


def padding(world, mode):
    """A rank with weight 0 takes part and counts for nothing, even if its loss is not finite."""
    x, y = samples()
    model, reducer = make(world, mode)
    rows = slice(0, 1) if world.rank else slice(0, ROWS)
    loss = F.cross_entropy(model(x[rows]), y[rows])
    if world.rank and mode != "fsdp":
        loss = loss * math.nan
    grads = reducer.backward(loss, 0 if world.rank else ROWS)
    nothing = reducer.backward(F.cross_entropy(model(x), y), torch.tensor(0))
    assert reducer.weight == 0
    assert not any(bool(whole(tensor).any()) for tensor in nothing.values())
    reference = Net()
    return largest_difference(grads, backward(F.cross_entropy(reference(x), y), reference))


def not_finite(world, mode):
    """If one rank's loss is not finite, no rank gets finite gradients, even if the gradients would be finite."""
    x, y = samples()
    model, reducer = make(world, mode)
    loss = F.cross_entropy(model(x), y)
    if world.rank == world.size - 1:
        loss = loss + math.inf
    grads = reducer.backward(loss, ROWS)
    assert not grads.all_finite()
    assert not grads.norm().isfinite()
    return 0.0


def partly_used(world, mode):
    """A parameter that only the last rank's loss reaches: a sum over ranks; and one that none reaches is absent."""
    x, y = samples()
    model, reducer = make(world, mode)
    last = world.rank == world.size - 1
    own, targets = share_of(world, x, y)
    loss = F.cross_entropy(model(own, sometimes=last), targets)
    grads = reducer.backward(loss, len(own))
    reference, scores = Net(), []
    for rank in range(world.size):
        part = x[ROWS * rank // world.size : ROWS * (rank + 1) // world.size]
        scores.append(reference(part, sometimes=rank == world.size - 1))
    return largest_difference(grads, backward(F.cross_entropy(torch.cat(scores), y), reference))


def objectives(world, mode):
    """Objectives: one part of the model after the other."""
    x, y = samples()
    model, reducer = make(world, mode)
    reference = Net()
    worst = 0.0
    for part in ("first", "last"):
        own, targets = share_of(world, x, y)
        grads = reducer.backward(F.cross_entropy(model(own), targets), len(own), objective=part)
        worst = max(worst, largest_difference(grads, backward(F.cross_entropy(reference(x), y), reference, wrt=part)))
    return worst


def frozen(world, mode):
    """Freezing and unfreezing between two batches."""
    x, y = samples()
    model, reducer = make(world, mode)
    reference = Net()
    worst = 0.0
    for change in (stoker.freeze, stoker.unfreeze, stoker.freeze):  # what was not there to begin with, too
        change(model, "first")
        change(reference, "first")
        own, targets = share_of(world, x, y)
        grads = reducer.backward(F.cross_entropy(model(own), targets), len(own))
        worst = max(worst, largest_difference(grads, backward(F.cross_entropy(reference(x), y), reference)))
    return worst


def windows(world, mode):
    """Micro-batches that each rank accumulates locally; one reduction. Weights as numbers and as tensors."""
    x, y = samples()
    worst = 0.0
    for kind in (float, torch.tensor):
        for reduce in ("mean", "sum"):
            model, reducer = make(world, mode, reduce=reduce)
            own, targets = share_of(world, x, y)
            window = Accumulator(reduce)
            for rows, wanted in zip(own.split(2), targets.split(2), strict=True):
                loss = F.cross_entropy(model(rows), wanted, reduction=reduce)
                window.add(reducer.local(loss), weight=kind(len(rows)) if reduce == "mean" else 1)
            grads, weight = reducer.reduce_window(window)
            assert len(window) == 0
            assert reducer.weight == weight
            assert weight == ROWS or reduce == "sum"
            reference = Net()
            expected = backward(F.cross_entropy(reference(x), y, reduction=reduce), reference)
            worst = max(worst, largest_difference(grads, expected) / (ROWS if reduce == "sum" else 1))
    return worst


def an_empty_window(world, mode):
    """A rank without a micro-batch in the window; all ranks without one."""
    x, y = samples()
    model, reducer = make(world, mode)
    window = Accumulator()
    assert reducer.reduce_window(window)[1] == 0
    if not world.rank:
        window.add(reducer.local(F.cross_entropy(model(x), y)), weight=ROWS)
    grads, weight = reducer.reduce_window(window)
    assert weight == ROWS
    reference = Net()
    return largest_difference(grads, backward(F.cross_entropy(reference(x), y), reference))


def different_objectives(world, mode):
    """All ranks raise if they are at different objectives, even if one is at the next batch already."""
    x, y = samples()
    model, reducer = make(world, mode)
    agreement = Agreement(world)

    def at(part):
        reducer.backward(F.cross_entropy(model(x), y), ROWS, objective=part)

    def say(first, second):
        text = f"rank 0 has {first} and rank 1 has {second}: every rank must yield the same objectives"
        return pytest.raises(InvalidArgument, match=text) if world.size > 1 else contextlib.nullcontext()

    with say("an objective for 'first'", "an objective for 'last'"):
        at("last" if world.rank == 1 else "first")
    for part in ("first", "last"):
        at(part)
    with say("no further objective", "an objective for 'last'"):
        if world.rank == 1:
            at("last")
        else:
            agreement.exchange({})  # as a fit does between two batches
            reducer.forward(lambda: None)
    if world.rank == 1:
        agreement.exchange({})
    agreement.exchange({}, wait=True)
    return 0.0


def sparse(world, mode):
    """Sparse gradients of an embedding become dense ones of the whole batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 3))
    y = samples()[1]
    words = torch.arange(ROWS) % 7
    own, targets = share_of(world, words, y)
    grads = make(world, mode, model)[1].backward(F.cross_entropy(model(own), targets), len(own))
    expected = backward(F.cross_entropy(model(words), y), model)
    assert expected["0.weight"].is_sparse
    return largest_difference(
        grads, {name: each.to_dense() if each.is_sparse else each for name, each in expected.items()}
    )


def buffers(world, mode):
    """A forward starts from rank 0's buffers, of every type."""
    model, reducer = make(world, mode)
    model.scale.fill_(2.0 + world.rank)
    model.seen.fill_(world.rank + 2**40)
    assert reducer.forward(lambda: (float(model.scale), int(model.seen))) == (2.0, 2**40)
    return 0.0


def layout(world, mode):
    """Gradients have the strides of their parameters, and no other references."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)
    assert not model[0].weight.is_contiguous()
    reducer = make(world, mode, model)[1]
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(world.rank))
    grads = reducer.backward(model(images).square().mean(), 2)
    assert grads["0.weight"].stride() == model[0].weight.stride()
    kept = [each.clone() for each in grads.values()]
    reducer.backward(model(images * 100).square().mean(), 2)
    assert all(map(torch.equal, kept, grads.values()))
    return 0.0


def tensor_parallel(world, mode):
    """Parameters that are sharded for another reason, the same on every rank: their shards are added up."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (world.size,))
    torch.manual_seed(0)
    model, reference = nn.Linear(4, 3), nn.Linear(4, 3)
    with torch.no_grad():
        for name, each in list(model.named_parameters()):
            reference.get_parameter(name).copy_(each)
            model.register_parameter(name, nn.Parameter(distribute_tensor(each.detach(), mesh, [Replicate()])))
    value = {name: torch.full(each.shape, 1.0 + world.rank) for name, each in reference.named_parameters()}
    given = {name: distribute_tensor(torch.zeros(each.shape), mesh, [Replicate()]) for name, each in value.items()}
    for name, each in given.items():
        each.to_local().copy_(value[name])
    window = Accumulator()
    window.add(Gradients(given, model), weight=1)
    grads, _ = GradientReducer(model, world, mode=mode, reduce="mean").reduce_window(window)
    mean = sum(range(1, world.size + 1)) / world.size
    return largest_difference(grads, {name: torch.full(each.shape, mean) for name, each in value.items()})


def one_message(world, mode):
    """One message has everything: gradients of any type, and weights of any size, which are added up exactly."""
    x, y = samples()
    weight = 0.5 if world.rank else 2**40 + 1
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        model, reducer = make(world, mode, Net().to(dtype))
        reducer.backward(F.cross_entropy(model(x.to(dtype)), y), 1)  # compares the names of the parameters
        for kind in (float, torch.tensor):
            sent = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dist, "all_reduce", counted(dist.all_reduce, sent))
                patch.setattr(dist, "isend", counted(dist.isend, sent))
                own = torch.tensor(weight, dtype=torch.float64) if kind is torch.tensor else weight
                grads = reducer.backward(F.cross_entropy(model(x.to(dtype)), y), own)
                window = Accumulator()
                window.add(reducer.local(F.cross_entropy(model(x.to(dtype)), y)), weight=own)
                both = [grads, reducer.reduce_window(window)[0]]
            assert reducer.weight == 2**40 + 1 + 0.5 * (world.size - 1)
            for found in both:
                expected = backward(F.cross_entropy(model(x.to(dtype)), y), model)
                assert largest_difference(found, expected) < 4 * torch.finfo(dtype).eps
            assert len(sent) == 2 * (world.size - 1)  # to every other rank
    return 0.0


def any_split(world, mode):
    """Random splits, weights and types give the gradients that torch leaves in `.grad` for the whole batch.

    A rank without a row has a NaN loss; some parameters are reached by some ranks, or frozen. All ranks get the same
    bits.
    """
    worst = 0.0
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        dtype = (torch.float32, torch.float64, torch.bfloat16)[seed % 3]
        cuts = sorted(torch.randint(0, ROWS + 1, (world.size - 1,), generator=generator).tolist())
        of_ranks = list(itertools.pairwise([0, *cuts, ROWS]))
        reaching = [bool(torch.rand((), generator=generator) < 0.5) and start < stop for start, stop in of_ranks]
        x, y = torch.randn(ROWS, 4, generator=generator).to(dtype), torch.randint(0, 3, (ROWS,), generator=generator)
        model, reducer = make(world, mode, Net().to(dtype))
        reference = Net().to(dtype)
        for each in (model, reference):
            each.first.weight.requires_grad_(seed % 4 > 0)
        start, stop = of_ranks[world.rank]
        loss = F.cross_entropy(model(x[start:stop], sometimes=reaching[world.rank]), y[start:stop])
        assert bool(loss.isnan()) == (start == stop)
        weight = torch.tensor(stop - start) if seed % 2 else stop - start
        grads = reducer.backward(loss, weight)
        assert reducer.weight == ROWS
        scores = [reference(x[a:b], sometimes=reaches) for (a, b), reaches in zip(of_ranks, reaching, strict=True)]
        F.cross_entropy(torch.cat(scores), y).backward()
        expected = {name: each.grad for name, each in reference.named_parameters() if each.grad is not None}
        scale = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
        worst = max(worst, largest_difference(grads, expected) / scale)
        found = {name: each.double() for name, each in grads.items()}
        assert all(torch.equal(each, rank[name]) for rank in world.all_gather(found) for name, each in found.items())
    return worst


def complex_numbers(world, mode):
    """Complex parameters alone and beside real ones, one of which has no elements."""
    for numbers in ({}, {"real": nn.Parameter(torch.ones(2)), "empty": nn.Parameter(torch.ones(0, 3))}):
        model = nn.ParameterDict({"complex": nn.Parameter(torch.tensor([1 + 2j, 3j])), **numbers})
        loss = sum((each * (1 + world.rank)).abs().square().sum() for each in model.values())
        grads = make(world, mode, model)[1].backward(loss, 1)
        mean = sum((1 + rank) ** 2 for rank in range(world.size)) / world.size
        assert all(torch.allclose(grads[name], 2 * mean * each) for name, each in model.items())
    return 0.0


def counted(function, calls):
    def call(*args, **settings):
        calls.append(args)
        return function(*args, **settings)

    return call


def different_parameters(world, mode):
    """All ranks raise if they train different parameters, even if the messages have the same size."""
    model, reducer = make(world, mode)
    model.last, model.first = nn.Linear(6, 6), nn.Linear(6, 6)
    model, reducer = make(world, mode, model)
    stoker.freeze(model, "last" if world.rank == 1 else "first")
    loss = model.last(model.first(torch.ones(2, 6))).square().mean()
    message = "rank 1 trains other parameters than rank 0: freeze and unfreeze the same ones"
    with pytest.raises(InvalidArgument, match=message) if world.size > 1 else contextlib.nullcontext():
        reducer.backward(loss, 2)
    return 0.0


def different_reductions(world, mode):
    """All ranks raise if the loss is a sum for some and a mean for others; a share of weight 0 has no say."""
    x, y = samples()
    model, reducer = make(world, mode, reduce="sum" if world.rank == 1 else "mean")

    def at(weight):
        reducer.backward(F.cross_entropy(reducer.forward(functools.partial(model, x)), y), weight)

    at(0 if world.rank == 1 else ROWS)
    text = "the loss is a sum on some ranks and a mean on others"
    with pytest.raises(InvalidArgument, match=text) if world.size > 1 else contextlib.nullcontext():
        at(ROWS)
    return 0.0


CASES = {
    different_reductions: ("ddp", "values", "fsdp"),
    **dict.fromkeys((batch, tokens, padding, not_finite, objectives, buffers), ("ddp", "values", "fsdp")),
    **dict.fromkeys((any_split, partly_used, frozen, windows, sparse, layout), ("ddp", "values")),
    **dict.fromkeys((tensor_parallel, complex_numbers), ("values",)),
    **dict.fromkeys((an_empty_window, different_objectives, different_parameters, one_message), ("values",)),
}


def all_cases(rank, size):
    """The largest difference of every case."""
    world = join()
    return {f"{case.__name__}, {mode}": case(world, mode) for case, modes in CASES.items() for mode in modes}


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_gradients_are_those_of_one_process(size):
    for differences in run(all_cases, size):
        assert {name: value for name, value in differences.items() if not value <= 1e-6} == {}


def some_batches(rank, size, first):
    """The gradients of the batches from one on, in processes that have seen none before, in small buckets."""
    grads_of, world = {}, join()
    for mode in ("ddp", "values", "fsdp"):
        model, reducer = make(world, mode, bucket_mb=1e-5)
        for number in range(first, 4):
            x, y = samples()
            own, targets = share_of(world, x * (number + 1), y)
            grads = reducer.backward(F.cross_entropy(model(own), targets), len(own))
            grads_of[mode, number] = [whole(tensor) for tensor in grads.values()]
    return grads_of


@pytest.mark.soak
def test_fresh_processes_give_the_same_bits():
    """As after a resume: the order of sums does not depend on earlier batches, and all ranks agree."""
    through, resumed = run(some_batches, 3, 0), run(some_batches, 3, 2)
    for key, tensors in resumed[0].items():
        for found in (*through, *resumed):
            assert all(map(torch.equal, tensors, found[key])), key


def test_errors_for_unknown_settings():
    for wrong, text in (
        ({"mode": "dp", "reduce": "mean"}, 'mode must be "ddp", "values" or "fsdp", got \'dp\''),
        ({"mode": "ddp", "reduce": "max"}, 'reduce must be "mean" or "sum", got \'max\''),
    ):
        with pytest.raises(InvalidArgument, match=re.escape(text)):
            GradientReducer(Net(), World(), **wrong)
