"""A run's numbers as pictures of a page, thinned to what can be seen."""

from collections.abc import Mapping, Sequence

from stoker.record import LineStyle, Points, group_by_metric, line_styles, use_log_scale
from stoker.view._svg import Line, chart
from stoker.view.report._markup import Html, element
from stoker.view.report._readable import Readable

_PANELS, _LINES = 24, 8  # more pictures, and more lines in one, are left out
_ENOUGH = 3  # points that make a curve; of fewer epochs, what came in on the way is the curve
_POINTS = 300  # of a line: one for each pixel is more than an eye tells apart


def curves(run: Readable) -> Html:
    """A picture for each metric, training and validation together; what came in on the way stands behind, faint."""
    grouped = group_by_metric(run.names)
    pictures = [_picture(run, title, names[:_LINES]) for title, names in list(grouped.items())[:_PANELS]]
    return _grid(pictures, len(grouped) - len(pictures))


def overlaid(runs: Sequence[Readable], names: Sequence[str], look: Mapping[int, LineStyle]) -> Html:
    """A picture for each number, with a line for each run; `look` has one for each place in `runs`."""
    pictures: list[str] = []
    for name in names[:_PANELS]:
        found = [(place, run, _points(run, name)) for place, run in enumerate(runs)]
        lines = [_line(run, run.name, name, points, look[place]) for place, run, points in found if len(points)]
        falling = any(run.direction(name) == "min" for run in runs)
        pictures.append(_chart(name, lines, falling=falling))
    return _grid(pictures, len(names) - len(pictures))


def _picture(run: Readable, title: str, names: Sequence[str]) -> str:
    look = line_styles(names)
    lines = [_line(run, name, name, _points(run, name), look[name]) for name in names]
    lines += [
        _line(run, name, name, on_the_way, look[name])._replace(faint=True, best=None)
        for name in names
        if len(run.points(name, source="epochs")) >= _ENOUGH
        and len(on_the_way := run.points(name, source="running")) >= _ENOUGH
    ]
    return _chart(title, lines, falling=all(run.direction(name) == "min" for name in names))


def _points(run: Readable, name: str) -> Points:
    epochs = run.points(name, source="epochs")
    return epochs if len(epochs) >= _ENOUGH else run.points(name, source="all")


def _line(run: Readable, label: str, name: str, points: Points, look: LineStyle) -> Line:
    thinned = points.thinned(_POINTS)
    best = run.summary.get("best") or {}
    marked = (best["update"], best["value"]) if best.get("name") == name else None
    return Line(label, thinned.update.tolist(), thinned.value.tolist(), look, marked)


def _chart(title: str, lines: Sequence[Line], *, falling: bool) -> str:
    log = falling and use_log_scale(value for line in lines for value in line.y)
    return chart(title, lines, log=log, axis="update", width=350, height=200)


def _grid(pictures: Sequence[str], left_out: int) -> Html:
    if not pictures:
        return Html("")
    more = element("p", f"{left_out} more are left out", class_="dim") if left_out > 0 else ""
    return Html(element("div", *(element("figure", Html(each)) for each in pictures), class_="grid") + more)
