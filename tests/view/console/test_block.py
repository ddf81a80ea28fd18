"""The block and what comes between, on a screen."""

import contextlib
import io
import sys

from stoker.view.console._block import Block, holds_a_block
from tests.view.console.scenes import screen_of, visible

FIRST, SECOND = ["", "one", "two"], ["", "three", "four", "five"]


@contextlib.contextmanager
def screen():
    """A stream that is `sys.stdout`, and a block on it (no fixture: pytest has its own stdout for each phase)."""
    before, stream = sys.stdout, io.StringIO()
    sys.stdout = stream
    block = Block(stream)
    block.open()
    try:
        yield stream, block
    finally:
        block.close()
        sys.stdout = before


def lines(stream):
    return visible(screen_of(stream.getvalue()))


def test_drawings_replace_each_other():
    with screen() as (stream, block):
        block.draw(FIRST)
        assert lines(stream) == FIRST
        block.draw(SECOND)
        assert lines(stream) == SECOND
        block.draw(FIRST)
        assert lines(stream) == FIRST


def test_what_is_printed_stands_above_once_and_the_block_is_whole():
    with screen() as (stream, block):
        print("before")
        block.draw(FIRST)
        print("hello", "world")
        assert lines(stream) == ["before", "hello world", *FIRST], "at once, not at the next drawing"
        print("a\nb")
        print()
        block.draw(SECOND)
        print("c")
        assert lines(stream) == ["before", "hello world", "a", "b", "", "c", *SECOND]


def test_a_line_in_pieces_is_one_line():
    with screen() as (stream, block):
        block.draw(FIRST)
        print("a", end="")
        print("b", end="", flush=True)
        sys.stdout.writelines(["c", "d\n"])
        assert lines(stream) == ["abcd", *FIRST]


def test_a_drawing_ends_somebodys_unfinished_line():
    with screen() as (stream, block):
        block.draw(FIRST)
        print("dots...", end="")
        block.draw(SECOND)
        print("more")
        assert lines(stream) == ["dots...", "more", *SECOND]


def test_a_bar_that_comes_back_to_its_start_keeps_the_place_until_it_is_done():
    with screen() as (stream, block):
        block.draw(FIRST)
        for percent in (10, 50, 90):
            print(f"\rbar {percent} %", end="")
            block.draw(SECOND)
        assert lines(stream) == ["bar 90 %"]
        print("\rbar 100 %")
        assert lines(stream) == ["bar 100 %", *SECOND]


def test_what_comes_past_python_stands_above_too():
    with screen() as (stream, block):
        block.draw(FIRST)
        stream.write("from a C library\n")  # as if by the file descriptor
        block.draw(SECOND)
        assert lines(stream) == ["from a C library", *SECOND]


def test_a_block_at_the_foot_of_the_screen_leaves_nothing_behind():
    with screen() as (stream, block):
        for number in range(50):
            print(f"line {number}")
            block.draw(FIRST if number % 2 else SECOND)
        assert lines(stream) == [*(f"line {number}" for number in range(50)), *FIRST]


def test_our_own_lines():
    with screen() as (stream, block):
        block.draw(FIRST)
        print("partial", end="")
        block.above("warning: hot")
        assert lines(stream) == ["partial", "warning: hot", *FIRST]


def test_closing_gives_everything_back():
    with screen() as (stream, block):
        assert holds_a_block(sys.stdout)
        block.draw(FIRST)
        proxy = sys.stdout
        block.close(["the end"])
        print("after")
        assert sys.stdout is stream and lines(stream) == ["the end", "after"]
        assert not holds_a_block(proxy)
        proxy.write("late")  # somebody kept it
        assert lines(stream)[-1] == "late"


def test_closing_without_lines_leaves_the_last_ones():
    with screen() as (stream, block):
        block.draw(FIRST)
        block.close()
        print("after")
        assert lines(stream) == [*FIRST, "after"]


def test_it_does_not_undo_somebodys_redirection():
    with screen() as (stream, block):
        aside = io.StringIO()
        block.draw(FIRST)
        with contextlib.redirect_stdout(aside):
            print("aside")
            block.close(["the end"])
            print("aside")
            assert sys.stdout is aside
        assert aside.getvalue() == "aside\naside\n" and lines(stream) == ["the end"]


def test_other_streams_are_left_alone():
    with screen():
        assert type(sys.stdout).__name__ == "_Above" != type(sys.stderr).__name__
        assert sys.stdout.getvalue is not None and not sys.stdout.isatty(), "all else is the stream's own"
