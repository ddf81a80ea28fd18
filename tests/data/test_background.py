import gc
import itertools
import threading
import weakref

import pytest

from stoker.data._background import Background


class Source:
    """Numbers, and what is done with them."""

    def __init__(self, stop=None, error=None):
        self.stop, self.error = stop, error
        self.given, self.closed = 0, threading.Event()
        self.threads = set()

    def __iter__(self):
        return self

    def __next__(self):
        self.threads.add(threading.current_thread())
        if self.given == self.stop:
            raise self.error or StopIteration
        self.given += 1
        return self.given

    def close(self):
        self.threads.add(threading.current_thread())
        self.closed.set()


def ended(source):
    """Waits for the thread, which the source has seen."""
    for thread in source.threads - {threading.current_thread()}:
        thread.join()
    return source.closed.is_set()


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_everything_comes_in_order_from_one_other_thread(depth):
    source = Source(stop=20)
    made = Background(source, depth=depth)
    assert list(made) == list(range(1, 21))
    assert ended(source)
    assert len(source.threads) == 1
    assert threading.current_thread() not in source.threads
    assert next(made, "over") == "over"


@pytest.mark.parametrize("depth", [1, 3])
def test_only_so_many_are_made_ahead(depth):
    full, given = threading.Event(), []

    def counting():
        for number in itertools.count():
            given.append(number)
            if number == depth - 1:
                full.set()
            yield number

    made = Background(counting(), depth=depth)
    full.wait()
    assert len(given) == depth  # nothing is taken yet, and no more is made
    assert next(made) == 0
    made.close()
    assert len(given) <= depth + 1


@pytest.mark.parametrize("error", [LookupError("no such file"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_comes_out_in_its_place(error):
    source = Source(stop=3, error=error)
    made = Background(source, depth=8)
    assert [next(made), next(made), next(made)] == [1, 2, 3]
    with pytest.raises(type(error)) as caught:
        next(made)
    assert caught.value is error
    assert ended(source)
    assert list(made) == []


def test_closing_ends_the_thread_and_closes_the_source():
    source = Source()
    made = Background(source, depth=2)
    next(made)
    made.close()
    assert source.closed.is_set()
    assert not any(thread.is_alive() for thread in source.threads)
    assert list(made) == []
    made.close()  # again, which does nothing


def test_garbage_ends_the_thread():
    source = Source()
    made = Background(source, depth=2)
    next(made)
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    assert ended(source)


def test_a_walk_that_is_left_ends_the_thread():
    source = Source()
    for number in Background(source, depth=2):
        if number == 3:
            break
    gc.collect()
    assert ended(source)


def test_garbage_that_its_own_thread_collects():
    """The thread can't wait for itself."""
    box, source, kept = [], Source(), threading.Event()

    def dropping():
        yield next(source)
        kept.wait()
        box.clear()
        yield from source

    box.append(Background(dropping(), depth=5))
    assert next(box[0]) == 1
    gone = weakref.ref(box[0])
    kept.set()
    assert ended(source)
    assert gone() is None


def test_nothing_is_kept_of_what_was_taken():
    class Thing:
        pass

    made = Background((Thing() for _ in range(3)), depth=1)
    seen = [weakref.ref(thing) for thing in made]
    gc.collect()
    assert [each() for each in seen] == [None] * 3


@pytest.mark.parametrize("ending", ["", "import sys; sys.exit(0)", "next(made)"])
def test_a_program_ends_with_a_thread_under_way(run, ending):
    code = f"""
        from stoker.data._background import Background
        def source():
            try:
                while True:
                    yield torch.rand(1000)
            finally:
                print("closed")
        made = Background(source(), depth=2)
        next(made)
        {ending}
    """
    done = run(code)
    assert (done.status, done.out, done.err) == (0, "closed\n", "")


def test_ctrl_c_comes_out_while_nothing_is_made(run):
    code = """
        import signal, threading
        from stoker.data._background import Background
        begun, waiting = threading.Event(), threading.Event()
        def source():
            begun.wait()
            os.kill(os.getpid(), signal.SIGINT)
            waiting.wait()
            yield 1
        made = Background(source(), depth=2)
        try:
            begun.set()
            next(made)
        except KeyboardInterrupt:
            waiting.set()
            made.close()
            print("stopped", threading.active_count())
    """
    done = run(code)
    assert (done.status, done.out, done.err) == (0, "stopped 1\n", "")
