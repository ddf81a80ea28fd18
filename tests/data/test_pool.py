import os
import signal

import pytest
from torch.utils.data import IterableDataset

from stoker.data import Loader
from stoker.data._batches import Recipe, Task
from stoker.data._pool import Pool
from stoker.data._wire import packed
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


def test_an_exception_that_cannot_travel_is_told():
    with pytest.raises(
        SampleFailed, match=r"with an exception that can't travel:\n(.|\n)*TwoArguments: hard luck\nwhile"
    ):
        list(Loader([1], batch_size=1, transform=fail_oddly, workers=1))


def test_a_batch_that_cannot_travel_is_told():
    with pytest.raises(WrongType, match=r"have to travel between processes, and one can't .*unpicklable.* workers=0"):
        list(Loader([1], batch_size=1, batcher=unpicklable, workers=1))


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


def test_a_worker_that_exits_by_itself_is_an_error():
    with pytest.raises(WorkerDied, match="exited with 3"):
        list(Loader([1], batch_size=1, transform=leave, workers=1))


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


def test_answers_are_taken_by_number_and_those_before_are_dropped():
    pool = Pool(Recipe(list(range(8)), None, None, 0), 2)
    numbers = [pool.ask(packed(Task(0, number, [number]))) for number in range(8)]
    assert numbers == list(range(8))
    assert pool.answer(0).tolist() == [0]
    assert pool.answer(5).tolist() == [5]  # of the other process, whose 1 and 3 nobody wants any more
    assert pool.answer(2).tolist() == [2]
    assert pool.answer(6).tolist() == [6]
    assert pool.usable()
    pool.close()
    assert not pool.usable()
