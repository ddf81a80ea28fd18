"""What is told while a phase runs."""

from types import SimpleNamespace

import torch

from stoker import callbacks
from stoker.data import Loader
from stoker.distributed import World
from stoker.engine import length_of
from stoker.loop._progress import _report
from tests.engine.fits import line, linear


def test_the_first_batch_of_a_fit_tells_how_it_goes():
    result = linear().fit(line(), valid=line(), epochs=1, batch_size=16, show=False)
    first = result.record.events_of("progress")[0]
    assert (first.epoch, first.batch, first.update) == (1, 1, 1)
    assert first.extra["phase"] == "train" and first.extra["batches"] == 4
    assert first.extra["samples_per_second"] > 0
    assert first.values["train/loss"] > 0


def test_validation_tells_as_well(monkeypatch):
    monkeypatch.setattr("stoker.loop._progress._TOLD_EVERY", 0.0)
    told = []
    listen = callbacks.on(fit_begin=lambda ctx: ctx.record.subscribe(told.append))
    sets = {"other": line(32)}
    linear().fit(line(), valid=sets, epochs=1, batch_size=16, callbacks=[listen], show=False)
    valid = [event for event in told if event.kind == "progress" and event.extra["phase"] == "valid"]
    assert [event.batch for event in valid] == [1, 2]
    assert valid[0].extra["batches"] == 2 and list(valid[0].values) == ["other/loss"]


def test_the_speed_is_that_of_all_who_share_a_batch():
    """And not of ranks that have the same rows, as in a mesh that splits the layers."""
    ctx = SimpleNamespace(phase="train", set_name="train", batches=4, epoch=1, batch_number=1, update=1)
    told = []
    fit = SimpleNamespace(
        ctx=ctx, coming=None, reported=0.0, world=World(0, 4), split=World(0, 2), control=None, record=told
    )
    here = SimpleNamespace(is_here=lambda: True, values=dict)
    _report(fit, SimpleNamespace(samples=10, since=100.0, later=lambda name: here), 105.0)
    assert [event.extra["samples_per_second"] for event in told] == [4.0]


def test_lengths_that_are_known_and_one_that_is_not():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    assert length_of(Loader(line(20), batch_size=8)) == 3
    assert length_of(Loader(Stream(), batch_size=8)) is None
