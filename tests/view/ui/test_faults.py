"""Errors that nobody expected, in the terminal."""

from stoker.view.ui._faults import tell

from stoker.view.ui import _faults


def caught(fails):
    try:
        fails()
    except Exception as error:
        return error


def test_each_error_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(_faults, "_told", set())
    for number in range(3):
        tell(caught(lambda number=number: int(f"x{number}")))
        tell(caught(lambda: 1 / 0))
    printed = capsys.readouterr().err
    assert printed.count("Traceback") == 2 and printed.count("x0") == printed.count("division by zero") == 1
    tell(ValueError("never raised"))
    assert "never raised" in capsys.readouterr().err
