"""The parts of a report that say how a run went and what it was; an empty one where the run has nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.record import duration, flat, group_by_metric, number, when
from stoker.view.report._confusion import confusions, names_of
from stoker.view.report._heat import heat
from stoker.view.report._markup import Html, element, joined, pairs, section, table
from stoker.view.report._readable import Readable

_ROWS, _EPOCHS, _COLUMNS, _MATRICES = 40, 10, 12, 4  # more are folded, or left out; of epochs, at either end
_FACTS = ("git", "seed", "device", "precision", "optimizer", "platform", "host", "folder")


def heading(run: Readable) -> Html:
    """What the run is called, how it stands, and the few numbers that everybody asks for."""
    state = element("span", run.state, class_=f"state {run.state}")
    reason = f": {run.reason.splitlines()[0]}" if run.reason.strip() else ""
    problem = element("p", run.problem, class_="warning") if run.problem else ""
    cards = [element("div", element("b", value), name) for name, value in _cards(run.summary).items()]
    return joined(
        [element("h1", run.name), element("p", state, reason), problem, element("div", *cards, class_="cards")]
    )


def _cards(told: Mapping[str, Any]) -> dict[str, str]:
    best, planned, parameters = told.get("best"), told.get("epochs_planned"), told.get("parameters")
    cards = {f"best {best['name']}, in epoch {best['epoch']}": number(best["value"])} if best else {}
    cards["epochs"] = f"{told.get('epochs', 0)} of {planned}" if planned else str(told.get("epochs", 0))
    cards["updates"] = f"{told.get('updates', 0):,}"
    cards["training"] = duration(told.get("seconds", 0.0))
    cards[f"{parameters:,} parameters" if isinstance(parameters, int) else "model"] = str(told.get("model") or "")
    cards["device"] = str(told.get("device") or "")
    cards["began"] = when(told.get("started"))
    return {name: value for name, value in cards.items() if value}


def numbers(run: Readable) -> Html:
    """Every number's last and best value."""
    rows = []
    for name in _names(run):
        points = run.points(name, source="epochs")
        points = points if len(points) else run.points(name)
        best = run.best(name)
        told = (number(best.value), best.epoch) if best is not None else ("", "")
        label = f"{name} [{unit}]" if (unit := run.unit(name)) else name
        rows.append((label, number(float(points.value[-1])) if len(points) else "", *told))
    shown = element("div", table(("number", "last", "best", "in epoch"), rows), class_="numbers")
    return section("Numbers", shown if rows else "", folded=len(rows) > _ROWS)


def epochs(run: Readable) -> Html:
    """The first and last epochs, and the best one, with as many numbers as a page is wide."""
    names = [name for name in _names(run) if len(run.points(name, source="epochs"))]
    columns, rows = names[:_COLUMNS], dict[int, dict[str, float]]()
    for name in columns:
        points = run.points(name, source="epochs")
        for epoch, value in zip(points.epoch.tolist(), points.value.tolist(), strict=True):
            rows.setdefault(int(epoch), {})[name] = value
    best = (run.summary.get("best") or {}).get("epoch")
    order = sorted(rows)
    ends = {*order[:_EPOCHS], *order[-_EPOCHS:]}
    kept = [epoch for epoch in order if epoch in ends or epoch == best]
    lines = [(epoch, *(number(rows[epoch].get(name)) for name in columns)) for epoch in kept]
    bold = kept.index(best) if best in kept else None
    left = {"epochs": len(order) - len(kept), "numbers": len(names) - len(columns)}
    more = " and ".join(f"{count:,} {what}" for what, count in left.items() if count)
    shown = element("div", table(("epoch", *columns), lines, bold=bold), class_="numbers")
    told = element("p", f"{more} more are left out", class_="dim") if more else ""
    return section("Epochs", shown, told) if lines else Html("")


def matrices_of(run: Readable) -> Html:
    """The confusion matrices that the run recorded, as they were in its best epoch."""
    found = list(confusions(run).items())
    shown = [section(name, heat(counts, names_of(None, len(counts)))) for name, counts in found[:_MATRICES]]
    left = len(found) - len(shown)
    return joined([*shown, element("p", f"{left} more matrices are left out", class_="dim") if left else ""])


def config(run: Readable) -> Html:
    """What was asked for: the user's config, and what the learner was told."""
    told = {"Config": run.config, "Settings": run.facts.get("settings")}
    return joined(
        section(title, pairs({name: str(value) or "''" for name, value in flat(found)}))
        for title, found in told.items()
    )


def environment(run: Readable) -> Html:
    """What ran, on what, and by which plan."""
    facts, versions = run.facts, run.facts.get("versions")
    known = versions.items() if isinstance(versions, Mapping) else ()
    told = {
        "versions": ", ".join(f"{name} {version}" for name, version in known if version),
        **{name: facts.get(name) for name in _FACTS},
        "command": " ".join(_texts(facts.get("command"))),
    }
    begun = run.begin.extra.get("plan") if run.begin is not None else None
    plan = "\n".join(_texts(facts.get("plan") or begun))
    return section("Environment", pairs(told), element("pre", plan) if plan else "")


def _names(run: Readable) -> list[str]:
    """All numbers but the cells of matrices, those of one metric beside each other."""
    return [name for names in group_by_metric(run.names).values() for name in names]


def _texts(found: Any) -> Sequence[str]:
    """A list out of a file, which may hold something else."""
    return [str(each) for each in found] if isinstance(found, list | tuple) else []
