import gc
import os
import select
import signal
import threading

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from stoker.data import Loader


def fail_at_5(number):
    if number == 5:
        raise LookupError("no such file")
    return number


def own_pid(number):
    return os.getpid()


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


def test_a_worker_killed_between_epochs_is_replaced():
    loader = Loader([0, 1], batch_size=1, transform=own_pid, workers=1)
    (victim,) = {int(pid) for pid in loader}
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
    (next_one,) = {int(pid) for pid in loader}
    assert next_one != victim


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
        gone(int(pid))


def gone(pid):
    """Waits for the end of a process that isn't ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, _, _ = select.select([handle], [], [], 60)  # seconds
    os.close(handle)
    assert ended, "a worker outlives its program"


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


def numbers(loader, **place):
    return [batch.tolist() for batch in loader.at(**place)]


class Traced:
    """Samples that say when they are made, in whichever process."""

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

    def made(self, count):
        """The next samples that are made, waited for."""
        return [os.read(self.pipe, 1)[0] for _ in range(count)]

    def quiet(self):
        return not select.select([self.pipe], [], [], 0)[0]


@pytest.fixture
def traced(tmp_path):
    made = []
    yield lambda count: made.append(Traced(tmp_path / "made", count)) or made[0]
    os.close(made[0].pipe)


def test_a_prepared_epoch_is_made_before_anybody_walks_it(traced):
    source = traced(40)
    loader = Loader(source, batch_size=1, workers=1)
    loader.prepare(0)
    assert source.made(2) == [0, 1]  # nobody has walked yet
    walk = iter(loader.at(epoch=0))
    assert source.quiet()
    assert [batch.tolist() for batch in walk] == [[number] for number in range(40)]
    assert source.made(38) == list(range(2, 40))  # and none of them twice
    assert source.quiet()


def test_the_next_epoch_is_begun_when_the_last_batch_of_this_one_is_made(traced):
    source = traced(6)
    loader = Loader(source, batch_size=1, workers=2)
    walk = iter(loader.at(epoch=0))
    next(walk)
    loader.prepare(1)
    assert [batch.tolist() for batch in walk] == [[number] for number in range(1, 6)]
    # all of this one, and the first of the next, with nobody waiting for them
    assert sorted(source.made(6 + 4)) == sorted([*range(6), *range(4)])
    assert numbers(loader, epoch=1) == [[number] for number in range(6)]
    assert sorted(source.made(2)) == [4, 5]
    assert source.quiet()  # none was made twice


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("when", ["before", "first", "middle", "last", "after"])
def test_preparing_changes_no_batch_and_starts_no_process(workers, when):
    gc.collect()
    before = children()
    loader = Loader(list(range(11)), batch_size=2, shuffle=5, workers=workers, transform=drawn)
    expected = [numbers(Loader(list(range(11)), batch_size=2, shuffle=5, transform=drawn), epoch=e) for e in range(3)]
    moment = {"before": -1, "first": 0, "middle": 3, "last": 5, "after": 6}[when]
    for epoch in range(3):
        found = []
        for place, batch in enumerate(loader.at(epoch=epoch)):
            if place == moment:
                loader.prepare(epoch + 1)
                loader.prepare(epoch + 1)
            found.append(batch.tolist())
        if when == "after":
            loader.prepare(epoch + 1)
        assert found == expected[epoch]
        assert len(children() - before) == workers


def drawn(number):
    return number + torch.rand(()).item()


OTHERWISE = {
    "another epoch": lambda loader: numbers(loader, epoch=5),
    "another batch": lambda loader: numbers(loader, epoch=1, batch=2),
    "another preparation": lambda loader: loader.prepare(7),
    "a walk beside": lambda loader: next(iter(loader.at(epoch=5))),
    "closing": lambda loader: loader.close(),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("otherwise", OTHERWISE.values(), ids=OTHERWISE)
def test_a_prepared_epoch_that_is_given_up(otherwise, inside):
    gc.collect()
    before = children()
    loader = Loader(list(range(11)), batch_size=2, shuffle=5, workers=2)
    plain = Loader(list(range(11)), batch_size=2, shuffle=5)
    walk = iter(loader.at(epoch=0))
    found = [next(walk).tolist()]
    if not inside:
        found += [batch.tolist() for batch in walk]
    loader.prepare(1)
    otherwise(loader)
    found += [batch.tolist() for batch in walk]
    assert found == numbers(plain, epoch=0)
    assert numbers(loader, epoch=1) == numbers(plain, epoch=1)
    assert len(children() - before) == 2
    loader.close()
    assert children() == before
    assert numbers(loader, epoch=1) == numbers(plain, epoch=1)  # with new ones


def test_a_walk_that_is_left_early_leaves_what_is_prepared():
    loader = Loader(list(range(40)), batch_size=2, shuffle=5, workers=2)
    for epoch in range(3):
        for place, _ in enumerate(loader.at(epoch=epoch)):
            if place == 1:
                loader.prepare(epoch + 1)
            if place == 4:
                break
        expected = numbers(Loader(list(range(40)), batch_size=2, shuffle=5), epoch=epoch + 1)
        assert numbers(loader, epoch=epoch + 1) == expected


def test_a_prepared_epoch_of_processes_that_died_is_made_again():
    loader = Loader([0, 1], batch_size=1, transform=own_pid, workers=1)
    (victim,) = {pid for (pid,) in numbers(loader, epoch=0)}
    loader.prepare(1)
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
    ((pid,), _) = numbers(loader, epoch=1)
    assert pid != victim
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    loader.prepare(2)
    assert len(numbers(loader, epoch=2)) == 2


def test_a_failure_in_one_epoch_leaves_the_prepared_one():
    loader = Loader(list(range(8)), batch_size=2, transform=fail_at_5, workers=1)
    for _ in range(3):
        loader.prepare(0)
        walk = iter(loader.at(epoch=0))
        assert next(walk).tolist() == [0, 1]
        loader.prepare(1)
        with pytest.raises(LookupError):
            list(walk)
        assert next(iter(loader.at(epoch=1))).tolist() == [0, 1]


def test_a_prepared_epoch_whose_answers_another_walk_has_dropped_is_made_again():
    """As two threads at once can leave it."""
    loader = Loader(list(range(11)), batch_size=2, shuffle=5, workers=2)
    workers = loader._feed.maker
    loader.prepare(1)
    prepared = workers._prepared
    numbers(loader, epoch=0)
    workers._prepared = prepared
    assert numbers(loader, epoch=1) == numbers(Loader(list(range(11)), batch_size=2, shuffle=5), epoch=1)


def test_preparing_beside_a_thread_that_walks():
    loader = Loader(list(range(30)), batch_size=1, shuffle=2, workers=2)
    plain = Loader(list(range(30)), batch_size=1, shuffle=2)
    for epoch in range(20):
        found = []
        walking = threading.Thread(target=lambda: found.extend(numbers(loader, epoch=epoch)))  # noqa: B023
        walking.start()
        loader.prepare(epoch + 1)
        walking.join()
        assert found == numbers(plain, epoch=epoch)


def test_garbage_leaves_nothing_of_a_prepared_epoch():
    gc.collect()
    before = children()
    for walked in (False, True):
        loader = Loader(list(range(50)), batch_size=1, workers=2)
        if walked:
            numbers(loader, epoch=0)
        loader.prepare(1)
        assert len(children() - before) == 2
        del loader
        gc.collect()
        assert children() == before


def test_nothing_to_prepare_is_no_error():
    for source in (torch.arange(4), [1, 2], DataLoader([1, 2]), Breaks()):
        loader = Loader(source, **({} if isinstance(source, DataLoader) else {"batch_size": 2}))
        state = torch.get_rng_state()
        loader.prepare(1)
        loader.close()
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "loader.close(); print('closed', flush=True)"])
def test_a_program_that_prepared_leaves_no_process(run, end):
    code = f"""
        def pid(number):
            return os.getpid()
        loader = Loader(list(range(100)), batch_size=1, transform=pid, workers=2)
        print(*{{int(pid) for pid in loader}}, flush=True)
        loader.prepare(1)
        {end}
    """
    done = run(code)
    assert done.err == ""
    for pid in done.out.splitlines()[0].split():
        gone(int(pid))
