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
from tests.data.batches import plain, same


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
BATCHES = {
    "small": [torch.arange(6).view(2, 3).to(dtype) for dtype in DTYPES],
    "large": [torch.arange(600_000).view(2, -1).to(dtype) for dtype in DTYPES],  # through shared memory
    "part of a large one": torch.arange(1_000_000)[5:8],
    "strided": torch.arange(1_000_000).view(1000, 1000).T[2, :3],
    "empty": torch.empty(0, 3),
    "number": torch.tensor(7),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "negative": torch.tensor([1 + 2j]).conj().imag,
    "nested": {"x": (torch.ones(2), [torch.zeros(1)])},
}


def send(samples):
    (name,) = samples
    return BATCHES[name]


def test_batches_arrive_as_they_were_built():
    names = list(BATCHES)
    loader = Loader(names, batch_size=1, batcher=send, workers=2)
    for name, found in zip(names, loader, strict=True):
        assert plain(found) == plain(BATCHES[name]), name
        if name in ("small", "large"):
            assert [each.dtype for each in found] == DTYPES
    loader.close()


STACKS = {
    "images": [torch.rand(3, 200, 200) for _ in range(4)],
    "channels last": [torch.rand(200, 200, 3).permute(2, 0, 1) for _ in range(4)],
    "numbers": [torch.tensor(number) for number in range(40)],
    "booleans": [torch.rand(100_000) > 0.5 for _ in range(4)],
    "empty": [torch.empty(0, 3) for _ in range(4)],
}


@pytest.mark.parametrize("samples", STACKS.values(), ids=STACKS)
def test_workers_stack_large_samples_as_torch_does(samples):
    (batch,) = Loader(samples, batch_size=len(samples), workers=1)
    assert same(batch, torch.stack(samples))
    assert batch.is_shared() == (batch.nbytes > 2**18)
    batch.zero_()  # it is writable


def test_many_small_batches_can_be_kept(run):
    """Each tensor in shared memory takes a file descriptor, of which a process often has 1024."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        kept = list(Loader(list(range(400)), batch_size=1, transform=float, workers=1))
        print(len(kept))
    """
    done = run(code)
    assert (done.out, done.err) == ("400\n", "")


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
        (worker,) = children() - others
        return resident, len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{worker}/fd"))

    iterate(20)
    before = resources()
    iterate(100)  # 160 MB of batches
    after = resources()
    assert after[0] - before[0] < 20e6
    assert after[1] <= before[1] + 4
    assert after[2] <= before[2] + 4


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


@pytest.mark.parametrize("workers", [0, 1, 2])
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
    assert {int(pid) for pid in loader.at(epoch=0)}.isdisjoint({int(victim)})  # new processes are started


# --- the life of the processes


def test_processes_are_kept_across_epochs():
    loader = Loader(list(range(8)), batch_size=1, transform=own_pid, workers=2)
    first, second = ({int(pid) for pid in loader} for _ in range(2))
    assert first == second
    assert len(first) == 2
    assert os.getpid() not in first


def test_simultaneous_iterations_leave_one_set_of_processes(others):
    loader = Loader(list(range(8)), batch_size=1, transform=own_pid, workers=1)
    for _ in zip(loader, loader, loader, strict=True):
        assert len(children() - others) == 3
    assert len(children() - others) == 1


def test_garbage_collection_ends_the_processes(others):
    for breaks, prepares in ((False, False), (True, False), (False, True)):
        loader = Loader(list(range(50)), batch_size=1, transform=own_pid, workers=2)
        for _ in loader:
            if breaks:
                break
        if prepares:
            loader.prepare(1)
        assert len(children() - others) == 2
        del loader
        gc.collect()
        assert children() == others


ENDINGS = {
    "abandoned": "next(iter(loader))",
    "in progress": "batches = iter(loader); next(batches)",
    "unused": "",
    "prepared": "list(loader); loader.prepare(1)",
    "closed": "loader.prepare(1); loader.close()",
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
    done = run(
        "print(*[len(b) for b in Loader([1], batch_size=1, transform=lambda n: print('seen', n) or n, workers=1)])"
    )
    assert done.out == "seen 1\n1\n"


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


def test_a_forked_process_starts_its_own_workers(run):
    code = """
        loader = Loader([1, 2], batch_size=1, transform=lambda number: os.getpid(), workers=1)
        mine = {int(pid) for pid in loader}
        child = os.fork()
        if child == 0:
            theirs = {int(pid) for pid in loader}
            os._exit(0 if theirs.isdisjoint(mine) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert {int(pid) for pid in loader} == mine
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


class Traced:
    """Samples that report when they are read, in whichever process."""

    def __init__(self, path, count):
        self.path, self.count = str(path), count
        os.mkfifo(self.path)
        self.pipe = os.open(self.path, os.O_RDWR)

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        pipe = os.open(self.path, os.O_WRONLY)
        os.write(pipe, bytes([number]))
        os.close(pipe)
        return number

    def wait_for(self, count):
        """The numbers of the next samples that are read."""
        return [os.read(self.pipe, 1)[0] for _ in range(count)]

    def is_quiet(self):
        return not select.select([self.pipe], [], [], 0)[0]


@pytest.fixture
def traced(tmp_path):
    made = []
    yield lambda count: made.append(Traced(tmp_path / "read", count)) or made[0]
    os.close(made[0].pipe)


def test_a_prepared_epoch_is_built_before_anybody_iterates(traced):
    source = traced(40)
    loader = Loader(source, batch_size=1, workers=1)
    loader.prepare(0)
    assert source.wait_for(2) == [0, 1]
    batches = iter(loader.at(epoch=0))
    assert source.is_quiet()
    assert plain(list(batches)) == [[number] for number in range(40)]
    assert source.wait_for(38) == list(range(2, 40))  # none is read twice
    assert source.is_quiet()


def test_the_next_epoch_follows_the_last_batch_of_this_one(traced):
    source = traced(6)
    loader = Loader(source, batch_size=1, workers=2)
    batches = iter(loader.at(epoch=0))
    next(batches)
    loader.prepare(1)
    assert plain(list(batches)) == [[number] for number in range(1, 6)]
    assert sorted(source.wait_for(6 + 4)) == sorted([*range(6), *range(4)])  # and the first four of the next epoch
    assert read(loader, epoch=1) == [[number] for number in range(6)]
    assert sorted(source.wait_for(2)) == [4, 5]
    assert source.is_quiet()


@pytest.mark.parametrize(
    "workers", [0, 1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("when", ["first", "middle", "last", "after"])
def test_preparing_changes_no_batch_and_starts_no_process(workers, when, others):
    options = {"batch_size": 2, "shuffle": 5, "transform": add_noise}
    loader = Loader(list(range(11)), workers=workers, **options)
    expected = [read(Loader(list(range(11)), **options), epoch=epoch) for epoch in range(3)]
    moment = {"first": 0, "middle": 3, "last": 5, "after": 6}[when]
    for epoch in range(3):
        found = []
        for place, batch in enumerate(loader.at(epoch=epoch)):
            if place == moment:
                loader.prepare(epoch + 1)
                loader.prepare(epoch + 1)
            found.append(plain(batch))
        if when == "after":
            loader.prepare(epoch + 1)
        assert found == expected[epoch]
        assert len(children() - others) == workers


INSTEAD = {
    "another epoch": lambda loader: read(loader, epoch=5),
    "another batch": lambda loader: read(loader, epoch=1, batch=2),
    "another preparation": lambda loader: loader.prepare(7),
    "a simultaneous iteration": lambda loader: next(iter(loader.at(epoch=5))),
    "closing": lambda loader: loader.close(),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
def test_a_prepared_epoch_that_is_not_used_changes_nothing(instead, inside, others):
    loader = Loader(list(range(11)), batch_size=2, shuffle=5, workers=2)
    plain_loader = Loader(list(range(11)), batch_size=2, shuffle=5)
    batches = iter(loader.at(epoch=0))
    found = [plain(next(batches))]
    if not inside:
        found += plain(list(batches))
    loader.prepare(1)
    instead(loader)
    found += plain(list(batches))
    assert found == read(plain_loader, epoch=0)
    assert read(loader, epoch=1) == read(plain_loader, epoch=1)
    assert len(children() - others) == 2
    loader.close()
    assert children() == others
    assert read(loader, epoch=1) == read(plain_loader, epoch=1)  # with new processes


def test_an_epoch_prepared_by_processes_that_died_is_built_again():
    loader = Loader([0, 1], batch_size=1, transform=own_pid, workers=1)
    (victim,) = {pid for (pid,) in read(loader, epoch=0)}
    loader.prepare(1)
    kill(victim)
    ((pid,), _) = read(loader, epoch=1)
    assert pid != victim
    kill(pid)
    loader.prepare(2)
    assert len(read(loader, epoch=2)) == 2


def test_a_failure_in_one_epoch_does_not_spoil_the_prepared_one():
    loader = Loader(list(range(8)), batch_size=2, transform=fail_at_5, workers=1)
    for _ in range(3):
        loader.prepare(0)
        batches = iter(loader.at(epoch=0))
        assert plain(next(batches)) == [0, 1]
        loader.prepare(1)
        with pytest.raises(LookupError):
            list(batches)
        assert plain(next(iter(loader.at(epoch=1)))) == [0, 1]


def test_one_thread_may_prepare_while_another_iterates(run):
    """In a process of its own: the test runner has threads, whose locks a forked worker would inherit."""
    code = """
    import threading
    from stoker.data import Loader

    def read(loader, epoch):
        return [batch.tolist() for batch in loader.at(epoch=epoch)]

    loader = Loader(list(range(30)), batch_size=1, shuffle=2, workers=2)
    expected = Loader(list(range(30)), batch_size=1, shuffle=2)
    for epoch in range(8):
        found = []
        thread = threading.Thread(target=lambda: found.extend(read(loader, epoch)))
        thread.start()
        loader.prepare(epoch + 1)
        thread.join()
        print(found == read(expected, epoch))
    """
    assert run(code).out.split() == ["True"] * 8


def test_prepare_and_close_do_nothing_without_workers():
    for source in (torch.arange(4), [1, 2], DataLoader([1, 2]), Breaks()):
        loader = Loader(source, **({} if isinstance(source, DataLoader) else {"batch_size": 2}))
        state = torch.get_rng_state()
        loader.prepare(1)
        loader.close()
        assert torch.equal(torch.get_rng_state(), state)
