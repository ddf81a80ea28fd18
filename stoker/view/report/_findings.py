"""What a data set said of a model, in a page: confusion, calibration, and the samples that went most wrong."""

from stoker.record import LineStyle, number
from stoker.view._svg import Line, chart
from stoker.view.report._calibration import Calibration
from stoker.view.report._heat import heat
from stoker.view.report._judged import Judged, Sample, few
from stoker.view.report._markup import Html, element, joined, section
from stoker.view.report._png import image, looks_like_an_image, pixels_of


def findings(found: Judged) -> Html:
    """The sections of a page about a model's answers."""
    told = f"{found.count:,} samples, mean loss {number(found.loss)}"
    parts = [section("Answers", element("p", told))]
    if found.confusion is not None:
        parts.append(section("Confusion matrix", heat(found.confusion, found.labels)))
    if found.calibration is not None:
        parts.append(section("Calibration", _calibration(found.calibration)))
    if found.worst:
        shown = element("div", *map(_sample, found.worst), class_="samples")
        parts.append(section("Worst samples", element("p", "the highest loss first", class_="dim"), shown))
    return joined(parts)


def _calibration(found: Calibration) -> Html:
    seen = found.count > 0
    sure = found.sure[seen].tolist()
    lines = [
        Line("as sure as right", [0.0, 1.0], [0.0, 1.0], LineStyle("#888888", 1)),
        Line("right answers", sure, found.right[seen].tolist(), LineStyle("#0072B2")),
        Line("share of samples", sure, (found.count[seen] / found.count.sum()).tolist(), LineStyle("#888888", 2)),
    ]
    told = f"How often it is right where it is so sure; they lie {100 * found.error:.2g} % apart (expected error)."
    drawn = chart("how often right", lines, width=350, height=260, axis="how sure")
    return joined([element("p", told), element("div", element("figure", Html(drawn)), class_="grid")])


def _sample(sample: Sample) -> Html:
    value = sample.value
    if value is None:
        shown = Html("")
    elif looks_like_an_image(value):
        shown = image(pixels_of(value), alt=f"sample {sample.place}")
    else:
        shown = element("p", few(value))
    told = [
        f"sample {sample.place}",
        f"is {sample.target}",
        f"taken for {sample.answer}",
        f"loss {number(sample.loss)}",
    ]
    lines = (element("p", line) for line in told)
    return element("figure", shown, element("figcaption", *lines))
