"""The report on one run: every section of the page, and the card that a notebook shows for a fit."""

import base64
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker._figure import pixels_to_png
from stoker._text import format_duration, format_number, format_size, format_time
from stoker.errors import BadFile, MissingExtra
from stoker.record import (
    History,
    LineStyle,
    Record,
    flatten_config,
    group_by_metric,
    line_styles,
    use_log_scale,
)
from stoker.view._svg import SvgLine, svg_chart
from stoker.view.report._evaluation import (
    Calibration,
    Evaluation,
    Sample,
    class_names,
    format_values,
    row_shares,
    top_mistakes,
)
from stoker.view.report._html import Html, element, join, note, page, pairs, section, table, to_html
from stoker.view.report._media import media_html
from stoker.view.report._reader import RunLike, RunReader, open_run, recorded_matrices

# What exceeds these limits is folded or left out.
_MAX_CHARTS, _MAX_LINES, _MAX_MATRICES = 24, 8, 4
_MAX_NUMBERS, _MAX_COLUMNS, _EPOCHS_AT_EACH_END = 40, 12, 10
_MESSAGES_AT_EACH_END, _TRACEBACK, _MAX_CHECKPOINTS, _MAX_LOG = 100, 4000, 20, 200
_MAX_POINTS = 300  # of a line
_MIN_CURVE = 3  # epochs; with fewer, the curve is made of the running values
_MAX_CLASS_CELLS = 20  # classes; a larger confusion matrix is an image
_MAX_PIXELS = 256  # of a sample's longer side
_FACTS = ("git", "seed", "device", "precision", "optimizer", "platform", "host", "folder")
_BLUE, _GREY = line_styles(["train"])["train"].color, "#888888"


def report_html(run: RunLike, evaluation: Evaluation | None = None) -> str:
    """A run as one HTML file: state, curves, best epoch, numbers, config, environment and warnings.

    >>> from stoker.record import Event
    >>> record = Record()
    >>> record.append(Event("valid", 1.0, epoch=1, update=10, values={"valid/loss": 0.5}))
    >>> "valid/loss" in report_html(record)
    True

    `evaluation` (see `evaluate_predictions`) adds the model's results on a data set. The file loads nothing and runs no
    script.
    """
    reader = open_run(run)
    has_matrix = evaluation is not None and evaluation.confusion is not None
    return page(
        reader.name,
        _heading(reader),
        section("Curves", _curves(reader)),
        _numbers(reader),
        _evaluation(evaluation) if evaluation is not None else "",
        "" if has_matrix else _recorded_matrices(reader),
        section("Media", media_html(reader.media, reader.path)),
        _epochs(reader),
        section("Config", _fields(reader.config)),
        section("Settings", _fields(reader.facts.get("settings"))),
        _environment(reader),
        _messages(reader),
        _checkpoints(reader),
        section("Log", element("pre", "\n".join(reader.log[-_MAX_LOG:])) if reader.log else "", folded=True),
    )


def write_report(path: str | os.PathLike[str], html: str) -> Path:
    """Writes a page to a file and creates missing folders."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise BadFile(f"can't write the report to {str(path)!r}: {error.strerror or error}") from error
    return path


def fitted_html(record: Record, *, title: str = "", stopped: str = "") -> str:
    """A fit's record as HTML for a notebook: how it ended, above the curves and the table of epochs.

    >>> from stoker.record import Event
    >>> record = Record()
    >>> record.append(Event("valid", 1.0, epoch=1, update=10, values={"valid/loss": 0.5}))
    >>> "best valid/loss" in fitted_html(record, title="Net")
    True
    """
    summary = record.summary()
    length = f"{summary['epochs']} epochs, {summary['updates']:,} updates in {format_duration(summary['seconds'])}"
    device = f" on {summary['device']}" if summary["device"] else ""
    end = stopped or summary["reason"] or summary["state"]
    border = "border:1px solid #8884;border-radius:6px;padding:10px 14px"
    return element(
        "div",
        element("div", element("b", title or summary["model"] or "a model"), f" fitted: {length}{device}"),
        element("div", to_html(end), style="opacity:.7"),
        Html(History(record)._repr_html_()),
        style=f"font-family:sans-serif;font-size:13px;{border};display:inline-block;max-width:100%;overflow-x:auto",
    )


def lr_curve_html(rates: Sequence[float], losses: Sequence[float], suggestion: float) -> str:
    """The loss over the learning rate as HTML for a notebook, with the suggested rate marked.

    >>> "suggestion 0.01" in lr_curve_html([1e-3, 1e-2, 1e-1], [2.3, 1.1, 3.0], 1e-2)
    True
    """
    exponents = [math.log10(rate) for rate in rates]
    nearest = min(range(len(rates)), key=lambda place: abs(exponents[place] - math.log10(suggestion)), default=0)
    best = (exponents[nearest], losses[nearest]) if rates else None
    line = SvgLine("smoothed loss", exponents, losses, LineStyle(_BLUE), best)
    svg = svg_chart("smoothed loss by log10 of the learning rate", [line], width=480, height=240)
    return element("div", element("div", element("b", f"suggestion {suggestion:.3g}")), Html(svg))


def draw_charts(charts: Sequence[tuple[str, Sequence[SvgLine], bool]], left_out: int) -> Html:
    """A grid of charts given as (title, lines, less is better), and a note about the ones that are left out."""
    figures = []
    for title, lines, minimized in charts:
        log = minimized and use_log_scale(value for line in lines for value in line.y)
        svg = svg_chart(title, lines, log=log, x_label="update", width=350, height=200)
        figures.append(element("figure", Html(svg)))
    if not figures:
        return Html("")
    more = note(f"{left_out} more charts are left out" if left_out > 0 else "")
    return join([element("div", *figures, class_="grid"), more])


def curve_line(run: RunReader, label: str, name: str, style: LineStyle, *, running: bool = False) -> SvgLine:
    """A name's values per epoch (all values if there are few epochs), with the best one marked.

    With `running`, its running values as a faint background.
    """
    points = run.points(name, source="running" if running else "epochs")
    if not running and len(points) < _MIN_CURVE:
        points = run.points(name)
    points, best = points.downsample(_MAX_POINTS), run.summary.get("best") or {}
    marker = (best["update"], best["value"]) if best.get("name") == name and not running else None
    return SvgLine(label, points.update.tolist(), points.value.tolist(), style, marker, faint=running)


def _heading(run: RunReader) -> Html:
    summary = run.summary
    best, planned, parameters = summary.get("best"), summary.get("epochs_planned"), summary.get("parameters")
    epochs = summary.get("epochs", 0)
    facts = {f"best {best['name']}, in epoch {best['epoch']}": format_number(best["value"])} if best else {}
    facts |= {
        "epochs": f"{epochs} of {planned}" if planned else str(epochs),
        "updates": f"{summary.get('updates', 0):,}",
        "training time": format_duration(summary.get("seconds", 0.0)),
        f"{parameters:,} parameters" if isinstance(parameters, int) else "model": str(summary.get("model") or ""),
        "device": str(summary.get("device") or ""),
        "started": format_time(summary.get("started")),
    }
    cards = [element("div", element("b", value), name) for name, value in facts.items() if value]
    reason = f": {run.reason.splitlines()[0]}" if run.reason.strip() else ""
    return join(
        [
            element("h1", run.name),
            element("p", element("span", run.state, class_=f"state {run.state}"), reason),
            element("p", run.problem, class_="warning") if run.problem else "",
            element("div", *cards, class_="cards"),
        ]
    )


def _curves(run: RunReader) -> Html:
    """A chart per metric, training and validation together; running values are a faint background."""
    groups = group_by_metric(run.names)
    charts = []
    for title, names in list(groups.items())[:_MAX_CHARTS]:
        names = names[:_MAX_LINES]
        lines = []
        for name, style in line_styles(names).items():
            lines.append(curve_line(run, name, name, style))
            background = curve_line(run, name, name, style, running=True)
            if len(background.x) >= _MIN_CURVE and len(run.points(name, source="epochs")) >= _MIN_CURVE:
                lines.append(background)
        charts.append((title, lines, all(run.direction(name) == "min" for name in names)))
    return draw_charts(charts, len(groups) - len(charts))


def _names(run: RunReader) -> list[str]:
    """All names except the cells of matrices, grouped by metric."""
    return [name for names in group_by_metric(run.names).values() for name in names]


def _numbers(run: RunReader) -> Html:
    """The last and the best value of every name."""
    rows = []
    for name in _names(run):
        last = run.summary["last"].get(name)
        if last is None:  # only running values so far
            last = next(iter(run.points(name).value[-1:].tolist()), None)
        best, unit = run.best(name), run.unit(name)
        best_cells = (format_number(best.value), best.epoch) if best is not None else ("", "")
        rows.append((f"{name} [{unit}]" if unit else name, format_number(last), *best_cells))
    shown = table(("name", "last", "best", "in epoch"), rows, numbers=True) if rows else ""
    return section("Numbers", shown, folded=len(rows) > _MAX_NUMBERS)


def _epochs(run: RunReader) -> Html:
    """The first and last epochs and the best one."""
    names = [name for name in _names(run) if name in run.summary["last"]]
    columns = names[:_MAX_COLUMNS]
    values: dict[int, dict[str, float]] = {}
    for name in columns:
        points = run.points(name, source="epochs")
        for epoch, value in zip(points.epoch.tolist(), points.value.tolist(), strict=True):
            values.setdefault(int(epoch), {})[name] = value
    if not values:
        return Html("")
    best = (run.summary.get("best") or {}).get("epoch")
    epochs = sorted(values)
    ends = {*epochs[:_EPOCHS_AT_EACH_END], *epochs[-_EPOCHS_AT_EACH_END:], best}
    shown = [epoch for epoch in epochs if epoch in ends]
    rows = [(epoch, *(format_number(values[epoch].get(name)) for name in columns)) for epoch in shown]
    left_out = {"epochs": len(epochs) - len(shown), "columns": len(names) - len(columns)}
    more = " and ".join(f"{count:,} {what}" for what, count in left_out.items() if count)
    bold = shown.index(best) if best in shown else None
    return section(
        "Epochs",
        table(("epoch", *columns), rows, bold=bold, numbers=True),
        note(f"{more} more are left out" if more else ""),
    )


def _fields(config: Any) -> Html:
    return pairs({name: str(value) or "''" for name, value in flatten_config(config)})


def _environment(run: RunReader) -> Html:
    facts, versions = run.facts, run.facts.get("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    plan = facts.get("plan") or (run.begin.extra.get("plan") if run.begin is not None else None)
    values = {
        "versions": ", ".join(f"{name} {version}" for name, version in known if version),
        **{name: facts.get(name) for name in _FACTS},
        "command": " ".join(_texts(facts.get("command"))),
    }
    return section("Environment", pairs(values), element("pre", "\n".join(_texts(plan))) if _texts(plan) else "")


def _texts(value: Any) -> list[str]:
    """The strings of a list out of a file, which may hold something else."""
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _messages(run: RunReader) -> Html:
    """Notes, warnings, errors, stops and resumes, in order."""
    events = [event for event in run.messages if event.kind != "checkpoint"]
    left_out = max(0, len(events) - 2 * _MESSAGES_AT_EACH_END)
    rows = []
    for event in [*events[:_MESSAGES_AT_EACH_END], *events[_MESSAGES_AT_EACH_END + left_out :]]:
        trace = str(event.extra.get("traceback", ""))[-_TRACEBACK:]
        text = join([event.text, element("pre", trace) if trace else ""])
        kind = element("span", event.kind, class_=event.kind)
        rows.append((format_time(event.time), kind, f"epoch {event.epoch}", text))
    more = note(f"{left_out:,} messages in the middle are left out" if left_out else "")
    return section("Messages", table((), rows) if rows else "", more)


def _checkpoints(run: RunReader) -> Html:
    events = [event for event in run.messages if event.kind == "checkpoint"]
    rows = []
    for event in events[-_MAX_CHECKPOINTS:]:
        extra = event.extra
        size = extra.get("bytes")
        size = format_size(size) if isinstance(size, int) and 0 <= size < 1 << 63 else ""
        position = (event.epoch, f"{event.update:,}")
        rows.append((extra.get("name", ""), *position, extra.get("reason", ""), size, format_time(event.time)))
    more = note(f"the newest of {len(events):,} that were written" if len(events) > len(rows) else "")
    shown = table(("name", "epoch", "update", "reason", "size", "time"), rows) if rows else ""
    return section("Checkpoints", shown, more, folded=True)


def _recorded_matrices(run: RunReader) -> Html:
    matrices = recorded_matrices(run)
    shown = list(matrices.items())[:_MAX_MATRICES]
    left_out = len(matrices) - len(shown)
    parts = [
        section(name, _confusion(matrix.values, class_names(matrix.labels or None, len(matrix.values))))
        for name, matrix in shown
    ]
    return join([*parts, note(f"{left_out} more matrices are left out" if left_out else "")])


def _evaluation(evaluation: Evaluation) -> Html:
    """The model's results on a data set: confusion matrix, calibration and the worst samples."""
    parts = [
        section(
            "Predictions", element("p", f"{evaluation.count:,} samples, mean loss {format_number(evaluation.loss)}")
        )
    ]
    if evaluation.confusion is not None:
        parts.append(section("Confusion matrix", _confusion(evaluation.confusion, evaluation.labels)))
    if evaluation.calibration is not None:
        parts.append(section("Calibration", _calibration(evaluation.calibration)))
    if evaluation.worst:
        samples = element("div", *map(_sample, evaluation.worst), class_="samples")
        parts.append(section("Worst samples", note("highest loss first"), samples))
    return join(parts)


def _confusion(counts: np.ndarray, names: Sequence[str]) -> Html:
    """The matrix, as a table or (of many classes) as an image, and the most frequent mistakes."""
    mistakes = [(names[row], names[column], f"{count:.4g}") for row, column, count in top_mistakes(counts)]
    listed = table(("true label", "predicted label", "count"), mistakes) if mistakes else Html("")
    if len(counts) > _MAX_CLASS_CELLS:
        alt = f"confusion matrix of {len(counts)} classes: rows are the true classes"
        missing = note("Install matplotlib (stoker[plot]) to see a matrix of this size as an image.")
        return join([element("p", _image(row_shares(counts), alt, cmap="Blues") or missing), listed])
    lines = [element("tr", element("th", "true ↓  predicted →", scope="col"), *(element("th", name) for name in names))]
    for name, row, shares in zip(names, counts, row_shares(counts), strict=True):
        cells = [
            element("td", f"{count:.4g}", style=f"--share:{share:.3f}", class_="full" if share > 0.5 else None)
            for count, share in zip(row, shares, strict=True)
        ]
        lines.append(element("tr", element("th", name, scope="row"), *cells))
    return join([element("div", element("table", *lines, class_="matrix"), class_="wide"), listed])


def _calibration(calibration: Calibration) -> Html:
    filled = calibration.count > 0
    confidence = calibration.confidence[filled].tolist()
    share = (calibration.count[filled] / calibration.count.sum()).tolist()
    lines = [
        SvgLine("perfect", [0.0, 1.0], [0.0, 1.0], LineStyle(_GREY, 1)),
        SvgLine("fraction of positives", confidence, calibration.accuracy[filled].tolist(), LineStyle(_BLUE)),
        SvgLine("share of samples", confidence, share, LineStyle(_GREY, 2)),
    ]
    text = (
        "How often predictions of a given confidence are correct; "
        f"the expected calibration error is {100 * calibration.error:.2g} %."
    )
    svg = svg_chart("fraction of positives by mean predicted probability", lines, width=350, height=260)
    return join([element("p", text), element("div", element("figure", Html(svg)), class_="grid")])


def _sample(sample: Sample) -> Html:
    shown = Html("")
    if sample.value is not None:
        image = _image(_pixels(sample.value), f"sample {sample.place}") if _is_image(sample.value) else ""
        shown = image or element("p", format_values(sample.value))
    lines = [
        f"sample {sample.place}",
        f"true: {sample.target}",
        f"predicted: {sample.answer}",
        f"loss {format_number(sample.loss)}",
    ]
    return element("figure", shown, element("figcaption", *(element("p", line) for line in lines)))


def _is_image(sample: np.ndarray) -> bool:
    """Whether a sample has the shape [height, width] or [1 or 3, height, width]."""
    has_image_shape = sample.ndim == 2 or (sample.ndim == 3 and sample.shape[0] in (1, 3))
    return has_image_shape and min(sample.shape[-2:]) >= 4


def _pixels(sample: np.ndarray) -> np.ndarray:
    """A sample scaled from its lowest (0) to its highest value (1), as [height, width] or [height, width, 3]."""
    values = sample.astype(np.float64)
    if values.ndim == 3:
        values = values[0] if len(values) == 1 else np.moveaxis(values, 0, -1)
    step = -(-max(values.shape[:2]) // _MAX_PIXELS)
    values = np.nan_to_num(values[::step, ::step], posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    return (values - low) / ((high - low) or 1.0)


def _image(pixels: np.ndarray, alt: str, *, cmap: str = "gray") -> Html:
    """Pixels from 0 to 1 as an image inside the page; empty without matplotlib."""
    try:
        data = base64.b64encode(pixels_to_png(pixels, cmap)).decode()
    except MissingExtra:
        return Html("")
    return element("img", src=f"data:image/png;base64,{data}", alt=alt)
