"""Worker processes: what they send, how they fail, and that none of them is left."""

import gc
import os
import select
import signal

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from stoker.data import Loader
from stoker.errors import SampleFailed, WorkerDied, WrongType
from tests.data.batches import plain, same, tensors


def fail_at_5(number):
    if number == 5:
        raise LookupError("no such file")
    return number


def own_pid(number):
    return os.getpid()


def add_noise(number):
    return number + torch.rand(()).item()


def children():
    """Processes whose parent this one is, zombies included."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(entry))
    return found


@pytest.fixture
def others():
    """Processes that earlier tests or the test runner started."""
    gc.collect()
    return children()


def wait_until_gone(pid):
    """Waits for the end of a process that is not a child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, _, _ = select.select([handle], [], [], 60)  # seconds
    os.close(handle)
    assert ended, "a worker outlives its program"


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


# --- what is sent between the processes

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16]
IMAGES = torch.arange(24.0).view(2, 3, 2, 2)
BATCHES = {
    "small": [torch.arange(6).view(2, 3).to(dtype) for dtype in DTYPES],
    "large": [torch.arange(600_000).view(2, -1).to(dtype) for dtype in DTYPES],  # through shared memory
    "part of a large one": torch.arange(1_000_000)[5:8],
    "strided": torch.arange(1_000_000).view(1000, 1000).T[2, :3],
    "channels last": [IMAGES.to(memory_format=torch.channels_last), torch.rand(4, 3, 200, 200).mT],
    "empty": torch.empty(0, 3),
    "number": torch.tensor(7),
    "expanded": torch.ones(1).expand(4),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "negative": torch.tensor([1 + 2j]).conj().imag,
    "nested": {"x": (torch.ones(2), [torch.zeros(1)])},
    "parameters": [torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)],
}


def send(samples):
    (name,) = samples
    return BATCHES[name]


def test_batches_arrive_as_they_were_built():
    names = list(BATCHES)
    for name, found in zip(names, Loader(names, batch_size=1, batcher=send, workers=2), strict=True):
        assert plain(found) == plain(BATCHES[name]), name
        for ours, theirs in zip(tensors(found), tensors(BATCHES[name]), strict=True):
            assert (type(ours), ours.dtype, ours.requires_grad) == (type(theirs), theirs.dtype, theirs.requires_grad)
            is_dense = theirs.is_contiguous() or name == "channels last"
            assert not is_dense or ours.stride() == theirs.stride(), name


def test_workers_stack_large_samples_as_torch_does():
    for samples in (
        [torch.rand(3, 200, 200) for _ in range(4)],
        [torch.rand(200, 200, 3).permute(2, 0, 1) for _ in range(4)],
        [torch.rand(100_000) > 0.5 for _ in range(4)],
        [torch.tensor(number) for number in range(40)],
    ):
        (batch,) = Loader(samples, batch_size=len(samples), workers=1)
        assert same(batch, torch.stack(samples))
        assert not batch.is_shared()
        batch.zero_()  # it is writable


def nest(samples):
    return torch.nested.nested_tensor(samples)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse invariant checks")
def test_workers_send_sparse_and_nested_tensors():
    samples = [torch.eye(100) * number for number in (1, 2)]
    (sparse,) = Loader([sample.to_sparse() for sample in samples], batch_size=2, workers=1)
    assert sparse.is_sparse and same(sparse.to_dense(), torch.stack(samples))
    rows = [torch.ones(2), torch.zeros(3)]
    (nested,) = Loader(rows, batch_size=2, batcher=nest, workers=1)
    assert nested.is_nested and plain(list(nested.unbind())) == plain(rows)


def test_tensors_beyond_32_megabytes_of_a_batch_are_shared_and_not_copied():
    samples = [(torch.rand(2**22), torch.rand(2**22)) for _ in range(2)]
    (batch,) = Loader(samples, batch_size=2, workers=1)
    assert same(batch, tuple(map(torch.stack, zip(*samples, strict=True))))
    assert [part.is_shared() for part in batch] == [False, True]


def test_a_batch_that_is_kept_does_not_change(others):
    """The processes exchange batches through memory that later batches use again."""
    samples = [(torch.full((5000,), float(number)), number) for number in range(40)]
    kept = list(Loader(samples, batch_size=2, workers=2))
    assert [plain(batch) for batch in kept] == [plain(batch) for batch in Loader(samples, batch_size=2)]
    assert len({part.data_ptr() for batch in kept for part in batch}) == 40


def test_many_batches_can_be_kept(run):
    """A tensor in shared memory of its own takes a file descriptor, of which a process often has 1024."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        kept = list(Loader(list(range(400)), batch_size=1, transform=float, workers=1))
        kept += [batch.sum() for batch in [*Loader([torch.ones(2**17)] * 100, batch_size=1, workers=1)]]
        print(len(kept))
    """
    done = run(code)
    assert (done.out, done.err) == ("500\n", "")


def large(number):
    return torch.full((100_000,), float(number))


def test_many_epochs_use_no_more_memory_and_files(others):
    loader = Loader(list(range(4)), batch_size=2, transform=large, workers=1)  # 800 kB per batch

    def iterate(epochs):
        for _ in range(epochs):
            for batch in loader:
                assert batch.shape == (2, 100_000)
            for _ in loader:
                break

    def resources():
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, len(os.listdir("/proc/self/fd"))

    iterate(3)
    before = resources()
    iterate(12)  # 20 MB of batches
    after = resources()
    assert after[0] - before[0] < 10e6
    assert after[1] <= before[1] + 4
    assert children() == others


# --- errors


def test_an_exception_keeps_its_type_and_has_the_traceback_of_the_worker():
    with pytest.raises(LookupError, match="no such file") as caught:
        list(Loader(list(range(8)), batch_size=2, transform=fail_at_5, workers=2))
    place, traceback = caught.value.__notes__
    assert place == "while loading sample 5 (epoch 0, batch 2)"
    assert "in a worker process:" in traceback
    assert "in fail_at_5" in traceback
    assert 'raise LookupError("no such file")' in traceback


class TwoArguments(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def fail_oddly(number):
    raise TwoArguments("hard", "luck")


def make_lambda(samples):
    return lambda: samples


class Functions(IterableDataset):
    def __iter__(self):
        yield lambda: 1


@pytest.mark.parametrize(
    ("source", "options", "error", "text"),
    [
        ([1], {"transform": fail_oddly}, SampleFailed, r"can't be pickled:\n(.|\n)*TwoArguments: hard luck\nwhile"),
        ([1], {"batcher": make_lambda}, WrongType, r"one can't be pickled .*make_lambda.* workers=0"),
        (Functions(), {}, WrongType, "are sent between processes, and one can't be pickled"),
    ],
)
def test_what_cannot_be_pickled_raises(source, options, error, text):
    with pytest.raises(error, match=text):
        list(Loader(source, batch_size=1, workers=1, **options))


def test_batches_before_the_failure_come_first_and_the_loader_works_again():
    loader = Loader(list(range(8)), batch_size=2, transform=fail_at_5, workers=2)
    seen = []
    for _ in range(2):
        with pytest.raises(LookupError):
            seen.extend(plain(batch) for batch in loader.at(epoch=0))
    assert seen == [[0, 1], [2, 3]] * 2
    assert plain(list(loader.at(epoch=0, batch=3))) == [[6, 7]]


class Breaks(IterableDataset):
    def __iter__(self):
        yield from range(5)
        raise OSError("the disk is gone")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_breaks_gives_the_same_batches_first(workers):
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(plain(batch) for batch in Loader(Breaks(), batch_size=2, workers=workers))
    assert seen == [[0, 1], [2, 3]]


def unpickle(worker, number):
    if os.getpid() != worker and number == 1:
        raise ArithmeticError("not here")
    return number


class Unloadable:
    """A batch that the worker can send, but the main process can't unpickle."""

    def __init__(self, samples):
        self.number = samples[0]

    def __reduce__(self):
        return unpickle, (os.getpid(), self.number)


def test_a_batch_that_cannot_be_unpickled_does_not_break_the_next_iteration():
    loader = Loader(list(range(6)), batch_size=1, batcher=Unloadable, workers=1)
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="not here"):
            list(loader)
        assert list(loader.at(epoch=0, batch=2)) == [2, 3, 4, 5]


def test_a_killed_worker_raises_and_does_not_hang():
    loader = Loader(list(range(1000)), batch_size=1, transform=own_pid, workers=2)
    with pytest.raises(WorkerDied, match="was killed by SIGKILL; most often the machine ran out of memory .*fewer wor"):
        for victim in loader:
            os.kill(int(victim), signal.SIGKILL)
    assert len(list(loader.at(epoch=0))) == 1000  # new processes are started


def test_a_worker_that_exits_raises():
    with pytest.raises(WorkerDied, match="exited with 3"):
        list(Loader([1], batch_size=1, transform=lambda number: os._exit(3), workers=1))


def test_a_dead_worker_is_noticed_although_another_process_holds_its_pipes(run):
    """As one that another thread forks in the same moment."""
    code = """
        from multiprocessing import popen_fork
        launch, others = popen_fork.Popen._launch, []
        def launch_two(self, process):
            pipe = os.pipe  # the fork comes after the pipes of the process are made
            def pipe_and_fork():
                made = pipe()
                if len(others) < 2:
                    others.append(os.fork())
                    if others[-1] == 0:
                        import time
                        time.sleep(60)
                        os._exit(0)
                return made
            os.pipe = pipe_and_fork
            launch(self, process)
            os.pipe = pipe
        popen_fork.Popen._launch = launch_two
        try:
            list(Loader([1], batch_size=1, transform=lambda number: os._exit(3), workers=1))
        except Exception as error:
            print(type(error).__name__)
        for other in others:
            os.kill(other, 9)
    """
    assert run(code).out == "WorkerDied\n"


# --- the life of the processes


class Growing:
    """A data set that a curriculum changes between epochs."""

    level = 0

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return self.level + number


@pytest.mark.parametrize("workers", [0, 2])
def test_every_iteration_sees_the_source_as_it_is_then(workers):
    source = Growing()
    loader = Loader(source, batch_size=4, workers=workers)
    for level in (0, 10, 20):
        source.level = level
        assert [batch.tolist() for batch in loader] == [[level, level + 1, level + 2, level + 3]]
    iterator, source.level = iter(loader), 30
    assert next(iterator)[0] == (30 if workers == 0 else 20)  # the workers started with `iter`, as torch's do
    loader.prepare(0)
    source.level = 40
    assert next(iter(loader.at(epoch=0)))[0] == (40 if workers == 0 else 30)


def test_each_iteration_has_processes_of_its_own_and_ends_them(others):
    loader = Loader(list(range(8)), batch_size=1, transform=own_pid, workers=2)
    first, second = ({int(pid) for pid in loader} for _ in range(2))
    assert len(first) == len(second) == 2
    assert first.isdisjoint(second) and os.getpid() not in first
    for _ in zip(loader, loader, loader, strict=True):
        assert len(children() - others) == 6
    assert children() == others


def test_dropping_the_iterator_or_the_loader_ends_the_processes(others):
    loader = Loader(list(range(50)), batch_size=1, transform=own_pid, workers=2)
    for iterable in (loader, loader.at(epoch=0)):
        batches = iter(iterable)
        next(batches)
        assert len(children() - others) == 2
        del batches
        assert children() == others
    batches = loader.at(epoch=0).raw()
    assert len(children() - others) == 2
    del batches  # nothing was read
    loader.prepare(1)
    assert len(children() - others) == 2
    del iterable, loader
    gc.collect()
    assert children() == others


ENDINGS = {
    "abandoned": "next(iter(loader))",
    "prepared": "loader.prepare(1)",
    "exit": "next(iter(loader)); sys.exit(7)",
    "error": "for _ in loader: sys.excepthook = lambda *_: None; 1 / 0",
    "killed": "loader.prepare(1); os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_program_leaves_no_process_and_prints_nothing(run, ending):
    code = f"""
        loader = Loader(list(range(100)), batch_size=1, transform=lambda number: os.getpid(), workers=2)
        print(int(next(iter(loader))), int(next(iter(loader.at(epoch=0, batch=1)))), flush=True)
        {ending}
    """
    done = run(code)
    assert done.err == ""
    for pid in done.out.split():
        wait_until_gone(int(pid))


def test_what_a_worker_prints_is_not_lost(run):
    code = """
        def show(number):
            print("seen", number, end="")
            print("warned", file=sys.stderr)
            return number
        print(*[len(batch) for batch in Loader([1], batch_size=1, transform=show, workers=1)])
    """
    done = run(code)
    assert (done.out, done.err) == ("seen 11\n", "warned\n")


def test_a_worker_prints_even_if_a_thread_is_printing_while_it_starts(run, tmp_path):
    """The thread holds the lock of a buffered file; the worker inherits it locked, and nobody ever unlocks it."""
    code = f"""
        import multiprocessing.util, threading
        multiprocessing.util._flush_std_streams = lambda: None  # the lock is taken between it and the fork
        readable, writable = os.pipe()
        sys.stdout = open(writable, "w")
        printing = threading.Thread(target=lambda: print("x" * 200_000), daemon=True)
        printing.start()
        while os.read(readable, 1) != b"x":
            pass
        loader = Loader([1, 2], batch_size=1, transform=lambda number: print(number, flush=True) or number, workers=1)
        batches = iter(loader)
        threading.Thread(target=lambda: [os.read(readable, 4096) for _ in range(200)], daemon=True).start()
        with open({str(tmp_path / "result")!r}, "w") as file:
            print(next(batches), file=file)
        os._exit(0)
    """
    run(code)
    assert (tmp_path / "result").read_text() == "tensor([1])\n"


def test_ctrl_c_reaches_only_the_main_process(run):
    code = """
        import signal
        loader = Loader(list(range(100)), batch_size=1, transform=int, workers=2)
        try:
            for _ in loader:
                os.killpg(0, signal.SIGINT)  # as a terminal does
        except KeyboardInterrupt:
            print("stopped")
    """
    done = run(code)
    assert (done.out, done.err) == ("stopped\n", "")


def test_workers_ignore_signals_even_while_they_start(run):
    code = """
        import signal, threading
        received = []
        sent = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        for number in sent:
            signal.signal(number, lambda number, frame: received.append((os.getpid(), number)))
        finished = threading.Event()
        def send_signals():
            while not finished.is_set():
                for number in sent:
                    os.killpg(0, number)
        sending = threading.Thread(target=send_signals)
        sending.start()
        for _ in range(4):
            loader = Loader(list(range(8)), batch_size=2, transform=int, workers=2)
            assert len(list(loader)) == 4
        finished.set()
        sending.join()
        print(set(received) == {(os.getpid(), number) for number in sent})
    """
    done = run(code)
    assert (done.out, done.err) == ("True\n", "")


def test_a_process_of_multiprocessing_ends_its_workers(run):
    code = """
        import multiprocessing
        def work():
            loader = Loader([1, 2], batch_size=1, transform=int, workers=1)
            kept.append(iter(loader))
            print(next(kept[0]), flush=True)
        kept = []
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        print(child.exitcode)
    """
    done = run(code)
    assert (done.out, done.err) == ("tensor([1])\n0\n", "")


def test_a_forked_process_does_not_use_what_was_prepared_for_its_parent(run):
    code = """
        loader = Loader([1, 2], batch_size=1, transform=lambda number: os.getppid(), workers=1)
        loader.prepare(0)
        child = os.fork()
        if child == 0:
            os._exit(0 if {int(pid) for pid in loader.at(epoch=0)} == {os.getpid()} else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert {int(pid) for pid in loader.at(epoch=0)} == {os.getpid()}
    """
    done = run(code)
    assert (done.status, done.err) == (0, "")


@pytest.mark.soak
def test_spawned_workers_and_what_cannot_be_sent_to_them(run):
    code = """
        from operator import neg
        torch.multiprocessing.set_start_method("spawn")
        print([batch.tolist() for batch in Loader(torch.arange(4), batch_size=2, transform=neg, workers=1)])
        try:
            list(Loader([1], batch_size=1, transform=lambda number: number, workers=1))
        except TypeError as error:
            print(type(error).__name__, error)
    """
    done = run(code)
    assert done.err == ""
    first, second = done.out.splitlines()
    assert first == "[[0, -1], [-2, -3]]"
    assert second.startswith("WrongType the source, transform or batcher can't be sent to a worker process")
    assert "a lambda or a local function can't be pickled" in second


# --- preparing the next epoch


def read(loader, **position):
    return plain(list(loader.at(**position)))


def test_a_prepared_epoch_is_built_before_anybody_iterates():
    readable, writable = os.pipe()
    loader = Loader(list(range(40)), batch_size=1, transform=lambda n: os.write(writable, bytes([n])) and n, workers=1)
    loader.prepare(0)
    assert [*os.read(readable, 1), *os.read(readable, 1)] == [0, 1]
    assert read(loader, epoch=0) == [[number] for number in range(40)]
    assert list(os.read(readable, 100)) == list(range(2, 40))  # none is read twice
    os.close(readable), os.close(writable)


INSTEAD = {
    "nothing": lambda loader: None,
    "another epoch": lambda loader: read(loader, epoch=5),
    "another batch": lambda loader: read(loader, epoch=1, batch=2),
    "another preparation": lambda loader: loader.prepare(7),
    "the same preparation": lambda loader: loader.prepare(1),
    "closing": lambda loader: loader.close(),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
def test_a_prepared_epoch_changes_no_batch_used_or_not(instead, inside, others):
    options = {"batch_size": 2, "shuffle": 5, "transform": add_noise}
    loader, expected = Loader(list(range(11)), workers=1, **options), Loader(list(range(11)), **options)
    batches = iter(loader.at(epoch=0))
    found = [plain(next(batches))]
    if not inside:
        found += plain(list(batches))
    loader.prepare(1)
    instead(loader)
    found += plain(list(batches))
    assert found == read(expected, epoch=0)
    assert read(loader, epoch=1) == read(expected, epoch=1)
    loader.close()
    assert children() == others


def test_an_epoch_prepared_by_processes_that_died_is_built_again(others):
    loader = Loader([0, 1], batch_size=1, transform=own_pid, workers=1)
    loader.prepare(1)
    (victim,) = children() - others
    kill(victim)
    ((pid,), _) = read(loader, epoch=1)
    assert pid != victim


def test_prepare_and_close_do_nothing_without_workers():
    for source in (torch.arange(4), [1, 2], DataLoader([1, 2]), Breaks()):
        loader = Loader(source, **({} if isinstance(source, DataLoader) else {"batch_size": 2}))
        state = torch.get_rng_state()
        loader.prepare(1)
        loader.close()
        assert torch.equal(torch.get_rng_state(), state)
