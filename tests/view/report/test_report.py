"""A report on a run, read as a browser reads it."""

import numpy as np
import pytest

from stoker.errors import BadFile
from stoker.record import Event, Record, Run
from stoker.view.report import Remembered, judged, report_html, write_report
from tests.record.stories import fill, story
from tests.view.report.pages import HOSTILE, Page


@pytest.fixture
def run(tmp_path):
    config = {"model": {"hidden": 128, "norm": None}, "name": HOSTILE}
    made = Run.create(tmp_path / "digits", config=config, facts={"git": "abc123", "plan": ["eager, on cpu"]})
    yield made
    made.close()


def test_everything_about_a_run(run):
    fill(run.record, stop="Early stopping at epoch 5 of 9", planned=9)
    run.record.append(Event("warning", 1055.0, epoch=5, text=f"careful {HOSTILE}"))
    run.record.append(
        Event(
            "checkpoint",
            1056.0,
            epoch=5,
            update=50,
            extra={"name": "00000050", "reason": "every epoch", "bytes": 12_345},
        )
    )
    page = Page(report_html(run))
    for text in (
        "digits",
        "stopped",
        ": Early stopping at epoch 5 of 9",
        "0.5000",
        "best valid/loss, in epoch 3",
        "5 of 9",
        "1,234 parameters",
        "model.hidden",
        "128",
        HOSTILE,
        "abc123",
        "eager, on cpu",
        f"careful {HOSTILE}",
        "00000050",
        "12.3 kB",
        "valid/accuracy [%]",
    ):
        assert text in page.texts, text
    assert len(page.all("svg")) == 3 and {"loss", "accuracy", "lr"} <= set(page.texts)


def test_every_number_of_a_table_is_the_records(run):
    fill(run.record)
    page = Page(report_html(run))
    at = page.texts.index("Epochs")
    head = page.texts[at + 1 : at + 7]
    assert head == ["epoch", "train/loss", "valid/loss", "train/accuracy", "valid/accuracy", "lr"]
    third = page.texts[at + 7 + 2 * 6 : at + 7 + 3 * 6]
    assert third == ["3", "0.3333", "0.5000", "0.7500", "0.5300", "0.03333"]
    assert [each for each in page.all("tr") if each.get("class") == "best"] != []


def test_hostile_names_are_shown_as_text():
    record = Record()
    record.append(Event("begin", 1.0, extra={"model": HOSTILE, "device": HOSTILE, "epochs": 3}))
    values = {HOSTILE: 1.0, f"valid/{HOSTILE}": 2.0, f"valid/{HOSTILE}/0/0": 1.0, "half/\ud800": 3.0}
    for epoch in (1, 2, 3):
        record.append(Event("epoch", float(epoch), epoch=epoch, update=epoch, values=values))
    trace = f"Traceback\n{HOSTILE}"
    record.append(Event("error", 4.0, text=HOSTILE, extra={"traceback": trace}))
    html = report_html(Remembered(record, name=HOSTILE, facts={"git": HOSTILE, "versions": {HOSTILE: HOSTILE}}))
    page = Page(html)
    assert HOSTILE in page.texts and trace in page.texts
    assert html.encode()  # no half letters


@pytest.mark.parametrize("state", ["empty", "one epoch", "progress only", "failed"])
def test_a_run_that_has_hardly_begun(run, state):
    if state == "one epoch":
        fill(run.record, epochs=1, end=False)
    elif state == "progress only":
        run.record.append(Event("progress", 1.0, epoch=1, update=1, values={"train/loss": float("nan")}))
    elif state == "failed":
        run.record.append(Event("error", 1.0, text="boom", extra={"traceback": "Traceback: boom"}))
    page = Page(report_html(run))
    assert "digits" in page.texts and ("boom" in page.text) == (state == "failed")


def test_files_that_hold_something_else(run):
    fill(run.record)
    for name, text in (("run.json", '{"versions": 3, "plan": 7, "command": {}}'), ("config.json", "[1, 2]")):
        (run.path / name).write_text(text)
    assert "digits" in Page(report_html(run.path)).texts
    (run.path / "run.json").write_text("[")
    run.close()
    with (run.path / "events.jsonl").open("a") as file:
        file.write("{damaged\n{}\n")
    assert "damaged" in Page(report_html(run.path)).text


def test_what_a_data_set_says_of_the_model():
    random = np.random.default_rng(0)
    scores, targets = random.normal(size=(100, 3)), random.integers(0, 3, 100)
    images = random.normal(size=(100, 1, 8, 8))
    found = judged(scores, targets, inputs=images, labels=["cat", "dog", HOSTILE])
    page = Page(report_html(story(), found))
    assert len(page.all("img")) == 12 and "Calibration" in page.texts and HOSTILE in page.texts
    cells = [each for each in page.all("td") if "style" in each]
    assert len(cells) == 9 and all(each["style"].startswith("--share:0.") for each in cells)
    rows = Page(report_html(story(), judged(scores[:, 0], scores[:, 1], inputs=scores)))
    assert rows.all("img") == [] and "Worst samples" in rows.texts and "Calibration" not in rows.texts


def test_the_confusion_matrix_of_the_record():
    record = story()
    cells = {f"valid/confusion/{row}/{column}": float(row + column) for row in range(3) for column in range(3)}
    record.append(Event("log", 2000.0, epoch=5, update=50, values=cells))
    page = Page(report_html(record))
    assert "valid/confusion" in page.texts and "valid/confusion/0/0" not in page.text
    found = judged(np.eye(2), [0, 1])
    assert "valid/confusion" not in Page(report_html(record, found)).texts, "there is one of the data already"


def test_a_long_run_makes_no_larger_file():
    sizes = [len(report_html(long_run(events, metrics=40))) for events in (3000, 9000)]
    assert sizes[1] < 1.1 * sizes[0] and sizes[1] < 1_000_000


def long_run(events, metrics):
    record, random = Record(), np.random.default_rng(0)
    names = [f"{part}/m{number}" for number in range(metrics // 2) for part in ("train", "valid")]
    for update in range(events):
        values = dict(zip(names, random.normal(size=metrics).tolist(), strict=True))
        kind = "epoch" if update % 4 == 0 else "progress"
        record.append(Event(kind, 10.0 * update, epoch=update // 4 + 1, update=update, values=values))
        record.append(Event("warning", 10.0 * update, text=f"warning {update}"))
        record.append(Event("checkpoint", 10.0 * update, extra={"name": str(update), "bytes": 1}))
    return record


def test_writing_it(tmp_path):
    html = report_html(story())
    path = write_report(tmp_path / "new" / "report.html", html)
    assert path.read_text(encoding="utf-8") == html
    with pytest.raises(BadFile, match=r"the report can't be written to '.*': Is a directory"):
        write_report(tmp_path, html)
