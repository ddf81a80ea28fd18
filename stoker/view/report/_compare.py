"""Several runs in one page: their curves over each other, and in which fields they differ."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.errors import InvalidArgument
from stoker.record import LineStyle, Record, Run, asked, duration, flat, group_by_metric, line_styles, number, when
from stoker.view.report._curves import overlaid
from stoker.view.report._markup import Html, element, joined, pairs, section, table
from stoker.view.report._page import page
from stoker.view.report._readable import Readable, as_readable

_MISSING = "–"
_FACTS = ("model", "optimizer", "precision", "seed", "device", "git", "versions")


def compare_html(*runs: Readable | Record | Run | str | os.PathLike[str]) -> str:
    """Runs over each other as one HTML file: a table of how they ended, every curve, and what they differ in.

    >>> from stoker.record import Event
    >>> first, second = Record(), Record()
    >>> for record, loss in ((first, 0.5), (second, 0.4)):
    ...     record.append(Event("valid", 1.0, epoch=1, update=10, values={"valid/loss": loss}))
    >>> "0.4000" in compare_html(first, second)
    True
    """
    if len(runs) < 2:
        raise InvalidArgument(f"compare_html compares two runs or more; got {len(runs)}")
    told = [as_readable(run) for run in runs]
    look = dict(enumerate(line_styles(map(str, range(len(told)))).values()))
    keys = [_key(run, look[place]) for place, run in enumerate(told)]
    title = f"{len(told)} runs"
    return page(
        title,
        element("h1", title),
        section("How they ended", _endings(told, keys)),
        section("Curves", overlaid(told, _shared(told), look)),
        section("Different in the config", _different(told, keys)),
        section("The same in all", _same(told), folded=True),
    )


def differing(configs: Sequence[Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The fields that are the same in all configs, and those that differ, with the value (or a dash) in each.

    >>> differing([{"lr": 0.1, "model": {"hidden": 64}}, {"lr": 0.1, "model": {"hidden": 128, "norm": True}}])
    ({'lr': 0.1}, {'model.hidden': [64, 128], 'model.norm': ['–', True]})
    """
    flats = [dict(flat(config)) for config in configs]
    names = list(dict.fromkeys(name for fields in flats for name in fields))
    values = {name: [fields.get(name, _MISSING) for fields in flats] for name in names}
    alike = {
        name: len({json.dumps(value, sort_keys=True, default=str) for value in each}) == 1
        for name, each in values.items()
    }
    return (
        {name: each[0] for name, each in values.items() if alike[name]},
        {name: each for name, each in values.items() if not alike[name]},
    )


def _key(run: Readable, look: LineStyle) -> Html:
    return element("span", run.name, class_="key", style=f"--own:{look.color}")


def _endings(runs: Sequence[Readable], keys: Sequence[Html]) -> Html:
    rows = []
    for run, key in zip(runs, keys, strict=True):
        told = run.summary
        best: Mapping[str, Any] = told.get("best") or {}
        state = element("span", run.state, class_=f"state {run.state}")
        shown = f"{best['name']} {number(best['value'])}, epoch {best['epoch']}" if best else ""
        length = (f"{told.get('updates', 0):,}", duration(told.get("seconds", 0.0)))
        rows.append((key, state, shown, *length, when(told.get("started"))))
    return joined([table(("run", "state", "best", "updates", "training", "began"), rows), _last(runs, keys)])


def _last(runs: Sequence[Readable], keys: Sequence[Html]) -> Html:
    """The last value of every number in every run."""
    rows = []
    for name in _shared(runs):
        last = [run.points(name, source="epochs") for run in runs]
        if any(map(len, last)):
            rows.append((name, *(number(float(points.value[-1])) if len(points) else _MISSING for points in last)))
    return element("div", table(("last", *keys), rows), class_="numbers") if rows else Html("")


def _shared(runs: Sequence[Readable]) -> list[str]:
    """The numbers that any run has, validation first, as that is what runs are judged by; no cells of matrices."""
    names = list(dict.fromkeys(name for run in runs for names in group_by_metric(run.names).values() for name in names))
    return sorted(names, key=lambda name: (not name.startswith("valid/"), not name.startswith("train/")))


def _different(runs: Sequence[Readable], keys: Sequence[Html]) -> Html:
    different = differing([_config(run) for run in runs])[1]
    rows = [(name, *values) for name, values in different.items()]
    return table(("field", *keys), rows) if rows else element("p", "Nothing.", class_="dim")


def _same(runs: Sequence[Readable]) -> Html:
    return pairs({name: str(value) for name, value in differing([_config(run) for run in runs])[0].items()})


def _config(run: Readable) -> dict[str, Any]:
    """What a run was asked for, and what of its surroundings can make a difference."""
    told = run.facts.get("settings") or {}
    ran = {"parameters": run.summary.get("parameters"), **{name: run.facts.get(name) for name in _FACTS}}
    ran = {name: value for name, value in ran.items() if value is not None and name not in told}
    return {**asked(run.config, run.facts), "(run)": ran}
