"""The page of plain text: status, table, log and chart of runs."""

import pytest
import torch

import stoker
from stoker.record import Event, Follower
from stoker.view.watch import page
from tests.view.watch.scenes import START, epoch, make, progress


def page_of(*paths, **options):
    followers = [Follower(path) for path in paths]
    for follower in followers:
        follower.refresh()
    return page(followers, **options)


@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
def test_a_run_as_text(tmp_path, ascii_only):
    run = make(tmp_path / "digits", epochs=3)
    run.record.append(Event("warning", START + 31, text="it is hot"))
    text = page_of(tmp_path / "digits", ascii_only=ascii_only)
    run.close()
    assert "\x1b" not in text
    assert text.startswith(f"{tmp_path / 'digits'}: running (Net, 1,234 parameters, on cpu)\n")
    assert "epoch    3 of 20" in text and "accuracy     0.6931   0.6317   0.6317 @3" in text
    assert "warning: it is hot" in text and "train/loss" in text
    assert text.isascii() or not ascii_only


def test_several_runs(tmp_path):
    make(tmp_path / "a", epochs=1, end=True)
    make(tmp_path / "b", epochs=2, end=True)
    text = page_of(tmp_path / "a", tmp_path / "b")
    assert "a: finished" in text and "b: finished" in text and "━ a  o b" in text


def facts_in(text):
    """The status lines by their first word."""
    return dict(line.split(maxsplit=1) for line in text.split("\n\n")[0].splitlines()[1:] if " " in line)


def test_the_status_while_it_trains_and_after(tmp_path):
    run = make(tmp_path / "digits", epochs=2)
    progress(run, 3, 25, at=START + 25)
    facts = facts_in(page_of(tmp_path / "digits"))
    assert facts["phase"] == "training" and facts["epoch"] == "3 of 20" and facts["batch"] == "25 of 50"
    assert facts["update"] == "125, 5/s" and facts["speed"] == "6.40k samples/s" and facts["time"] == "0:25, 2:55 left"
    assert facts["best"].endswith(" @2 valid/loss") and "warnings" not in facts
    progress(run, 3, 10, at=START + 26, phase="valid")
    assert facts_in(page_of(tmp_path / "digits"))["phase"] == "validating on valid"
    epoch(run, 3)
    assert facts_in(page_of(tmp_path / "digits"))["batch"] == "50 of 50", "between two epochs"
    run.close()
    facts = facts_in(page_of(tmp_path / "digits"))
    assert facts["phase"] == "died" and "batch" not in facts and "left" not in facts["time"]


def test_the_table_has_values_by_set_the_best_and_units(tmp_path):
    make(tmp_path / "digits", epochs=3, end=True)
    table = page_of(tmp_path / "digits", width=60).split("\n\n")[1]
    assert table.splitlines() == [
        "              train    valid     best",
        "loss         0.9208    1.063    1.063 @3",
        "accuracy     0.6931   0.6317   0.6317 @3",
        "lr        0.0009250",
        "gpu_memory    3.500 GB",
    ]
    narrow = page_of(tmp_path / "digits", width=29).split("\n\n")[1]
    assert narrow.splitlines()[0].split() == ["train", "valid", "best"] and max(map(len, narrow.splitlines())) <= 29
    narrow = page_of(tmp_path / "digits", width=22).split("\n\n")[1]
    assert narrow.splitlines()[0].split() == ["valid", "best"], "the best is shown in every size"


def test_two_runs_of_the_same_name_are_told_apart_by_their_directories(tmp_path):
    for folder in "ab":
        make(tmp_path / folder / "x", epochs=1, end=True)
    text = page_of(tmp_path / "a" / "x", tmp_path / "b" / "x", width=300)
    assert "━ a/x  o b/x" in text


def chart_of(text):
    return text.split("\n\n")[-1].splitlines()


def test_a_loss_that_falls_far_gets_a_log_axis(tmp_path):
    run = make(tmp_path / "a", epochs=0)
    for number, loss in enumerate([9.0, 0.9, 0.1], 1):
        run.record.append(Event("valid", START, epoch=number, update=number, values={"valid/loss": loss}))
    run.close()
    labels = [line.partition("┤")[0].strip() for line in chart_of(page_of(tmp_path / "a")) if "┤" in line]
    assert labels == ["1.0", "0.1"]


def test_a_running_validation_is_not_drawn(tmp_path):
    run = make(tmp_path / "a", epochs=2)
    before = chart_of(page_of(tmp_path / "a"))
    progress(run, 3, 10, at=START + 31, loss=9.0, phase="valid")
    assert chart_of(page_of(tmp_path / "a"))[1:3] == before[1:3]
    run.close()


def test_a_real_fit(tmp_path):
    x = torch.randn(64, 3)
    learner = stoker.Learner(torch.nn.Linear(3, 1), optimizer=stoker.optim.SGD(), lr=0.1, loss=torch.nn.MSELoss())
    learner.fit((x, x.sum(1, keepdim=True)), valid=0.25, epochs=3, batch_size=16, run=tmp_path / "real", show=False)
    text = page_of(tmp_path / "real")
    assert ": finished (Linear, 4 parameters, on " in text and "━ train/loss  o valid/loss" in text
    assert facts_in(text)["epochs"] == "3 of 3"
