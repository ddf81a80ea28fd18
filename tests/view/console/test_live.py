"""The live block of real processes on pseudo-terminals."""

import os
import signal

import pytest

from tests.view.console.scenes import Terminal

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


def test_prints_appear_once_above_one_block():
    with Terminal(STORY) as terminal:
        lines = terminal.until_pause()
        assert lines[0] == "user 1" and lines[1].split()[0] == "epoch" and lines[2].split()[0] == "1/4"
        assert lines[3] == "user 2" and lines[4].split()[0] == "2/4" and lines[5] == ""
        assert lines[6].startswith(" Net (1,234 parameters) on cpu")
        assert "batch 5/10" in lines[7] and "62 % · 25 updates" in lines[8]
        terminal.resume_program()
        lines = terminal.until_pause()
        assert lines[5:9] == ["user 3", "logged", "past python", "warning: it is hot"]
        assert "batch 6/10" in lines[11]
        terminal.resume_program()
        lines, code = terminal.until_end()
        assert code == 0 and lines[-1] == "after"
        assert lines[9:11] == ["", " Net (1,234 parameters) on cpu"]
        assert lines[-2] == " 2 epochs, 25 updates in 4.00 s; best valid/loss 0.2500 at epoch 2"
        for text in ("user 1", "user 2", "user 3", "logged", "past python", "it is hot", "after", "Net ("):
            assert "\n".join(lines).count(text) == 1, text
        assert b"\x1b[?25l" not in terminal.raw


def test_redrawing_leaves_nothing_in_the_scrollback():
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
        assert len(lines) == 1 + 60 + 3, lines


@pytest.mark.parametrize("columns", [20, 200])
def test_a_resized_terminal(columns):
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
        terminal.resume_program()
        lines = terminal.until_pause()
        assert sum("epoch 2/4" in line for line in lines) == 1 and len(lines) <= 15
        assert max(map(len, lines)) < columns
        terminal.resume_program()
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
        assert (b"o valid" in raw) == (not colored or not braille)


def test_after_an_exception_the_terminal_works():
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
        assert lines[2] == "Traceback (most recent call last):"
        assert lines[-1].strip().startswith("1 epoch, 15 updates in 5.00 s") and lines[error + 2].startswith(" Net (")
        assert sum("Net (" in line for line in lines) == 1


def test_after_ctrl_c_the_terminal_works():
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
        assert code == 0 and lines[-3] == " Ctrl-C" and lines[-1] == "after"
        assert lines[-2].startswith(" 1 epoch, 10 updates in 3.00 s")


def test_a_killed_process_has_changed_no_mode():
    with Terminal("begin(record)\nepoch(record, 1, valid=0.5)\npause()") as terminal:
        terminal.until_pause()
        terminal.process.send_signal(signal.SIGKILL)
        terminal.until_end()
        switched = [word for word in terminal.raw.split(b"\x1b[?")[1:] if not word.startswith(b"2026")]
        assert switched == [] and terminal.raw.count(b"2026h") == terminal.raw.count(b"2026l")


def test_redirected_output_is_not_taken_to_the_screen(tmp_path):
    """`python train.py 2> errors` on a terminal."""
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


def test_a_fit_inside_a_fit_prints_lines_above_the_block():
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
        assert lines[2].startswith("Inner (1,234 parameters)") and "valid loss 0.1250" in lines[3]
        assert any(line.startswith(" Net (") for line in lines[5:])
        terminal.resume_program()
        assert terminal.until_end()[1] == 0
