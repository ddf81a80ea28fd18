"""Copying batches to a GPU in a background thread."""

import gc
import itertools
import threading
import weakref
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from stoker.data import Loader, prefetch
from stoker.data._prefetch import BackgroundIterator
from stoker.errors import InvalidArgument
from tests.device import size

GPU = torch.device("cuda")
Pair = namedtuple("Pair", ["a", "b"])
cuda = pytest.mark.cuda


def value(batch):
    """The number that fills a batch, exactly; a mean would round."""
    return (batch.double().amax() + batch.double().amin()) / 2


@dataclass(frozen=True)
class Batch:
    images: Any
    names: list


class Boxed:
    """Moves itself, as the batches of a tokenizer do."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device):
        return Boxed(self.tensor.to(device))


def numbers(count, size=1000):
    """Yields a new tensor for each batch, filled with the number of the batch."""
    for number in range(count):
        yield torch.full((size,), float(number))


def busy(milliseconds=5):
    """Keeps the current stream busy; an H200 has about 2 million cycles per millisecond."""
    torch.cuda._sleep(int(milliseconds * 2e6))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "stoker-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_remains():
    yield
    gc.collect()
    assert threads() == []


def test_wrong_arguments_raise():
    for device in ("cpu", "meta"):
        with pytest.raises(InvalidArgument, match=f"to a CUDA device only; got {device}; use move_batch instead"):
            prefetch(iter([]), torch.device(device))
    with pytest.raises(InvalidArgument, match="depth has to be at least 1; got 0"):
        prefetch(iter([]), GPU, depth=0)


@cuda
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_arrive_complete_and_in_order_and_do_not_change_later(depth):
    kept = list(prefetch(numbers(50, 100_000), GPU, depth=depth))
    assert all(batch.device.type == "cuda" for batch in kept)
    assert [set(batch.tolist()) for batch in kept] == [{float(number)} for number in range(50)]


@cuda
@pytest.mark.parametrize("size", [1, 1000, 3_000_000])
@pytest.mark.parametrize("where", ["before", "after", "both"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_values_are_right_if_the_device_is_behind(size, where, own_stream):
    """The step reads its batch long after the host has released it and requested others."""
    sums = torch.zeros(40, dtype=torch.float64, device=GPU)
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for place, batch in enumerate(prefetch(numbers(40, size), GPU, depth=4)):
            if where in ("before", "both"):
                busy()
            sums[place] = value(batch)
            if where in ("after", "both"):
                busy()
            del batch  # the next copies may need its memory
    torch.cuda.synchronize()
    assert sums.tolist() == [float(number) for number in range(40)]


@cuda
def test_a_batch_lives_until_the_next_one_is_requested():
    """A step may release a part of it while another stream reads that part."""
    batches = prefetch(numbers(3), GPU)
    reference = weakref.ref(next(batches))
    gc.collect()
    assert reference() is not None
    next(batches)
    assert reference() is None


@cuda
@pytest.mark.parametrize("pinned", [False, True])
def test_a_source_may_reuse_one_buffer(pinned):
    def one_buffer():
        buffer = torch.empty(1_000_000, pin_memory=pinned)
        for number in range(20):
            yield buffer.fill_(number)

    sums = torch.zeros(20, device=GPU)
    for place, batch in enumerate(prefetch(one_buffer(), GPU, depth=3)):
        busy(3)
        sums[place] = value(batch)
    assert sums.tolist() == list(range(20))


@cuda
def test_a_host_that_is_ahead_does_not_fill_the_device_memory():
    # Of batches of 16 or 32 MiB; the device needs longer for each than the host.
    count, elements, milliseconds = size((40, 2**23, 10), simulated=(16, 2**22, 80))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    for batch in prefetch(numbers(count, elements), GPU, depth=2):
        busy(milliseconds)
        batch.add_(1)
        del batch
    torch.cuda.synchronize()
    # Reserved memory: a tensor that the device still needs is not allocated any more when the host has released it.
    assert torch.cuda.max_memory_reserved() - before <= 6 * 4 * elements


@cuda
def test_every_kind_of_part_in_a_batch():
    x = torch.arange(6.0).view(2, 3)
    on_device = torch.ones(2, device=GPU)
    dense = {
        "pinned": x.clone().pin_memory(),
        "strided": x.T,
        "channels": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "expanded": torch.ones(1).expand(4),
        "every other": torch.arange(10)[::2],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7),
        "conjugate": torch.tensor([1 + 2j]).conj(),
    }
    for dtype in (torch.uint8, torch.bool, torch.int64, torch.bfloat16, torch.complex64):
        dense[str(dtype)] = torch.arange(64).to(dtype)
    others = {
        "nested": [x, (x, Pair(x, "word")), Batch(x, ["a", "b"])],
        "on device": on_device,
        "sparse": torch.eye(3).to_sparse(),
        "grad": torch.ones(2, requires_grad=True),
        "boxed": Boxed(x),
        "plain": (3, None, "text", b"bytes", 2.5),
    }
    (found,) = prefetch(iter([{**dense, **others}]), GPU)
    for name, tensor in dense.items():
        expected = tensor.to(GPU)
        assert found[name].device.type == "cuda"
        assert (found[name].stride(), found[name].dtype) == (expected.stride(), expected.dtype)
        assert torch.equal(found[name], expected)
    one, (two, pair), batch = found["nested"]
    for each in (one, two, pair.a, batch.images, found["boxed"].tensor):
        assert torch.equal(each, x.to(GPU))
    assert (pair.b, batch.names) == ("word", ["a", "b"])
    assert found["on device"] is on_device
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3, device=GPU))
    assert found["grad"].requires_grad
    assert found["plain"] == (3, None, "text", b"bytes", 2.5)


@cuda
def test_the_streams_of_the_source_and_of_the_caller_wait_for_each_other():
    def computed():
        for number in range(20):
            busy(3)
            yield torch.full((100_000,), float(number), device=GPU)

    assert [float(value(batch)) for batch in prefetch(computed(), GPU)] == [float(number) for number in range(20)]
    columns = torch.zeros(1_000_000, device=GPU)
    busy(30)
    columns.fill_(5)  # the source has to see this
    batches = prefetch((columns[start : start + 1000].clone() for start in range(0, 10_000, 1000)), GPU)
    assert [float(value(batch)) for batch in batches] == [5.0] * 10


@cuda
def test_the_caller_never_waits_for_the_device():
    """While the device is busy, the batches that are in flight are returned all the same."""
    full = threading.Event()

    def source():
        for number, batch in enumerate(numbers(10)):
            if number == 3:
                full.set()  # the batches before this one are sent
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
        for batch in prefetch(numbers(20), GPU):
            value(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        batches.close()


@cuda
@pytest.mark.parametrize("at", [0, 1, 7])
def test_an_exception_comes_in_place_of_its_batch(at):
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
@pytest.mark.parametrize("how", ["break", "close", "error", "garbage", "interrupt", "not started"])
def test_abandoning_the_iterator_ends_the_thread_and_closes_the_source(how):
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield torch.ones(100_000)
        finally:
            closed.set()

    source = endless()
    batches = prefetch(source, GPU)
    if how != "not started":
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
    assert closed.is_set() or how == "not started"
    assert float(torch.ones(1000, device=GPU).sum()) == 1000  # the device still works


@cuda
def test_many_iterations_in_sequence_and_at_once():
    for _ in range(20):
        assert len(list(prefetch(numbers(5), GPU))) == 5
    pairs = zip(prefetch(numbers(9), GPU), prefetch(numbers(9), GPU), strict=True)
    both = [(float(value(a)), float(value(b))) for a, b in pairs]
    assert both == [(float(number), float(number)) for number in range(9)]


@cuda
def test_a_cuda_graph_can_be_captured_meanwhile():
    """The allocations of the thread do not break a capture in thread-local mode."""
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
def test_batches_of_a_loader(workers):
    rows = torch.arange(200.0).view(100, 2)
    source = list(range(100)) if workers else rows
    loader = Loader(source, batch_size=8, shuffle=0, workers=workers, transform=triple if workers else None)
    assert not loader.needs_main_thread
    loader.prepare(0)
    for epoch in range(3):
        batches = loader.at(epoch=epoch)
        pairs = zip(prefetch(batches.raw(), GPU), list(batches), strict=True)
        assert all(torch.equal(batch.cpu(), expected) for batch, expected in pairs)
        loader.prepare(epoch + 1)
    loader.close()


# --- the background thread, without a GPU


class Source:
    """Yields numbers, and records which threads use it."""

    def __init__(self, stop=None, error=None):
        self.stop, self.error = stop, error
        self.count, self.closed = 0, threading.Event()
        self.threads = set()

    def __iter__(self):
        return self

    def __next__(self):
        self.threads.add(threading.current_thread())
        if self.count == self.stop:
            raise self.error or StopIteration
        self.count += 1
        return self.count

    def close(self):
        self.threads.add(threading.current_thread())
        self.closed.set()

    def is_closed(self):
        """Waits for the thread; returns whether it closed the source."""
        for thread in self.threads - {threading.current_thread()}:
            thread.join()
        return self.closed.is_set()


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_items_come_in_order_from_one_other_thread(depth):
    source = Source(stop=20)
    items = BackgroundIterator(source, depth=depth)
    assert list(items) == list(range(1, 21))
    assert source.is_closed()
    assert len(source.threads) == 1
    assert threading.current_thread() not in source.threads
    assert next(items, None) is None


@pytest.mark.parametrize("depth", [1, 3])
def test_the_thread_is_at_most_depth_items_ahead(depth):
    full, computed = threading.Event(), []

    def count():
        for number in itertools.count():
            computed.append(number)
            if number == depth - 1:
                full.set()
            yield number

    items = BackgroundIterator(count(), depth=depth)
    full.wait()
    assert len(computed) == depth  # nothing is taken yet
    assert next(items) == 0
    items.close()
    assert len(computed) <= depth + 1


@pytest.mark.parametrize("error", [LookupError("no such file"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_of_the_source_comes_in_its_place(error):
    source = Source(stop=3, error=error)
    items = BackgroundIterator(source, depth=8)
    assert [next(items), next(items), next(items)] == [1, 2, 3]
    with pytest.raises(type(error)) as caught:
        next(items)
    assert caught.value is error
    assert source.is_closed()
    assert list(items) == []


@pytest.mark.parametrize("how", ["close", "garbage", "break"])
def test_the_thread_ends_with_its_iterator(how):
    source = Source()
    items = BackgroundIterator(source, depth=2)
    for number in items:
        if number == 3:
            break
    if how == "close":
        items.close()
        assert source.closed.is_set() and list(items) == []
        items.close()  # a second time does nothing
    del items
    gc.collect()
    assert source.is_closed()
    assert not any(thread.is_alive() for thread in source.threads - {threading.current_thread()})


def test_its_own_thread_may_collect_it():
    """The thread can't wait for itself."""
    box, source, stored = [], Source(), threading.Event()

    def dropping():
        yield next(source)
        stored.wait()
        box.clear()
        yield from source

    box.append(BackgroundIterator(dropping(), depth=5))
    assert next(box[0]) == 1
    reference = weakref.ref(box[0])
    stored.set()
    assert source.is_closed()
    assert reference() is None


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit(0)"])
def test_a_program_ends_while_the_thread_runs(run, ending):
    code = f"""
        from stoker.data._prefetch import BackgroundIterator
        def source():
            try:
                while True:
                    yield torch.rand(1000)
            finally:
                print("closed")
        items = BackgroundIterator(source(), depth=2)
        next(items)
        {ending}
    """
    done = run(code)
    assert (done.status, done.out, done.err) == (0, "closed\n", "")


def test_ctrl_c_interrupts_waiting_for_an_item(run):
    code = """
        import signal, threading
        from stoker.data._prefetch import BackgroundIterator
        begun, stopped = threading.Event(), threading.Event()
        def source():
            begun.wait()
            os.kill(os.getpid(), signal.SIGINT)
            while not stopped.wait(3):  # Python misses a signal that comes just before it blocks
                os.kill(os.getpid(), signal.SIGINT)
            yield 1
        items = BackgroundIterator(source(), depth=2)
        try:
            begun.set()
            next(items)
        except KeyboardInterrupt:
            stopped.set()
            items.close()
            print("stopped", threading.active_count())
    """
    done = run(code)
    assert (done.status, done.out, done.err) == (0, "stopped 1\n", "")
