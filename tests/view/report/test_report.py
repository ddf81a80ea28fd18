"""The report on a run, read as a browser reads it."""

import base64
import io
import sys

import numpy as np
import pytest
from PIL import Image

from stoker.errors import BadFile, WrongType
from stoker.record import Event, Follower, Record, Run
from stoker.view.report import evaluate_predictions, fitted_html, report_html, write_report
from tests.record.examples import append_fit, example_record
from tests.view.report.pages import HOSTILE, Page, points_of


@pytest.fixture
def run(tmp_path):
    config = {"model": {"hidden": 128, "norm": None}, "name": HOSTILE}
    made = Run.create(tmp_path / "digits", config=config, facts={"git": "abc123", "plan": ["eager, on cpu"]})
    yield made
    made.close()


def test_the_parts_of_a_report(run):
    append_fit(run.record, stop="Early stopping at epoch 5 of 9", planned=9)
    run.record.append(Event("warning", 1055.0, epoch=5, text=f"careful {HOSTILE}"))
    saved = {"name": "00000050", "reason": "every epoch", "bytes": 12_345}
    run.record.append(Event("checkpoint", 1056.0, epoch=5, update=50, extra=saved))
    page = Page(report_html(run))
    heading = [
        "digits",
        "finished",
        ": Early stopping at epoch 5 of 9",
        "0.5000",
        "best valid/loss, in epoch 3",
        "5 of 9",
    ]
    facts = ["1,234 parameters", "model.hidden", "128", HOSTILE, "abc123", "eager, on cpu", f"careful {HOSTILE}"]
    for text in (*heading, *facts, "00000050", "12.3 kB", "valid/accuracy [%]"):
        assert text in page.texts, text
    assert len(page.all("svg")) == 3 and {"loss", "accuracy", "lr"} <= set(page.texts)


def test_the_table_of_epochs_holds_the_records_values(run):
    append_fit(run.record)
    page = Page(report_html(run))
    at = page.texts.index("Epochs")
    head = page.texts[at + 1 : at + 7]
    assert head == ["epoch", "train/loss", "valid/loss", "train/accuracy", "valid/accuracy", "lr"]
    third = page.texts[at + 7 + 2 * 6 : at + 7 + 3 * 6]
    assert third == ["3", "0.3333", "0.5000", "0.7500", "0.5300", "0.03333"]
    assert [each for each in page.all("tr") if each.get("class") == "best"] != []


def test_hostile_names_and_facts_are_shown_as_text(tmp_path):
    run = Run.create(tmp_path / "x", facts={"git": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    run.record.append(Event("begin", 1.0, extra={"model": HOSTILE, "device": HOSTILE, "epochs": 3}))
    values = {HOSTILE: 1.0, f"valid/{HOSTILE}": 2.0, f"valid/{HOSTILE}/0/0": 1.0, "half/\ud800": 3.0}
    for epoch in (1, 2, 3):
        run.record.append(Event("epoch", float(epoch), epoch=epoch, update=epoch, values=values))
    trace = f"Traceback\n{HOSTILE}"
    run.record.append(Event("error", 4.0, text=HOSTILE, extra={"traceback": trace}))
    run.close()
    html = report_html(run)
    page = Page(html)
    assert HOSTILE in page.texts and trace in page.texts and f"{HOSTILE} {HOSTILE}" in page.texts
    assert html.encode(), "it holds no lone surrogates"


def test_an_evaluation_adds_its_results():
    random = np.random.default_rng(0)
    scores, targets = random.normal(size=(100, 3)), random.integers(0, 3, 100)
    images = random.normal(size=(100, 1, 8, 8))
    found = evaluate_predictions(scores, targets, inputs=images, labels=["cat", "dog", HOSTILE])
    page = Page(report_html(example_record(), found))
    assert len(page.all("img")) == 12 and "Calibration" in page.texts and HOSTILE in page.texts
    cells = [each for each in page.all("td") if "style" in each]
    assert len(cells) == 9 and all(each["style"].startswith("--share:0.") for each in cells)
    rows = Page(report_html(example_record(), evaluate_predictions(scores[:, 0], scores[:, 1], inputs=scores)))
    assert rows.all("img") == [] and "Worst samples" in rows.texts and "Calibration" not in rows.texts


def test_the_recorded_confusion_matrix():
    record = example_record()
    cells = {f"valid/confusion/{row}/{column}": float(row + column) for row in range(3) for column in range(3)}
    record.append(Event("log", 2000.0, epoch=5, update=50, values=cells))
    page = Page(report_html(record))
    assert "valid/confusion" in page.texts and "valid/confusion/0/0" not in page.text
    found = evaluate_predictions(np.eye(2), [0, 1])
    assert "valid/confusion" not in Page(report_html(record, found)).texts, "the evaluation has one already"


def test_the_file_does_not_grow_with_the_run():
    pages = [report_html(long_run(events, metrics=60)) for events in (1000, 3000)]
    assert len(pages[1]) < 1.1 * len(pages[0]) and len(pages[1]) < 1_000_000
    page = Page(pages[1])
    assert len(page.all("svg")) == 24 and "6 more charts are left out" in page.texts


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


def test_writing_a_report(tmp_path):
    html = report_html(example_record())
    path = write_report(tmp_path / "new" / "report.html", html)
    assert path.read_text(encoding="utf-8") == html
    with pytest.raises(BadFile, match=r"can't write the report to '.*': Is a directory"):
        write_report(tmp_path, html)


def test_a_page_forbids_scripts_and_has_dark_and_printed_styles():
    html = report_html(example_record())
    policy = next(each["content"] for each in Page(html).all("meta") if "http-equiv" in each)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:") and "script" not in policy
    assert "prefers-color-scheme: dark" in html and "@media print" in html


def curve(values, name="valid/loss", kind="valid"):
    record = Record()
    for update, value in enumerate(values, 1):
        record.append(Event(kind, 10.0 * update, epoch=update, update=update, values={name: value}))
    return record


def test_the_lines_of_a_chart_are_the_values():
    values = [0.5, 0.2, 0.4, 0.3]
    (line,) = points_of(Page(report_html(curve(values))))
    x, y = np.array(line).T
    assert np.allclose(np.diff(x), (x[-1] - x[0]) / 3, atol=0.11)
    assert np.corrcoef(y, values)[0, 1] < -0.9999, "y grows downwards"
    broken = points_of(Page(report_html(curve([0.5, 0.4, float("nan"), 0.3, 0.2, float("inf"), 0.1]))))
    assert [len(line) for line in broken] == [2, 2]


def test_running_values_are_a_faint_background():
    page = Page(report_html(example_record(epochs=5)))
    faint = [line for line in page.all("polyline") if "stroke-opacity" in line]
    assert [line["stroke"] for line in faint] == ["#0072B2"] and page.all("polyline").index(faint[0]) == 0
    running = curve([0.5, 0.4, 0.3, 0.2], kind="progress")
    assert [len(line) for line in points_of(Page(report_html(running)))] == [4], "without epochs they are the curve"


def test_a_long_line_is_thinned_and_keeps_its_peak():
    values = np.full(20_000, 0.5)
    values[[7000, 13_000]] = 9.0, 0.4
    (line,) = points_of(Page(report_html(curve(values.tolist()))))
    _, y = np.array(line).T
    assert len(line) <= 310 and (y == y.min()).sum() == 1


def test_cells_of_a_matrix_are_as_dark_as_their_share():
    found = evaluate_predictions([[1.0, 0.0]] * 8 + [[0.0, 1.0]] * 2, [0] * 10, labels=["cat", "dog"])
    page = Page(report_html(example_record(), found))
    styles = [each["style"] for each in page.all("td") if "style" in each]
    assert styles == ["--share:0.800", "--share:0.200", "--share:0.000", "--share:0.000"]
    at = page.texts.index("predicted label")
    assert page.texts[at + 2 : at + 5] == ["cat", "dog", "2"]


@pytest.mark.parametrize("installed", [True, False])
def test_many_classes_and_image_samples_are_images_if_matplotlib_is_installed(monkeypatch, installed):
    if not installed:
        monkeypatch.setitem(sys.modules, "matplotlib.image", None)
    scores = np.eye(100)
    for inputs, count in ((np.zeros((100, 3, 8, 8)), 13), (np.zeros((100, 4, 8, 8)), 1), (np.zeros((100, 2, 8)), 1)):
        found = evaluate_predictions(scores, np.roll(np.arange(100), 1), inputs=inputs)
        page = Page(report_html(example_record(), found))
        assert len(page.all("img")) == count * installed
        assert ("Install matplotlib" in page.text) == (not installed)


def test_image_samples_are_scaled_from_their_lowest_to_their_highest_value():
    image = np.linspace(-1, 1, 16).reshape(4, 4)
    image[0, 0] = np.nan
    found = evaluate_predictions(np.eye(2), [1, 0], inputs=np.stack([image, np.full((4, 4), np.inf)]))
    first, second = (
        np.array(Image.open(io.BytesIO(base64.b64decode(each["src"].partition(",")[2]))).convert("L"))
        for each in Page(report_html(example_record(), found)).all("img")
    )
    assert first[-1, -1] == 255 and first[0, 1] <= 1 and 0 < first[0, 0] < 255 and second.shape == (4, 4)


def test_any_form_of_a_run_gives_the_same_report(run):
    append_fit(run.record)
    follower = Follower(run.path)
    follower.refresh()
    reports = {report_html(form) for form in (run, run.path, str(run.path), follower)}
    assert len(reports) == 1
    texts, in_memory = Page(reports.pop()).texts, Page(report_html(run.record)).texts
    assert "a fit" in in_memory
    for part in ("Numbers", "Epochs"):
        assert texts[texts.index(part) :][:30] == in_memory[in_memory.index(part) :][:30]


def test_what_is_not_a_run(tmp_path):
    with pytest.raises(BadFile, match="is not a run: it has no events.jsonl"):
        report_html(tmp_path)
    with pytest.raises(WrongType, match="a Run, a Follower or a Record; got an object of type int"):
        report_html(3)


def test_the_card_of_a_fit_in_a_notebook():
    html = fitted_html(example_record(), title="Net", stopped="Completed 5 epochs")
    page = Page(html)
    assert page.texts[:3] == ["Net", " fitted: 5 epochs, 50 updates in 50.0 s on cpu", "Completed 5 epochs"]
    assert len(page.all("img")) == 1 and len(page.all("pre")) == 1
    assert page.texts[3].endswith("* best valid/loss: 0.5000 in epoch 3")
    assert "background" not in html and ";color:" not in html, "it takes the notebook's own colors"
    record = Record()
    assert "no epochs yet" in Page(fitted_html(record)).texts
    record.append(Event("begin", 1.0, extra={"model": HOSTILE, "device": HOSTILE}))
    record.append(Event("epoch", 2.0, epoch=1, values={HOSTILE: 1.0, "half\ud800": 2.0}))
    html = fitted_html(record, stopped=HOSTILE)
    assert Page(html).texts.count(HOSTILE) == 2 and html.encode()


def test_media_are_inside_the_page_and_never_markup(tmp_path):
    run = Run.create(tmp_path / "run")
    place = {"epoch": 1, "update": 10}
    files = {
        "<b>note": ("text", "txt", b"<script>alert(1)</script>", {}),
        "weights": ("histogram", "json", b'{"edges": [0.0, 0.5, 1.0], "counts": [3, 1]}', {}),
        "errors": ("table", "json", b'{"columns": ["name", "loss"], "rows": [["<i>x</i>", 0.5]]}', {}),
    }
    (run.path / "media").mkdir()
    for number, (name, (kind, suffix, data, extra)) in enumerate(files.items()):
        path = f"media/{number:08}-item.{suffix}"
        (run.path / path).write_bytes(data)
        facts = {"name": name, "type": kind, "file": path, "caption": "", "bytes": len(data), **extra}
        run.record.append(Event("media", 1.0, extra=facts, **place))
    run.record.append(Event("media", 1.0, extra={"name": "gone", "type": "text", "file": "media/x.txt"}, **place))
    run.close()
    html = report_html(run.path)
    assert "&lt;script&gt;alert(1)" in html and "<script" not in html and "&lt;b&gt;note, update 10" in html
    assert "&lt;i&gt;x&lt;/i&gt;" in html and "<title>weights</title>" in html and "can&#x27;t be read" in html
