"""Several runs in one page: how they ended, their curves in shared charts, and where their configs differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from stoker._text import format_duration, format_number, format_time
from stoker.errors import InvalidArgument
from stoker.record import Best, LineStyle, flatten_config, group_by_metric, line_styles, run_settings
from stoker.view._tables import compare_configs
from stoker.view.report._html import Html, element, join, note, page, pairs, section, table, to_html
from stoker.view.report._reader import RunLike, RunReader, open_run
from stoker.view.report._report import curve_line, draw_charts

_MISSING = "–"
_MAX_CHARTS = 24
_FACTS = ("model", "optimizer", "precision", "seed", "device", "git", "versions")


def compare_html(*runs: RunLike) -> str:
    """Two or more runs as one HTML file: how they ended, their curves, and where their configs differ.

    >>> from stoker.record import Event, Record
    >>> first, second = Record(), Record()
    >>> for record, loss in ((first, 0.5), (second, 0.4)):
    ...     record.append(Event("valid", 1.0, epoch=1, update=10, values={"valid/loss": loss}))
    >>> "0.4000" in compare_html(first, second)
    True
    """
    if len(runs) < 2:
        raise InvalidArgument(f"compare_html needs two runs or more; got {len(runs)}")
    readers = [open_run(run) for run in runs]
    styles = list(line_styles(map(str, range(len(readers)))).values())
    keys = [
        element("span", run.name, class_="key", style=f"--own:{style.color}")
        for run, style in zip(readers, styles, strict=True)
    ]
    same, different = compare_configs({number: _config(run) for number, run in enumerate(readers)})
    rows = [
        (name, *(values.get(number, _MISSING) for number in range(len(readers)))) for name, values in different.items()
    ]
    title = f"{len(readers)} runs"
    return page(
        title,
        element("h1", title),
        section("Results", _results(readers, keys), _best_values(readers, keys)),
        section("Curves", _curves(readers, styles)),
        section("Different settings", table(("field", *keys), rows) if rows else note("None.")),
        section("Common settings", pairs({name: str(value) for name, value in same.items()}), folded=True),
    )


def _results(runs: Sequence[RunReader], keys: Sequence[Html]) -> Html:
    rows = []
    for run, key in zip(runs, keys, strict=True):
        summary = run.summary
        best: Mapping[str, Any] = summary.get("best") or {}
        text = f"{best['name']} {format_number(best['value'])}, epoch {best['epoch']}" if best else ""
        state = element("span", run.state, class_=f"state {run.state}")
        length = (f"{summary.get('updates', 0):,}", format_duration(summary.get("seconds", 0.0)))
        rows.append((key, state, text, *length, format_time(summary.get("started"))))
    return table(("run", "state", "best", "updates", "training time", "started"), rows)


def _best_values(runs: Sequence[RunReader], keys: Sequence[Html]) -> Html:
    """The best value of every metric, the best run's in bold, and the last values of the others."""
    best_rows, last_rows = [], []
    for name in _names(runs):
        direction = next((found for run in runs if (found := run.direction(name)) is not None), None)
        best = [run.best(name) if direction is not None else None for run in runs]
        known = [found.value for found in best if found is not None]
        if known:
            winner = min(known) if direction == "min" else max(known)
            best_rows.append((name, *(_best_cell(found, winner) for found in best)))
            continue
        last = [run.summary["last"].get(name) for run in runs]
        if any(value is not None for value in last):
            last_rows.append((name, *(_MISSING if value is None else format_number(value) for value in last)))
    tables = [
        table((title, *keys), rows, numbers=True) for title, rows in (("best", best_rows), ("last", last_rows)) if rows
    ]
    return join(tables)


def _best_cell(best: Best | None, winner: float) -> Html:
    if best is None:
        return to_html(_MISSING)
    text = element("b", format_number(best.value)) if best.value == winner else to_html(format_number(best.value))
    return join([text, element("span", f" @{best.epoch}", class_="dim")])


def _curves(runs: Sequence[RunReader], styles: Sequence[LineStyle]) -> Html:
    """A chart per name with a line per run."""
    names = _names(runs)
    charts = []
    for name in names[:_MAX_CHARTS]:
        lines = [
            curve_line(run, run.name, name, style)
            for run, style in zip(runs, styles, strict=True)
            if len(run.points(name))
        ]
        charts.append((name, lines, any(run.direction(name) == "min" for run in runs)))
    return draw_charts(charts, len(names) - len(charts))


def _names(runs: Sequence[RunReader]) -> list[str]:
    """The names of any run, except cells of matrices; validation first."""
    groups = [group_by_metric(run.names) for run in runs]
    names = list(dict.fromkeys(name for group in groups for names in group.values() for name in names))
    return sorted(names, key=lambda name: (not name.startswith("valid/"), not name.startswith("train/")))


def _config(run: RunReader) -> dict[str, Any]:
    """The run's config and settings, and the facts of its environment that can make a difference."""
    settings = run_settings(None, run.facts)
    facts = {"parameters": run.summary.get("parameters"), **{name: run.facts.get(name) for name in _FACTS}}
    facts = {name: value for name, value in facts.items() if value is not None and name not in settings}
    return run_settings(run.config, run.facts) | dict(flatten_config({"(run)": facts}))
