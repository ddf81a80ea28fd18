"""The live block on a simulated screen: what it shows at each moment, in every size, and how it shares the terminal."""

import contextlib
import io
import math
import os
import pty
import select
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import WrongType
from stoker.record import Event, Record
from stoker.view.console import console
from tests.view.console.scenes import begin, cut_short, end, epoch, progress, resume, screen_of, visible


class Screen:
    """A record whose live block is drawn at every event into a stream that is also `sys.stdout`."""

    def __init__(self, columns=80, lines=24):
        self.columns, self.lines_ = columns, lines
        self.record = Record()
        self.stream = io.StringIO()

    def __enter__(self):
        self.saved = {name: os.environ.get(name) for name in ("COLUMNS", "LINES", "TERM", "NO_COLOR")}
        os.environ.update(COLUMNS=str(self.columns), LINES=str(self.lines_), TERM="xterm-256color")
        os.environ.pop("NO_COLOR", None)
        self.stdout, sys.stdout = sys.stdout, self.stream
        self.listener = console(self.record, stream=self.stream, live=True, interval=0)
        self.record.subscribe(self.listener)
        return self

    def __exit__(self, *_):
        self.listener.close()
        sys.stdout = self.stdout
        for name, value in self.saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    @property
    def lines(self):
        return visible(screen_of(self.stream.getvalue(), columns=self.columns, lines=self.lines_))


def two_and_a_half_epochs(record):
    begin(record)
    for number in (1, 2):
        epoch(record, number, valid={"loss": 1 / number, "accuracy": number / 4}, lr=0.01, gpu_memory=3.0)
    progress(record, 3, 5, at=1005.0)


def table_row(lines, name):
    return next(line.split() for line in lines if line.split()[:1] == [name])


def block(lines):
    """The lines of the block, without those above it."""
    return lines[next(place for place, line in enumerate(lines) if line.startswith(" Net (")) :]


def test_the_parts_of_the_block():
    with Screen(columns=100) as screen:
        two_and_a_half_epochs(screen.record)
        lines = screen.lines
    assert lines[0].split() == ["epoch", "train/loss", "valid/loss", "valid/accuracy", "lr", "gpu_memory", "time"]
    assert lines[1].split() == ["1/4", "1.000", "1.000", "0.2500", "0.01000", "3.000", "0:02"]
    assert lines[2].split() == ["2/4", "0.5000", "0.5000*", "0.5000*", "0.01000", "3.000", "0:02"]
    assert lines[3] == ""
    lines = block(lines)
    assert lines[0].startswith(" Net (1,234 parameters) on cpu") and lines[0].endswith(" left")
    assert lines[1].startswith(" epoch 3/4  ━") and lines[1].endswith("─  batch 5/10")
    assert lines[2].startswith(" total      ━") and lines[2].endswith("─  62 % · 25 updates")
    assert lines[1].count("━") * 2 + 1 == lines[1].count("━") + lines[1].count("─")
    assert lines[3].startswith(" 12.3k samples/s")
    assert lines[4].split()[:3] == ["train", "valid", "best"] and "━ train  ━ valid  loss by update" in lines[4]
    assert "0.5000 @2" in lines[5] and "┤" in lines[5] and "1.000" in lines[5]
    assert lines[-1].split()[0] == "10"


def test_the_block_uses_the_size_it_has():
    def charts(columns, lines):
        with Screen(columns, lines) as screen:
            begin(screen.record)
            for number in (1, 2, 3):
                epoch(screen.record, number, train={"loss": 1 / number, "accuracy": 0.5}, valid=0.5)
            return block(screen.lines)

    small, wide, tall = charts(80, 12), charts(200, 24), charts(80, 60)
    assert len(small) <= 9 and not any("┤" in line for line in small), "bars and numbers"
    assert any("loss by update" in line and "accuracy by update" in line for line in wide), "two charts"
    assert max(map(len, wide)) > 180 and 30 <= len(tall) <= 36
    narrow = charts(44, 40)
    assert any("loss by update" in line for line in narrow), "below the table"


def test_validation_and_fits_without_a_limit():
    with Screen() as screen:
        begin(screen.record, epochs=None, batches=None)
        progress(screen.record, 1, 7, at=1003.0, batches=None)
        assert screen.lines[2].startswith(" epoch 1  ─") and screen.lines[2].endswith("batch 7")
        assert screen.lines[3].endswith("─  7 updates") and "left" not in screen.lines[1]
        progress(screen.record, 1, 2, at=1004.0, phase="valid", batches=4)
        assert screen.lines[2].endswith("validating 2/4")


def test_the_curves_are_running_losses_and_validations_from_the_first_on():
    with Screen() as screen:
        begin(screen.record)
        for batch in range(1, 4):
            progress(screen.record, 1, batch, at=1000.0 + 2 * batch, values={"train/loss": 1 / batch})
        assert "━ train  loss by update" in block(screen.lines)[4]
        epoch(screen.record, 1, train=0.5, valid=0.6)
        assert "━ train  ━ valid  loss by update" in block(screen.lines)[4]
        assert any("•" in line for line in block(screen.lines)), "one validation is a point"
        epoch(screen.record, 2, train=0.25, valid=0.3)
        epoch(screen.record, 3, train=0.25, valid=0.01)
        assert block(screen.lines)[4].endswith("loss by update, log"), "a loss that falls far"


def test_an_asterisk_marks_the_best_value_so_far():
    def marked(lines):
        return {name: any("*" in cell for cell in table_row(lines, name)) for name in ("loss", "accuracy")}

    with Screen(columns=60) as screen:
        record = screen.record
        begin(record)
        epoch(record, 1, valid={"loss": 0.5, "accuracy": 0.5})
        assert marked(screen.lines) == {"loss": False, "accuracy": False}, "the first epoch improves on nothing"
        epoch(record, 2, valid={"loss": 0.6, "accuracy": 0.6})
        assert marked(screen.lines) == {"loss": False, "accuracy": True}
        epoch(record, 3, valid={"loss": 0.4, "accuracy": 0.6})
        assert marked(screen.lines) == {"loss": True, "accuracy": False}, "a tie is not an improvement"
        epoch(record, 4, valid={"loss": math.nan, "accuracy": 0.1})
        assert marked(screen.lines) == {"loss": False, "accuracy": False}
        assert table_row(screen.lines, "loss")[-2:] == ["0.4000", "@3"]


def test_running_values_are_shown_but_are_not_the_best():
    with Screen(columns=60) as screen:
        begin(screen.record, monitor=None)
        epoch(screen.record, 1, train=0.5)
        epoch(screen.record, 2, train=0.25)
        assert "0.2500*" in table_row(screen.lines, "loss")
        progress(screen.record, 3, 1, at=1009.0, values={"train/loss": 0.125, "lr": 0.1})
        assert table_row(screen.lines, "loss")[:4] == ["loss", "0.1250", "0.2500", "@2"]
        assert "lr 0.1" in block(screen.lines)[3]


def test_data_sets_are_told_from_other_values():
    with Screen(columns=60) as screen:
        begin(screen.record, monitor="b/loss")
        screen.record.append(Event("valid", 1001.0, epoch=1, values={"a/loss": 1.0, "a/recall/0": 0.1}))
        screen.record.append(Event("valid", 1001.0, epoch=1, values={"b/loss": 2.0}))
        values = {"train/loss": 3.0, "lr/head": 0.1, "mine/x": 4.0, "gpu_memory": 5.0}
        screen.record.append(Event("epoch", 1002.0, epoch=1, values=values))
        lines = block(screen.lines)
    assert lines[4].split() == ["train", "a", "b", "best"]
    assert table_row(lines, "loss") == ["loss", "3.000", "1.000", "2.000", "2.000", "@1"]
    assert lines[3] == " lr/head 0.1 · mine/x 4 · gpu_memory 5 GB"


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_resumed_fit_continues_from_its_checkpoint(seen_before):
    with Screen() as screen:
        record = Record()
        if seen_before:
            record.subscribe(console(record, stream=screen.stream, live=True, interval=0))
        kept = cut_short(record)
        if not seen_before:  # a new process
            record.subscribe(console(record, stream=screen.stream, live=True, interval=0))
        resume(record, kept)
        begin(record, at=5001.0)
        lines = screen.lines
        assert "resumed from 00000025: epoch 3, batch 5 of 10, update 25" in lines
        assert any(line.endswith("  0:06") for line in lines), "the pace of this process is not known yet"
        assert any("62 % · 25 updates" in line for line in lines)
        assert table_row(lines, "loss")[2:4] == ["0.2500", "@2"], "the third epoch's 0.125 is lost"
        progress(record, 3, 6, at=5003.0)
        epoch(record, 3, at=5004.0, valid=0.2)
        assert table_row(screen.lines, "loss")[2] == "0.2000*"
        end(record, 3)


def test_the_summary_stays():
    with Screen() as screen:
        two_and_a_half_epochs(screen.record)
        screen.record.append(Event("stop", 1006.0, epoch=3, text="Early stopping at epoch 3 of 4:\n enough"))
        end(screen.record, 3, best=(2, 0.5))
        before = screen.stream.getvalue()
        screen.listener.close()
        screen.record.append(Event("warning", text="late"))
        assert screen.stream.getvalue() == before, "a closed listener is silent"
        lines = screen.lines
    assert lines[3:] == [
        "",
        " Net (1,234 parameters) on cpu",
        " Early stopping at epoch 3 of 4: enough",
        " 2 epochs, 30 updates in 6.00 s; best valid/loss 0.5000 at epoch 2",
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 130), st.integers(2, 40), st.integers(0, 12))
def test_the_block_never_exceeds_the_terminal(columns, lines, metrics):
    with Screen(columns, lines) as screen:
        begin(screen.record)
        for number in (1, 2, 3):
            values = {f"metric{place}名": float(place) for place in range(metrics)} | {"loss": 1e-9}
            epoch(screen.record, number, valid=values)
        for name in "ab":
            values = {f"{name * 12}/a_metric_with_a_long_name": 0.5}
            screen.record.append(Event("valid", 1001.0, epoch=1, values=values))
        shown = screen.lines
        assert len(shown) < max(lines, 2) + 6, "only three epochs, their header and two validations were scrolled"
        assert max(map(len, shown)) < columns


def test_drawing_is_limited_to_a_few_times_a_second():
    record, stream = Record(), io.StringIO()
    listener = console(record, stream=stream, live=True, interval=3600.0)
    record.subscribe(listener)
    begin(record)
    drawn = len(stream.getvalue())
    for batch in range(1, 11):
        progress(record, 1, batch, at=1000.0 + batch)
    for number in range(1, 100):
        epoch(record, number)
    assert drawn and len(stream.getvalue()) == drawn
    listener.close()
    lines = visible(screen_of(stream.getvalue()))
    assert [line.split()[0] for line in lines if "/4" in line] == [f"{number}/4" for number in range(90, 100)]


def test_prints_appear_above_the_block_at_once():
    with Screen() as screen:
        print("before")
        begin(screen.record)
        print("hello", "world")
        assert screen.lines[:3] == ["before", "hello world", ""] and screen.lines[3].startswith(" Net (")
        print("a\nb")
        print()
        progress(screen.record, 1, 5, at=1002.0)
        print("c")
        assert screen.lines[2:6] == ["a", "b", "", "c"] and screen.lines[7].startswith(" Net (")
        screen.stream.write("from a C library\n")  # bypasses Python's stdout
        progress(screen.record, 1, 6, at=1002.0)
        assert screen.lines[6] == "from a C library" and sum("Net (" in line for line in screen.lines) == 1


def test_unfinished_lines_are_kept():
    with Screen() as screen:
        begin(screen.record)
        print("a", end="")
        print("b", end="", flush=True)
        sys.stdout.writelines(["c", "d\n"])
        assert screen.lines[:2] == ["abcd", ""]
        print("dots...", end="")
        progress(screen.record, 1, 5, at=1002.0)
        print("more")
        screen.record.append(Event("warning", text="hot"))
        assert screen.lines[:5] == ["abcd", "dots...", "more", "warning: hot", ""]


def test_another_progress_bar_keeps_its_line_until_it_is_done():
    with Screen() as screen:
        begin(screen.record)
        for percent in (10, 50, 90):
            print(f"\rbar {percent} %", end="")
            progress(screen.record, 1, percent // 10, at=1002.0)
        assert screen.lines == ["bar 90 %"]
        print("\rbar 100 %")
        assert screen.lines[:2] == ["bar 100 %", ""] and "batch 9/10" in screen.lines[3]


def test_closing_restores_the_streams():
    with Screen() as screen:
        begin(screen.record)
        proxy = sys.stdout
        assert proxy is not screen.stream and proxy.getvalue is not None and not proxy.isatty()
        aside = io.StringIO()
        with contextlib.redirect_stdout(aside):
            screen.listener.close()
            assert sys.stdout is aside, "the user's redirection stays"
        proxy.write("late\n")  # other code kept the proxy
        assert screen.lines[-1] == "late"


def test_the_kind_of_display_depends_on_the_stream(monkeypatch):
    """A block is drawn with escape codes, plain lines have none."""
    master, slave = pty.openpty()

    def is_live(stream, **how):
        record = Record()
        record.subscribe(listener := console(record, stream=stream, **how))
        begin(record)
        listener.close()
        output = b""
        while select.select([master], [], [], 0)[0]:
            output += os.read(master, 65536)
        return b"\x1b[" in output

    with os.fdopen(slave, "w") as stream:
        for term, live in (("xterm-256color", True), ("dumb", False), ("unknown", False), ("linux", True)):
            monkeypatch.setenv("TERM", term)
            assert is_live(stream) == live, term
        monkeypatch.setenv("TERM", "xterm")
        assert not is_live(stream, live=False)
    os.close(master)


@pytest.mark.parametrize("missing", ["none", "closed"])
def test_without_a_stdout_it_is_silent(monkeypatch, missing):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", None if missing == "none" else stream)
    record = Record()
    record.subscribe(console(record))
    begin(record)
    end(record, 1)
    assert not record.events_of("warning"), "a listener that raises would cause a warning"


def test_a_wrong_value_of_live():
    with pytest.raises(WrongType, match="live is 'yes'; expected True, False, or None to let the stream decide"):
        console(Record(), live="yes")  # type: ignore[arg-type]
