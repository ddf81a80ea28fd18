import gc
import threading
import weakref
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from stoker.data import Loader, prefetch
from stoker.errors import InvalidArgument

GPU = torch.device("cuda")
Pair = namedtuple("Pair", ["a", "b"])
cuda = pytest.mark.cuda


def value(batch):
    """The number that all of a batch is, exactly; a mean would round."""
    return (batch.double().amax() + batch.double().amin()) / 2


@dataclass(frozen=True)
class Batch:
    images: Any
    names: list


class Boxed:
    """What moves itself, as a tokenizer's batches do."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device):
        return Boxed(self.tensor.to(device))


def numbers(count, size=1000):
    """A new tensor for each batch, all of whose numbers are the batch's."""
    for number in range(count):
        yield torch.full((size,), float(number))


def busy(milliseconds=5):
    """Keeps the current stream at work; an H200 has about 2 million cycles in a millisecond."""
    torch.cuda._sleep(int(milliseconds * 2e6))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "stoker-ahead"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert threads() == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_a_gpu_is_copied_to(device):
    with pytest.raises(InvalidArgument, match=f"to a CUDA device only; got {device}; use move_batch instead"):
        prefetch(iter([]), torch.device(device))


def test_some_depth_is_needed():
    with pytest.raises(InvalidArgument, match="depth has to be at least 1; got 0"):
        prefetch(iter([]), GPU, depth=0)


@cuda
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_arrive_whole_and_in_order(depth):
    found = [batch.clone() for batch in prefetch(numbers(50), GPU, depth=depth)]
    assert all(batch.device.type == "cuda" for batch in found)
    assert [set(batch.tolist()) for batch in found] == [{float(number)} for number in range(50)]


@cuda
@pytest.mark.parametrize("size", [1, 1000, 3_000_000])
@pytest.mark.parametrize("where", ["before", "after", "both"])
def test_values_are_right_while_the_device_is_behind(size, where):
    """The step reads its batch long after the host has let go of it and asked for others."""
    sums = torch.zeros(40, dtype=torch.float64, device=GPU)
    for place, batch in enumerate(prefetch(numbers(40, size), GPU)):
        if where in ("before", "both"):
            busy()
        sums[place] = value(batch)
        if where in ("after", "both"):
            busy()
        del batch
    assert sums.tolist() == [float(number) for number in range(40)]


@cuda
def test_a_batch_is_kept_until_the_next_is_asked_for():
    """A step may let go of a part of it while another stream works on that."""
    batches = prefetch(numbers(3), GPU)
    gone = weakref.ref(next(batches))
    gc.collect()
    assert gone() is not None
    next(batches)
    assert gone() is None


@cuda
def test_values_are_right_under_load_on_another_stream():
    mine = torch.cuda.Stream()
    sums = torch.zeros(60, dtype=torch.float64, device=GPU)
    mine.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(mine):
        for place, batch in enumerate(prefetch(numbers(60, 500_000), GPU)):
            if place % 3 == 0:
                busy(10)
            sums[place] = value(batch) ** 2
    torch.cuda.synchronize()
    assert sums.tolist() == [float(number) ** 2 for number in range(60)]


@cuda
def test_memory_is_not_handed_out_again_while_the_step_reads_it():
    """Each batch is dropped at once, with the device far behind, so that its memory is wanted by the next copies."""
    kept = []
    for batch in prefetch(numbers(30, 2_000_000), GPU, depth=4):
        busy(20)
        kept.append(value(batch))  # queued behind the sleep
        del batch
    assert [float(each) for each in kept] == [float(number) for number in range(30)]


@cuda
def test_batches_that_are_kept_stay_as_they_are():
    kept = list(prefetch(numbers(30, 100_000), GPU))
    assert [set(batch.tolist()) for batch in kept] == [{float(number)} for number in range(30)]


@cuda
def test_a_source_that_uses_one_buffer_again():
    def one_buffer(pinned):
        buffer = torch.empty(1_000_000, pin_memory=pinned)
        for number in range(20):
            yield buffer.fill_(number)

    for pinned in (False, True):
        sums = torch.zeros(20, device=GPU)
        for place, batch in enumerate(prefetch(one_buffer(pinned), GPU, depth=3)):
            busy(3)
            sums[place] = value(batch)
        assert sums.tolist() == list(range(20))


@cuda
def test_a_host_that_is_ahead_does_not_fill_the_device():
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, size = torch.cuda.memory_allocated(), 8_000_000  # 32 MB a batch
    for batch in prefetch(numbers(40, size), GPU, depth=2):
        busy(10)
        batch.add_(1)
        del batch
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= 6 * 4 * size


@cuda
def test_everything_in_a_batch():
    x = torch.arange(6.0).view(2, 3)
    there = torch.ones(2, device=GPU)
    parts = {
        "pinned": x.clone().pin_memory(),
        "nested": [x, (x, Pair(x, "word")), Batch(x, ["a", "b"])],
        "there": there,
        "strided": x.T,
        "channels": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "expanded": torch.ones(1).expand(4),
        "every other": torch.arange(10)[::2],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "sparse": torch.eye(3).to_sparse(),
        "grad": torch.ones(2, requires_grad=True),
        "boxed": Boxed(x),
        "plain": (3, None, "text", b"bytes", 2.5),
    }
    expected = dict(parts)
    (found,) = prefetch(iter([parts]), GPU)
    for name in ("pinned", "strided", "channels", "expanded", "every other", "empty", "number", "conjugate"):
        plain = expected[name].to(GPU)
        assert found[name].device.type == "cuda"
        assert found[name].stride() == plain.stride()
        assert torch.equal(found[name], plain)
    one, (two, pair), batch = found["nested"]
    for each in (one, two, pair.a, batch.images, found["boxed"].tensor):
        assert torch.equal(each, x.to(GPU))
    assert (pair.b, batch.names) == ("word", ["a", "b"])
    assert found["there"] is there
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3, device=GPU))
    assert found["grad"].requires_grad
    assert found["plain"] == (3, None, "text", b"bytes", 2.5)


@cuda
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_every_dtype(dtype):
    sent = torch.arange(64).to(dtype)
    (found,) = prefetch(iter([sent]), GPU)
    assert found.dtype == dtype
    assert torch.equal(found.cpu(), sent)


@cuda
def test_what_the_source_makes_on_the_device_is_waited_for():
    def made_there():
        for number in range(20):
            busy(3)
            yield torch.full((100_000,), float(number), device=GPU)

    assert [float(value(batch)) for batch in prefetch(made_there(), GPU)] == [float(number) for number in range(20)]


@cuda
def test_what_the_caller_wrote_before_is_seen_by_the_source():
    columns = torch.zeros(1_000_000, device=GPU)
    busy(30)
    columns.fill_(5)
    batches = prefetch((columns[start : start + 1000].clone() for start in range(0, 10_000, 1000)), GPU)
    assert [float(value(batch)) for batch in batches] == [5.0] * 10


@cuda
def test_the_caller_never_waits_for_the_device():
    """With the device asleep, batches are given all the same, as many as there is room for."""
    full = threading.Event()

    def source():
        for number, batch in enumerate(numbers(10)):
            if number == 3:
                full.set()  # those before it have been sent
            yield batch

    batches = prefetch(source(), GPU, depth=3)
    next(batches)
    full.wait()
    torch.cuda.synchronize()
    busy(1000)
    done = torch.cuda.Event()
    done.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        next(batches), next(batches)
        assert not done.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        batches.close()


@cuda
def test_no_hidden_wait_anywhere():
    torch.cuda.set_sync_debug_mode("error")
    try:
        total = torch.zeros((), device=GPU)
        for batch in prefetch(numbers(20), GPU):
            total += value(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(total) == sum(range(20))


@cuda
@pytest.mark.parametrize("at", [0, 1, 7])
def test_an_exception_comes_out_in_its_place(at):
    closed = []

    def breaking():
        try:
            yield from numbers(at)
            raise LookupError("no such file")
        finally:
            closed.append(True)

    found = []
    with pytest.raises(LookupError, match="no such file"):
        found.extend(float(value(batch)) for batch in prefetch(breaking(), GPU, depth=3))
    assert found == [float(number) for number in range(at)]
    assert closed == [True]


@cuda
@pytest.mark.parametrize("how", ["break", "close", "error", "garbage", "interrupt", "never begun"])
def test_leaving_early_ends_the_thread_and_closes_the_source(how):
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield torch.ones(100_000)
        finally:
            closed.set()

    source = endless()
    batches = prefetch(source, GPU)
    if how != "never begun":
        next(batches)
        busy(20)
        assert len(threads()) == 1
    if how == "break":
        for _ in batches:
            break
    elif how == "close":
        batches.close()
        assert closed.is_set() and threads() == []
    elif how in ("error", "interrupt"):
        with pytest.raises(KeyboardInterrupt if how == "interrupt" else ZeroDivisionError):
            for _ in batches:
                raise KeyboardInterrupt if how == "interrupt" else ZeroDivisionError
    del batches, source
    gc.collect()
    assert closed.is_set() or how == "never begun"
    assert float(torch.ones(1000, device=GPU).sum()) == 1000  # the device is as well as before


@cuda
def test_many_one_after_another_and_side_by_side():
    for _ in range(20):
        assert len(list(prefetch(numbers(5), GPU))) == 5
    pairs = zip(prefetch(numbers(9), GPU), prefetch(numbers(9), GPU), strict=True)
    both = [(float(value(a)), float(value(b))) for a, b in pairs]
    assert both == [(float(number), float(number)) for number in range(9)]


@cuda
def test_a_captured_graph_can_be_fed():
    """A thread that allocates is no trouble to a capture in the thread's own mode."""
    static = torch.zeros(1000, device=GPU)
    total = torch.zeros((), device=GPU, dtype=torch.float64)
    batches = prefetch(numbers(50), GPU)
    static.copy_(next(batches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        total += value(static)
    graph.replay()
    for batch in batches:
        static.copy_(batch)
        graph.replay()
    assert float(total) == sum(range(50))


def triple(number):
    return torch.full((1000,), 3.0 * number)


@cuda
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaders_batches(workers):
    rows = torch.arange(200.0).view(100, 2)
    source = list(range(100)) if workers else rows
    loader = Loader(source, batch_size=8, shuffle=0, workers=workers, transform=triple if workers else None)
    assert not loader.needs_main_thread
    loader.prepare(0)
    for epoch in range(3):
        walk = loader.at(epoch=epoch)
        pairs = zip(prefetch(walk.raw(), GPU), list(walk), strict=True)
        assert all(torch.equal(batch.cpu(), expected) for batch, expected in pairs)
        loader.prepare(epoch + 1)
    loader.close()
