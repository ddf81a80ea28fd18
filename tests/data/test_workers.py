import gc
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import IterableDataset

from stoker.data import Loader
from stoker.errors import SampleFailed, WorkerDied, WrongType


class TwoArguments(Exception):
    """One that can be pickled, and then not be made again."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def fail_at_5(number):
    if number == 5:
        raise LookupError("no such file")
    return number


def fail_oddly(number):
    raise TwoArguments("hard", "luck")


def unpicklable(samples):
    return lambda: samples


def own_pid(number):
    return os.getpid()


def leave(number):
    os._exit(3)


def large(number):
    return torch.full((100_000,), float(number))


def children():
    """Processes whose parent we are, zombies included."""
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


# A Python that has torch and stoker imported, and forks a child for each program: a real process with a real end,
# without the seconds that the imports take.
LAUNCHER = """
import json, os, sys, torch
from stoker.data import Loader
for line in sys.stdin:
    code, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.setsid()
for stream, path in ((1, out), (2, err)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
exec(code, globals())
"""


@pytest.fixture(scope="module")
def launcher():
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], env=buffered, **pipes) as it:
        yield it
        it.stdin.close()


@pytest.fixture
def run(launcher, tmp_path):
    """Runs a program as a user would, and gives its exit status, its output and its errors."""

    def run(code):
        out, err = tmp_path / "out", tmp_path / "err"
        print(json.dumps([textwrap.dedent(code), str(out), str(err)]), file=launcher.stdin, flush=True)
        status = int(launcher.stdout.readline())
        return SimpleNamespace(status=status, out=out.read_text(), err=err.read_text())

    return run


def test_an_exception_keeps_its_type_and_says_where_it_was():
    with pytest.raises(LookupError, match="no such file") as caught:
        list(Loader(list(range(8)), batch_size=2, transform=fail_at_5, workers=2))
    where, traceback = caught.value.__notes__
    assert where == "while loading sample 5 (epoch 0, batch 2)"
    assert "in a worker process:" in traceback
    assert "in fail_at_5" in traceback
    assert 'raise LookupError("no such file")' in traceback


def test_the_note_is_the_same_without_workers():
    with pytest.raises(LookupError, match="no such file") as caught:
        list(Loader(list(range(8)), batch_size=2, transform=fail_at_5).at(epoch=3))
    assert caught.value.__notes__ == ["while loading sample 5 (epoch 3, batch 2)"]


def test_batches_before_the_failure_are_given_and_the_loader_goes_on():
    loader = Loader(list(range(8)), batch_size=2, transform=fail_at_5, workers=2)
    seen = []
    for _ in range(2):
        with pytest.raises(LookupError):
            seen.extend(batch.tolist() for batch in loader.at(epoch=0))
    assert seen == [[0, 1], [2, 3]] * 2
    assert [batch.tolist() for batch in loader.at(epoch=0, batch=3)] == [[6, 7]]


class Breaks(IterableDataset):
    def __iter__(self):
        yield from range(5)
        raise OSError("the disk is gone")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_that_breaks_gives_the_same_batches_first(workers):
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(batch.tolist() for batch in Loader(Breaks(), batch_size=2, workers=workers))
    assert seen == [[0, 1], [2, 3]]


def test_an_exception_that_cannot_travel_is_told():
    with pytest.raises(
        SampleFailed, match=r"with an exception that can't travel:\n(.|\n)*TwoArguments: hard luck\nwhile"
    ):
        list(Loader([1], batch_size=1, transform=fail_oddly, workers=1))


def test_a_batch_that_cannot_travel_is_told():
    with pytest.raises(WrongType, match=r"have to travel between processes, and one can't .*unpicklable.* workers=0"):
        list(Loader([1], batch_size=1, batcher=unpicklable, workers=1))


def arrive(home, number):
    if os.getpid() != home and number == 1:
        raise ArithmeticError("not here")
    return number


class Homesick:
    """A batch that its worker can send, and that nobody else can open."""

    def __init__(self, samples):
        self.number = samples[0]

    def __reduce__(self):
        return arrive, (os.getpid(), self.number)


def test_a_batch_that_breaks_on_arrival_does_not_break_the_next_walk():
    loader = Loader(list(range(6)), batch_size=1, batcher=Homesick, workers=1)
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="not here"):
            list(loader)
        assert list(loader.at(epoch=0, batch=2)) == [2, 3, 4, 5]


class Functions(IterableDataset):
    def __iter__(self):
        yield lambda: 1


def test_a_sample_that_cannot_travel_is_told():
    with pytest.raises(WrongType, match="have to travel between processes"):
        list(Loader(Functions(), batch_size=1, workers=1))


def test_a_killed_worker_is_an_error_and_not_a_hang():
    loader = Loader(list(range(1000)), batch_size=1, transform=own_pid, workers=2)
    with pytest.raises(
        WorkerDied, match="was killed by SIGKILL; most often the machine ran out of memory .*fewer workers"
    ):
        for victim in loader:
            os.kill(int(victim), signal.SIGKILL)
    assert {int(pid) for pid in loader.at(epoch=0)}.isdisjoint({int(victim)})  # and the next walk has new ones


def test_a_worker_killed_between_epochs_is_replaced():
    loader = Loader([0, 1], batch_size=1, transform=own_pid, workers=1)
    (victim,) = {int(pid) for pid in loader}
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
    (next_one,) = {int(pid) for pid in loader}
    assert next_one != victim


def test_a_worker_that_exits_by_itself_is_an_error():
    with pytest.raises(WorkerDied, match="exited with 3"):
        list(Loader([1], batch_size=1, transform=leave, workers=1))


def test_processes_are_kept_from_epoch_to_epoch():
    loader = Loader(list(range(8)), batch_size=1, transform=own_pid, workers=2)
    first, second = ({int(pid) for pid in loader} for _ in range(2))
    assert first == second
    assert len(first) == 2
    assert os.getpid() not in first


def test_walks_side_by_side_leave_one_set_of_processes():
    gc.collect()
    before = children()
    loader = Loader(list(range(8)), batch_size=1, transform=own_pid, workers=1)
    for _ in zip(loader, loader, loader, strict=True):
        assert len(children() - before) == 3
    assert len(children() - before) == 1


def test_garbage_leaves_no_processes():
    gc.collect()  # what other tests left
    before = children()
    for left_early in (False, True):
        loader = Loader(list(range(50)), batch_size=1, transform=own_pid, workers=2)
        for _ in loader:
            if left_early:
                break
        assert len(children() - before) == 2
        del loader
        gc.collect()
        assert children() == before


def test_many_epochs_need_no_more_than_a_few():
    loader = Loader(list(range(4)), batch_size=2, transform=large, workers=1)  # 800 kB a batch: through shared memory

    def walk(epochs):
        for _ in range(epochs):
            for batch in loader:
                assert batch.shape == (2, 100_000)
            for _ in loader:  # and left early
                break

    def resources():
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        fds = len(os.listdir("/proc/self/fd"))
        (worker,) = children() - others
        return resident, fds, len(os.listdir(f"/proc/{worker}/fd")), len(os.listdir("/dev/shm"))

    gc.collect()
    others = children()
    walk(20)
    before = resources()
    walk(100)  # 160 MB of batches
    after = resources()
    assert after[0] - before[0] < 20e6
    assert after[1] <= before[1] + 4
    assert after[2] <= before[2] + 4
    assert after[3] <= before[3]


def test_many_small_batches_can_be_held(run):
    """Each tensor in shared memory would hold a file descriptor, of which a process often has 1024."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        held = list(Loader(list(range(400)), batch_size=1, transform=float, workers=1))
        print(len(held))
    """
    done = run(code)
    assert (done.out, done.err) == ("400\n", "")


ENDINGS = {
    "whole": "list(loader)",
    "left early": "next(iter(loader))",
    "held": "walk = iter(loader); next(walk)",
    "never walked": "",
    "exit": "next(iter(loader)); sys.exit(7)",
    "error": "for _ in loader: sys.excepthook = lambda *_: None; 1 / 0",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_program_ends_with_no_process_and_no_word(run, ending):
    code = f"""
        def pid(number):
            return os.getpid()
        loader = Loader(list(range(100)), batch_size=1, transform=pid, workers=2)
        print(int(next(iter(loader))), int(next(iter(loader.at(epoch=0, batch=1)))), flush=True)
        {ending}
    """
    done = run(code)
    assert done.err == ""
    for pid in done.out.split():
        assert not os.path.exists(f"/proc/{pid}")


def test_workers_of_a_killed_program_end_too(run):
    code = """
        import signal
        def pid(number):
            return os.getpid()
        loader = Loader(list(range(100)), batch_size=1, transform=pid, workers=2)
        print(*{int(pid) for pid in loader}, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run(code)
    assert done.status == -signal.SIGKILL
    pids = done.out.split()
    assert len(pids) == 2
    for pid in pids:
        try:
            handle = os.pidfd_open(int(pid))
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([handle], [], [], 60)  # seconds
        os.close(handle)
        assert ended, "a worker outlives its program"


def test_what_a_worker_prints_is_not_lost(run):
    done = run(
        "print(*[len(b) for b in Loader([1], batch_size=1, transform=lambda n: print('seen', n) or n, workers=1)])"
    )
    assert done.out == "seen 1\n1\n"


def test_ctrl_c_is_for_the_main_process(run):
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


def test_a_signal_to_the_whole_group_is_for_the_main_process_even_while_workers_start(run):
    code = """
        import signal, threading
        heard = []
        sent = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        for number in sent:
            signal.signal(number, lambda number, frame: heard.append((os.getpid(), number)))
        over = threading.Event()
        def shout():
            while not over.is_set():
                for number in sent:
                    os.killpg(0, number)
        shouting = threading.Thread(target=shout)
        shouting.start()
        for _ in range(20):
            loader = Loader(list(range(8)), batch_size=2, transform=int, workers=2)
            assert len(list(loader)) == 4
        over.set()
        shouting.join()
        print(set(heard) == {(os.getpid(), number) for number in sent})
    """
    done = run(code)
    assert (done.out, done.err) == ("True\n", "")


def test_a_process_that_multiprocessing_started_ends_its_workers(run):
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


def test_a_forked_child_starts_its_own(run):
    code = """
        def pid(number):
            return os.getpid()
        loader = Loader([1, 2], batch_size=1, transform=pid, workers=1)
        mine = {int(p) for p in loader}
        child = os.fork()
        if child == 0:
            theirs = {int(p) for p in loader}
            os._exit(0 if theirs.isdisjoint(mine) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert {int(p) for p in loader} == mine
    """
    done = run(code)
    assert (done.status, done.err) == (0, "")


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
    assert "a lambda or a local function can't travel" in second
