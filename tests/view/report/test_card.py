"""A fit in a notebook."""

from stoker.record import Event, Record
from stoker.view.report import fitted_html
from tests.record.stories import story
from tests.view.report.pages import HOSTILE, Page


def test_a_card_with_curves_and_a_table():
    page = Page(fitted_html(story(), title="Net", stopped="Completed 5 epochs"))
    assert page.texts[:3] == ["Net", " fitted: 5 epochs, 50 updates in 50.0 s on cpu", "Completed 5 epochs"]
    assert len(page.all("img")) == 1 and len(page.all("pre")) == 1
    assert page.texts[3].endswith("* best valid/loss: 0.5000 in epoch 3")


def test_it_takes_the_notebooks_own_colours():
    html = fitted_html(story())
    assert "background" not in html and ";color:" not in html and "<style" not in html


def test_hostile_names_and_no_numbers():
    record = Record()
    assert "no epochs yet" in Page(fitted_html(record)).texts
    record.append(Event("begin", 1.0, extra={"model": HOSTILE, "device": HOSTILE}))
    record.append(Event("epoch", 2.0, epoch=1, values={HOSTILE: 1.0, "half\ud800": 2.0}))
    html = fitted_html(record, stopped=HOSTILE)
    page = Page(html)
    assert page.texts.count(HOSTILE) == 2 and HOSTILE in page.texts[-1] and html.encode()
