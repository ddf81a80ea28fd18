"""The output in a notebook, through IPython's display machinery."""

import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from stoker.record import Event, Record
from stoker.view.console import console
from tests.view.console.scenes import begin, end, epoch, progress


@pytest.fixture
def outputs(monkeypatch, tmp_path):
    """A shell like that of a kernel, and what it sends to the browser."""
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
    """The text of an output, whose HTML is valid XML."""
    text = output["data"]["text/html"]
    ElementTree.fromstring(text)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_one_output_is_updated_in_place(outputs):
    record = Record()
    listener = console(record, interval=0)
    record.subscribe(listener)
    begin(record)
    progress(record, 1, 1, at=1001.0)
    progress(record, 1, 5, at=1002.0)
    assert "epoch 1/4" in page(outputs[-1]) and "12.3k samples/s" in page(outputs[-1]) and "left" in page(outputs[-1])
    epoch(record, 1, valid={"loss": 0.5, "<b>": 0.5, "\ud800": 1.0}, lr=0.01)
    epoch(record, 2, valid={"loss": 0.25, "<b>": 0.5}, lr=0.01)
    record.append(Event("warning", text="hot & cold"))
    shown = page(outputs[-1])
    assert outputs[-1]["data"]["text/html"].encode(), "it holds no lone surrogates"
    assert "2/4 0.5000 0.2500*" in shown and "lr 0.01" in shown and "warning: hot &amp; cold" in shown
    assert "<polyline" in outputs[-1]["data"]["text/html"] and "&lt;b&gt;" in shown
    end(record, 2, best=(2, 0.25))
    listener.close()
    last = page(outputs[-1])
    assert "2 epochs, 20 updates in 4.00 s; best valid/loss 0.2500 at epoch 2" in last and "left" not in last
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    assert [output["update"] for output in outputs] == [False] + [True] * (len(outputs) - 1)


def test_updates_are_limited(outputs):
    record = Record()
    record.subscribe(console(record))
    begin(record)
    for batch in range(1, 101):
        progress(record, 1, batch, at=1000.0 + batch / 100, batches=100)
    assert len(outputs) <= 10


def test_a_failure_is_shown(outputs):
    record = Record()
    listener = console(record)
    record.subscribe(listener)
    begin(record)
    epoch(record, 1)
    record.append(Event("error", 1003.0, epoch=2, batch=3, text="RuntimeError: boom"))
    listener.close()
    assert "failed in epoch 2, batch 3: RuntimeError: boom" in page(outputs[-1])


@pytest.mark.parametrize("imported", [True, False])
def test_outside_of_a_notebook_it_prints_lines(monkeypatch, capsys, imported):
    if not imported:
        monkeypatch.delitem(sys.modules, "IPython")
    record = Record()
    record.subscribe(console(record))
    begin(record)
    assert capsys.readouterr().out.startswith("Net (1,234 parameters)")
