"""What a record costs: the large run is what it says, and the table has the ratios."""

import pytest

from benchmarks import record
from stoker.record import Follower, Record, _decode


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "run"
    record.large_run(path, 1000)
    return path


def test_a_large_run_is_mostly_progress_and_has_200_metrics(large):
    found = Record.open(large)
    assert len(found) == pytest.approx(1000, rel=0.02)
    assert len(found.events_of("progress")) > 0.95 * len(found)
    assert len(found.columns) == 201 and found.summary()["monitor"] == "valid/metric 3"
    assert (large / "events.jsonl").stat().st_size / len(found) == pytest.approx(330, rel=0.2)


@pytest.mark.parametrize("name", list(record.READERS))
def test_every_reader_reads_all_of_it(large, name, monkeypatch):
    read = []
    monkeypatch.setattr(_decode, "_msgspec_decoder", _decode._msgspec_decoder)  # put back afterwards
    monkeypatch.setattr(
        Follower, "refresh", lambda self, refresh=Follower.refresh, **how: read.append(self) or refresh(self, **how)
    )
    measured = record.read(name, large)
    assert set(measured) == {"first", "whole", "MB"} and measured["first"][0] <= measured["whole"][0]
    assert name == "record" or read[-1].summary["epochs"] == 4


@pytest.mark.parametrize("name", list(record.WRITERS))
def test_a_writer_is_measured_a_thousand_events_at_a_time(name):
    assert len(record.write(name, "5")) == 5


def test_the_table_has_the_ratio(capsys):
    times = {"first": [1.0], "whole": [2.0], "MB": [100.0]}
    record.report({"write": {"5": {"plain": [10.0], "record": [20.0]}}, "read": {"1M": {"msgspec": times}}})
    lines = capsys.readouterr().out.splitlines()
    assert lines[5].split() == ["ratio", "2.00"]
    assert lines[-1].split()[-3:] == ["1.00", "2.00", "100"]
