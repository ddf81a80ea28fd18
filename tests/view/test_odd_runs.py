"""Runs with odd and hostile content, in every viewer: each shows what it can and raises nothing."""

import copy
import io
import json
import math
import random
import sys

import pytest

from stoker.record import Event, Follower, Record
from stoker.view.console import console
from stoker.view.report import compare_html, report_html
from stoker.view.watch import page
from tests.view.report.pages import Page
from tests.view.ui.serving import rows_of, serving

ODD = [
    None, True, -1, 1.5, 2**63, 10**400, "", "nan", math.nan, math.inf, 1e308, [], [1, "a"], {"a": 1}, "x" * 20_000,
    "<script>\x1b[2J\u202e\ud800", [[[]]],
]  # fmt: skip
NAMES = [
    "", "/", "a/", "/b", "train//loss", "x" * 10_000, "\x1b[2J", "a\nb\tc", "\u202eabc", "ä" * 300, "train/\ud800",
    "lr", "valid/日本語", "__proto__", "a/b/c/d", "valid/confusion/0/0", "$x_1$", "[red]x[/red]", "samples_per_second",
]  # fmt: skip
VALUES = [1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0]
PLAN = {"model": "Net", "parameters": 3, "device": "cpu", "epochs": 4, "batches": 10, "updates": 9, "minutes": 1.0}
AT = {"epoch": 1, "batch": 5, "update": 5}
EVENTS = [
    {"kind": "begin", "time": 1000.0, "extra": {**PLAN, "monitor": "valid/loss", "plan": ["a"], "metrics": {"x": {}}}},
    {
        "kind": "progress",
        "time": 1001.0,
        **AT,
        "values": {"train/loss": 1.0},
        "extra": {"phase": "train", "batches": 9},
    },
    {"kind": "valid", "time": 1002.0, **AT, "values": {"valid/loss": 1.0, "valid/x": 0.5}, "extra": {"name": "valid"}},
    {"kind": "epoch", "time": 1003.0, **AT, "values": {"train/loss": 1.0, "lr": 0.1}, "extra": {"seconds": 3.0}},
    {"kind": "checkpoint", "time": 1003.0, **AT, "extra": {"name": "5", "bytes": 100, "reason": "r"}},
    {"kind": "error", "time": 1004.0, **AT, "text": "boom", "extra": {"traceback": "tb"}},
    {"kind": "resume", "time": 1005.0, **AT, "extra": {"checkpoint": "5", "batches": 9, "kept": 5}},
    {"kind": "end", "time": 1006.0, **AT, "extra": {"seconds": 9.0, "best": {"epoch": 1, "value": 1.0}}},
]
FACTS = {
    "started": 1000.0,
    "command": ["x"],
    "versions": {"a": "1"},
    "settings": {"lr": 0.1},
    "plan": ["a"],
    "git": "1",
}


def places_in(value, above=()):
    """The path of every field, at any depth."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield (*above, name)
        yield from places_in(inner, (*above, name))


def with_change(value, place, odd):
    value = copy.deepcopy(value)
    inner = value
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = odd
    return value


def write_run(path, events, facts=FACTS):
    path.mkdir(parents=True)
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (path / "run.json").write_text(json.dumps(facts))
    (path / "log.txt").write_bytes(b"\x1b[2J\xff\x00\r\n")
    return path


def odd_runs(folder, count):
    """Runs with one odd field each (a sample of all), and runs with odd names and values."""
    fields = [(number, place) for number, event in enumerate(EVENTS) for place in places_in(event)]
    changes = [(*field, odd) for field in fields for odd in ODD]
    for run, (number, place, odd) in enumerate(random.Random(0).sample(changes, count)):
        events = [*EVENTS[:number], with_change(EVENTS[number], place, odd), *EVENTS[number + 1 :]]
        yield write_run(folder / f"field{run}", events)
    for run, (place, odd) in enumerate((place, odd) for place in places_in(FACTS) for odd in ODD):
        if run % 12 == 0 or place == ("settings",):
            yield write_run(folder / f"fact{run}", EVENTS, with_change(FACTS, place, odd))
    for run, name in enumerate(NAMES):
        epochs = [{"kind": "epoch", "epoch": at, "update": at, "values": {name: y}} for at, y in enumerate(VALUES, 1)]
        yield write_run(folder / f"name{run}", [EVENTS[0], *epochs])
    yield write_run(folder / "empty", [])
    torn = write_run(folder / "torn", EVENTS[:5])
    (torn / "events.jsonl").write_bytes(b"\x00\xff{{\n" + (torn / "events.jsonl").read_bytes()[:-20])
    (torn / "run.json").write_text("[")
    (torn / "config.json").write_text(f'{{"x": {"[" * 500 + "]" * 500}}}')
    yield torn
    yield write_run(folder / "large", [with_change(EVENTS[4], ("extra", "bytes"), 10**400)])


def is_safe(text):
    return all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.soak)])
def test_pages_reports_and_the_web_page_of_odd_runs(tmp_path, count):
    plain = write_run(tmp_path / "plain", EVENTS)
    paths = list(odd_runs(tmp_path, count))
    for path in paths:
        follower = Follower(path)
        follower.refresh()
        for width in (1, 16, 100):
            assert is_safe(page([follower], width=width)), path
        Page(report_html(path))
        Page(compare_html(path, plain))
    with serving(tmp_path) as (_, client):
        rows = rows_of(client)
        assert len(rows) == len(paths) + 1 and not [row for row in rows.values() if "stoker ui" in row["reason"]]
        for path in paths[:: len(paths) // 25]:
            names = client.get(f"api/run/{path.name}").json()["names"]
            query = {"name": [name for name in names if len(name) < 1000] or "x", "by": "time"}
            assert client.get(f"api/points/{path.name}", params=query).status_code == 200


@pytest.mark.parametrize("live", [True, False], ids=["live", "plain"])
@pytest.mark.parametrize("size", [(0, 0), (1, 1), (3, 2), (20, 8), (300, 90)], ids=str)
def test_a_console_of_any_size_shows_any_name_and_value(live, size, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(size[0]))
    monkeypatch.setenv("LINES", str(size[1]))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    record = Record()
    listener = console(record, stream=sys.stdout, live=live, interval=0)
    record.subscribe(listener)
    record.append(Event("begin", 1000.0, extra={**PLAN, "model": "\x1b[2J", "monitor": NAMES[0]}))
    for epoch, value in enumerate(VALUES, 1):
        extra = {"phase": "train", "batches": 10, "samples_per_second": value}
        values = dict.fromkeys(NAMES, value)
        record.append(Event("progress", 1000.0 + epoch, epoch, 1, epoch, values=values, extra=extra))
        record.append(Event("epoch", 1000.5 + epoch, epoch, 10, epoch, values=values, extra={"seconds": value}))
    record.append(Event("error", 1010.0, epoch=8, text="RuntimeError: \x1b[2J"))
    listener.close()
    assert not record.events_of("warning"), "a listener that raises would cause a warning"
    assert "\x1b[2J" not in sys.stdout.getvalue()
