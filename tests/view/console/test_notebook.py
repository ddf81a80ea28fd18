"""A notebook's output, through IPython's own display machinery."""

import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from stoker.record import Event, Record
from stoker.view.console import console
from stoker.view.console._notebook import Notebook, in_notebook
from stoker.view.console._pace import Pace
from stoker.view.console._plain import Plain
from tests.view.console.scenes import begin, cut_short, end, epoch, progress, resume


@pytest.fixture
def outputs(monkeypatch, tmp_path):
    """A shell as a kernel has it, and what it sends to the browser."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell.clear_instance()
    before = sys.displayhook, sys.excepthook
    shell = InteractiveShell.instance()
    shell.kernel = object()
    shell.display_pub = CapturingDisplayPublisher()
    yield shell.display_pub.outputs
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()
    sys.displayhook, sys.excepthook = before


def page(output):
    """The HTML of an output, which is also good XML."""
    text = output["data"]["text/html"]
    ElementTree.fromstring(text)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_one_output_that_is_updated(outputs):
    record = Record()
    listener = console(record)
    assert isinstance(listener, Notebook)
    listener.pace = Pace(every=0.0, share=1e9)
    record.subscribe(listener)
    begin(record)
    progress(record, 1, 5, at=1002.0)
    assert "epoch 1/4" in page(outputs[-1]) and "12.3k samples/s" in page(outputs[-1]) and "left" in page(outputs[-1])
    epoch(record, 1, valid={"loss": 0.5, "<b>": 0.5}, lr=0.01)
    epoch(record, 2, valid={"loss": 0.25, "<b>": 0.5}, lr=0.01)
    record.append(Event("warning", text="hot & cold"))
    shown = page(outputs[-1])
    assert "loss 0.5000 0.2500* 0.2500 2" in shown and "lr 0.01" in shown and "warning: hot &amp; cold" in shown
    assert "<polyline" in outputs[-1]["data"]["text/html"] and "&lt;b&gt;" in shown
    end(record, 2, best=(2, 0.25))
    listener.close()
    last = page(outputs[-1])
    assert "2 epochs, 20 updates in 4.00 s; best valid/loss 0.2500 at epoch 2" in last and "left" not in last
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    assert [output["update"] for output in outputs] == [False] + [True] * (len(outputs) - 1)


def test_messages_are_few(outputs):
    record, now = Record(), [0.0]
    listener = Notebook(record, pace=Pace(every=0.5, clock=lambda: now[0]))
    record.subscribe(listener)
    begin(record)
    for batch in range(1, 1001):
        now[0] = batch / 100
        progress(record, 1, batch, at=1000.0 + batch / 100, batches=1000)
    assert 15 <= len(outputs) <= 21


def test_how_it_failed(outputs):
    record = Record()
    listener = console(record)
    record.subscribe(listener)
    begin(record)
    epoch(record, 1)
    record.append(Event("error", 1003.0, epoch=2, batch=3, text="RuntimeError: boom"))
    listener.close()
    assert "failed in epoch 2, batch 3: RuntimeError: boom" in page(outputs[-1])


def test_lines_where_they_are_asked_for(outputs):
    assert isinstance(console(Record(), live=False), Plain)


def test_closed_before_its_begin_it_says_nothing(outputs):
    Notebook(Record()).close()
    assert outputs == []


def test_outside_of_a_notebook(monkeypatch):
    assert not in_notebook(), "IPython is imported, and no kernel runs"
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()


def test_a_resumed_fit_says_so(outputs):
    record = Record()
    kept = cut_short(record)
    listener = Notebook(record, pace=Pace(every=0.0, share=1e9))
    record.subscribe(listener)
    resume(record, kept)
    begin(record, at=5001.0)
    shown = page(outputs[-1])
    assert "resumed from 00000025: epoch 3, batch 5 of 10, update 25" in shown and "epoch 3/4" in shown
    assert "0.2500" in shown and "0.1250" not in shown
