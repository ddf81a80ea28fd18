"""The live block as people see it: real processes on pseudo-terminals."""

import io
import os
import signal

import pytest

from stoker.record import Event, Record
from stoker.view.console._live import Live
from stoker.view.console._pace import Pace
from tests.view.console.scenes import Terminal, begin, end, epoch, progress, screen_of, visible

STORY = """
    begin(record)
    print("user 1")
    epoch(record, 1, valid=0.5)
    print("user 2")
    epoch(record, 2, valid=0.25)
    progress(record, 3, 5, at=1005.0)
    pause()
    print("user 3")
    logging.getLogger().warning("logged")
    os.write(1, b"past python\\n")
    progress(record, 3, 6, at=1005.5)
    record.append(Event("warning", text="it is hot"))
    pause()
    end(record, 2, best=(2, 0.25))
    print("after")
"""


def test_one_block_and_every_print_once():
    with Terminal(STORY) as terminal:
        lines = terminal.until_pause()
        assert lines[:3] == ["user 1", "user 2", ""] and lines[3].startswith(" Net (1,234 parameters) on cpu")
        assert "batch 5/10" in lines[4] and "62 % · 25 updates" in lines[5]
        terminal.go_on()
        lines = terminal.until_pause()
        assert lines[2:6] == ["user 3", "logged", "past python", "warning: it is hot"]
        assert "batch 6/10" in lines[8]
        terminal.go_on()
        lines, code = terminal.until_end()
        assert code == 0 and lines[-1] == "after"
        assert lines[6:8] == ["", " Net (1,234 parameters) on cpu"]
        assert lines[-2] == " 2 epochs, 20 updates in 4.00 s; best valid/loss 0.2500 at epoch 2"
        for text in ("user 1", "user 2", "user 3", "logged", "past python", "it is hot", "after", "Net ("):
            assert "\n".join(lines).count(text) == 1, text
        assert b"\x1b[?25l" not in terminal.raw, "no cursor is hidden, so none has to be brought back"


def test_no_drawing_leaves_a_line_in_the_scrollback():
    with Terminal(
        """
        begin(record, epochs=60)
        for number in range(1, 61):
            progress(record, number, 5, at=1000.0 + number)
            epoch(record, number, valid=1 / number)
        end(record, 60)
        """,
        lines=10,
    ) as terminal:
        lines, _ = terminal.until_end()
        assert len(lines) == 5, lines


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_a_terminal_that_changes_its_size(columns):
    with Terminal(
        """
        begin(record)
        epoch(record, 1, valid=0.5)
        pause()
        epoch(record, 2, valid=0.25)
        pause()
        end(record, 2)
        """
    ) as terminal:
        terminal.until_pause()
        terminal.resize(columns, 12)
        terminal.go_on()
        lines = terminal.until_pause()
        assert sum("epoch 2/4" in line for line in lines) == 1 and len(lines) <= 11
        assert max(map(len, lines)) < columns
        terminal.go_on()
        assert terminal.until_end()[1] == 0


@pytest.mark.parametrize(
    ("setting", "colored", "braille"),
    [
        ({}, True, True),
        ({"NO_COLOR": "1"}, False, True),
        ({"NO_COLOR": ""}, True, True),
        ({"PYTHONIOENCODING": "cp1252"}, True, False),
    ],
    ids=["plain", "no color", "empty", "windows"],
)
def test_colours_and_characters(setting, colored, braille):
    program = STORY.replace("pause()", "")
    with Terminal(program, **setting) as terminal:
        _, code = terminal.until_end()
        raw = terminal.raw
        assert code == 0
        assert (b"\x1b[36m" in raw or b"\x1b[32m" in raw) == colored
        assert ("⠤".encode() in raw or "⡀".encode() in raw) == braille and ("━".encode() in raw) == braille
        assert braille or b"====" in raw
        assert (b"o valid/loss" in raw) == (not colored), "what else would tell the curves apart"


def test_a_dumb_terminal_gets_plain_lines():
    program = """
        begin(record)
        epoch(record, 1, valid=0.5)
        end(record, 1)
    """
    with Terminal(program, TERM="dumb") as terminal:
        lines, code = terminal.until_end()
        assert code == 0 and b"\x1b" not in terminal.raw and len(lines) == 3 and "valid loss 0.5000" in lines[1]


def test_an_exception_leaves_a_whole_terminal():
    with Terminal(
        """
        begin(record)
        epoch(record, 1, valid=0.5)
        progress(record, 2, 5, at=1005.0)
        raise RuntimeError("boom")
        """
    ) as terminal:
        lines, code = terminal.until_end()
        assert code == 1
        error = next(place for place, line in enumerate(lines) if line == "RuntimeError: boom")
        assert lines[0] == "Traceback (most recent call last):", "above the block, which nobody closed"
        assert lines[-1].strip() == "1 epoch, 15 updates in 5.00 s" and lines[error + 2].startswith(" Net (")
        assert sum("Net (" in line for line in lines) == 1


def test_ctrl_c_leaves_a_whole_terminal():
    with Terminal(
        """
        begin(record)
        epoch(record, 1, valid=0.5)
        try:
            pause()
        except KeyboardInterrupt:
            record.append(Event("stop", 1003.0, epoch=1, text="Ctrl-C"))
        finally:
            listener.close()
        print("after")
        """
    ) as terminal:
        terminal.until_pause()
        os.write(terminal.master, b"\x03")
        lines, code = terminal.until_end()
        assert code == 0 and lines[-3:] == [" Ctrl-C", " 1 epoch, 10 updates in 3.00 s", "after"]


def test_a_killed_process_left_nothing_switched():
    with Terminal("begin(record)\nepoch(record, 1, valid=0.5)\npause()") as terminal:
        terminal.until_pause()
        terminal.process.send_signal(signal.SIGKILL)
        terminal.until_end()
        switched = [word for word in terminal.raw.split(b"\x1b[?")[1:] if not word.startswith(b"2026")]
        assert switched == [] and terminal.raw.count(b"2026h") == terminal.raw.count(b"2026l")


def test_output_that_goes_elsewhere_goes_there(tmp_path):
    """`python train.py 2> errors` on a terminal: what is written to stderr is not taken to the screen."""
    with Terminal(
        f"""
        sys.stderr = open({str(tmp_path / "errors")!r}, "w")
        begin(record)
        epoch(record, 1, valid=0.5)
        print("for the file", file=sys.stderr)
        end(record, 1)
        """
    ) as terminal:
        lines, _ = terminal.until_end()
        assert (tmp_path / "errors").read_text() == "for the file\n" and "for the file" not in "\n".join(lines)


def test_a_fit_inside_a_fit_speaks_in_lines_above():
    with Terminal(
        """
        begin(record)
        epoch(record, 1, valid=0.5)
        inner = Record()
        inner.subscribe(console(inner))
        begin(inner, model="Inner")
        epoch(inner, 1, valid=0.125)
        end(inner, 1)
        pause()
        end(record, 1)
        """
    ) as terminal:
        lines = terminal.until_pause()
        assert lines[0].startswith("Inner (1,234 parameters)") and "valid loss 0.1250" in lines[1]
        assert lines[4].startswith(" Net (")
        terminal.go_on()
        assert terminal.until_end()[1] == 0


def test_events_between_two_drawings_draw_nothing():
    record, stream, now = Record(), io.StringIO(), [0.0]
    live = Live(record, stream, pace=Pace(clock=lambda: now[0]))
    record.subscribe(live)
    begin(record)
    drawn = len(stream.getvalue())
    for batch in range(1, 11):
        progress(record, 1, batch, at=1000.0 + batch)
    epoch(record, 1)
    assert len(stream.getvalue()) == drawn
    now[0] = 0.3
    progress(record, 2, 1, at=1020.0)
    assert len(stream.getvalue()) > drawn and "epoch 2/4" in "\n".join(visible(screen_of(stream.getvalue())))
    live.close()


def test_closed_it_is_silent_and_twice_does_no_harm():
    record, stream = Record(), io.StringIO()
    live = Live(record, stream)
    record.subscribe(live)
    begin(record)
    epoch(record, 1, valid=0.5)
    end(record, 1)
    told = stream.getvalue()
    live.close()
    record.append(Event("warning", text="late"))
    assert stream.getvalue() == told


def test_closed_before_its_begin_it_says_nothing():
    stream = io.StringIO()
    Live(Record(), stream).close()
    assert stream.getvalue() == ""


def test_a_resumed_fit_says_so_and_counts_on():
    story = """
        record = Record()
        kept = cut_short(record)
        listener = console(record)
        listener.pace = Pace(every=0.0, share=1e9)
        record.subscribe(listener)
        resume(record, kept)
        begin(record, at=5001.0)
        progress(record, 3, 6, at=5001.5)
        pause()
        epoch(record, 3, at=5003.0, valid=0.2)
        record.append(Event("end", 5003.0, extra={"epochs": 3, "updates": 30, "seconds": 2.0}))
    """
    with Terminal(story) as terminal:
        lines = terminal.until_pause()
        assert lines[:2] == ["resumed from 00000025: epoch 3, batch 5 of 10, update 25", ""]
        assert "batch 6/10" in lines[3] and "65 % · 26 updates" in lines[4]
        assert any(line.startswith(" loss") and "0.2500 @2" in line for line in lines)
        terminal.go_on()
        lines, code = terminal.until_end()
        assert code == 0 and lines[-1] == " 3 epochs, 30 updates in 7.00 s"
        assert any("0.2000*" in line and "0.2000 @3" in line for line in lines)
