"""The parts of the screen as colored text: each function takes a snapshot and the width and height it has."""

import functools
from collections.abc import Sequence

from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.style import Style
from rich.text import Text

from stoker._text import escape_control, format_clock, format_count, format_number, shorten, shorten_middle
from stoker.record import Status, line_styles
from stoker.view._chart import MIN_HEIGHT, MIN_WIDTH, QUIET, bars, chart, legend
from stoker.view._tables import MetricRow
from stoker.view.watch._reader import KINDS, OTHERS, SMOOTHING, TRAIN, VALID, ChartLines, RunSnapshot, Snapshot

BAD = OTHERS[3]  # vermilion: failed runs and errors
_STATE_COLORS = {"running": OTHERS[2], "finished": OTHERS[0], "stopped": VALID, "interrupted": VALID}
_PHASES = {"train": "training", "valid": "validating", "over": "ended"}
_LOG_COLORS = {"warning": VALID, "error": BAD}
_TIMESTAMP = len("2026-01-31 12:00:00  ")  # before each line of a log
_DATE = len("2026-01-31 ")
_DIGITS = str.maketrans("123456789", "000000000")
_NARROW = 110  # columns; a narrower log shows times without dates
_VALUE, _SHORT_VALUE = 9, 7  # columns of a value in the table; the second in a narrow one
_CHART_WIDTH, _CHART_HEIGHT = 64, 14  # of a chart, at least, where there are several


def header(snapshot: Snapshot, width: int, _: int = 1) -> Text:
    """The state, path, model and time of the run."""
    run, status = snapshot.run, snapshot.run.status
    left = (
        f" · {format_clock(status.seconds_left)} left"
        if status.seconds_left is not None and run.state == "running"
        else ""
    )
    times = f" {format_clock(status.seconds)}{left} "
    line = Text.assemble(_badge(run.state, _state_color(run.state)), (f"  {escape_control(run.path)}", "bold"))
    line.append(f"  {escape_control(run.title)}", style=QUIET)
    if len(snapshot.runs) > 1:
        line.append(f"  ({snapshot.view.run % len(snapshot.runs) + 1} of {len(snapshot.runs)} runs)", style=QUIET)
    line.truncate(max(0, width - len(times)), overflow="ellipsis", pad=True)
    return line.append(times)


def banner(snapshot: Snapshot, stalled: float = 0.0) -> Text | None:
    """Why the run ended early and what can't be read; `None` if everything is fine."""
    run = snapshot.run
    texts: list[Text] = []
    if run.state not in ("running", "finished"):
        reason = escape_control(run.reason) or "the run recorded no reason"
        texts.append(Text.assemble(_badge("reason", _state_color(run.state)), f" {reason}"))
    if run.problem and run.problem != run.reason:
        texts.append(Text.assemble(_badge("reading", BAD), f" {escape_control(run.problem)}"))
    if stalled:
        text = f" the disk has not answered for {format_clock(stalled)}; this is the last state that was read"
        texts.append(Text.assemble(_badge("waiting", BAD), text))
    elif run.behind:
        texts.append(Text(" a large record: still reading …", style=QUIET))
    return Text("\n").join(texts) if texts else None


def status(snapshot: Snapshot, width: int, height: int) -> Text:
    """Phase, position, speed, time and best value, one per line."""
    run, now = snapshot.run, snapshot.run.status
    running = run.state == "running"
    phase = _PHASES.get(now.phase, now.phase) if running else run.state
    phase += f" on {escape_control(now.set_name)}" if now.phase == "valid" and running else ""
    pace = f", {format_count(now.updates_per_second)}/s" if now.updates_per_second and running else ""
    facts = {
        "phase": phase,
        "epoch" if running else "epochs": _of(now.epoch if running else run.epochs, now.epochs),
        "batch": _of(_batch(now), now.batches) if running and _batch(now) else "",
        "update": _of(now.update, now.updates) + pace,
        "speed": f"{format_count(now.samples_per_second)} samples/s" if now.samples_per_second else "",
        "time": format_clock(now.seconds)
        + (f", {format_clock(now.seconds_left)} left" if now.seconds_left and running else ""),
        # The name comes last because it may be cut.
        "best": f"{format_number(now.best.value)} @{now.best.epoch} {escape_control(now.best.name)}"
        if now.best
        else "",
        "warnings": f"{run.warnings:,}" if run.warnings else "",
    }
    return _stack(
        [Text.assemble((f"{name:<9}", QUIET), value) for name, value in facts.items() if value], width, height
    )


def plan(snapshot: Snapshot, width: int, height: int) -> Text:
    """The lines of the run's plan."""
    return _stack([Text(escape_control(line)) for line in snapshot.run.plan], width, height)


def progress(snapshot: Snapshot, width: int, _: int = 2) -> Text:
    """Two bars: the current epoch (or validation) and the whole run."""
    run, now = snapshot.run, snapshot.run.status
    running = run.state == "running"
    epoch = now.epoch if running else run.epochs
    label = "valid" if now.phase == "valid" else f"epoch {_of(epoch, now.epochs, '/')}"
    batch = f"batch {_of(_batch(now), now.batches, '/')}" if running else ""
    left = f" · {format_clock(now.seconds_left)} left" if now.seconds_left is not None and running else ""
    fraction = 1.0 if run.state == "finished" else now.fraction
    total = f"{fraction:.0%}{left}" if fraction is not None else f"{now.update:,} updates"
    label_width = max(len(label), 5)
    bar_width = max(4, width - label_width - 4 - max(len(batch), len(total), 18))
    within = 1.0 if not running and not now.batch else now.phase_fraction  # ended between two epochs
    first = _bar(f" {label:<{label_width}} ", within, bar_width, VALID if now.phase == "valid" else TRAIN, batch)
    second = _bar(f" {'run':<{label_width}} ", fraction, bar_width, _state_color(run.state), total)
    return _stack([first, second], width, 2)


def log(snapshot: Snapshot, width: int, height: int) -> Text:
    """The last lines of the log; without dates if the pane is narrow."""
    lines = log_lines(snapshot.run, height)
    if width < _NARROW:
        lines = [line[_DATE:] if _has_timestamp(line.plain) else line for line in lines]
    return _stack(lines, width, height)


def log_lines(run: RunSnapshot, most: int = 1000) -> list[Text]:
    """The last lines of the log with warnings, errors and stops highlighted."""
    colors = {**_LOG_COLORS, "stopped": _state_color(run.state if run.state == "finished" else "stopped")}
    lines = [Text(escape_control(line)) for line in (run.log[-most:] if most else ())]
    for line in lines:
        word = line.plain[_TIMESTAMP:].partition(": ")[0]
        if word in colors:
            line.stylize(f"#000000 on {colors[word]}", _TIMESTAMP, _TIMESTAMP + len(word))
    return lines


def settings(run: RunSnapshot) -> Text:
    """The whole plan, config and environment."""
    lines = [Text("plan", style="bold"), *(Text(f"  {escape_control(line)}") for line in run.plan)] if run.plan else []
    lines.append(Text("\nconfig and environment", style="bold"))
    names = min(28, max((len(name) for name, _ in run.settings), default=0))
    for name, value in run.settings:
        lines.append(Text.assemble((f"  {escape_control(name):<{names}}  ", QUIET), escape_control(value)))
    return Text("\n").join(lines)


def metrics(snapshot: Snapshot, width: int, height: int) -> Text:
    """One run: its latest values by data set and the best. Several runs: the state and value of each."""
    if len(snapshot.runs) > 1:
        return _metrics_of_runs(snapshot, width, height)
    run = snapshot.run
    if not run.rows:
        return Text()
    sets = list(run.sets.names)
    size = _VALUE if 8 + _VALUE * (len(sets) + 1) <= width else _SHORT_VALUE
    fitting = max(1, (width - 8) // size - 1)  # the best value is shown in every size
    sets = sorted(sets, key=lambda group: group != run.sets.monitored)[:fitting] if len(sets) > fitting else sets
    names = max(6, min(width - size * (len(sets) + 1), max(len(row.name) for row in run.rows)))
    with_epoch = names + size * (len(sets) + 1) + 4 <= width
    styles = line_styles(sets)
    head = Text(" " * names)
    for group in sets:
        head.append(f"{shorten(escape_control(group), size - 1):>{size}}", style=styles[group].color)
    head.append(f"{'best':>{size}}", style=QUIET)
    room = max(0, height - 1)
    chosen = next((number for number, row in enumerate(run.rows) if row.name == snapshot.tab), 0)
    first = min(max(0, chosen - room // 2), max(0, len(run.rows) - room))  # scrolled to the chosen metric
    rows = [
        _metric_row(snapshot, row, sets, names, size, with_epoch=with_epoch) for row in run.rows[first : first + room]
    ]
    return _stack([head, *rows], width, height)


def _metric_row(
    snapshot: Snapshot, row: MetricRow, sets: Sequence[str], names: int, size: int, *, with_epoch: bool
) -> Text:
    bold = "bold" if row.name == snapshot.tab else ""
    line = Text(
        f"{shorten_middle(escape_control(row.name), names):<{names}}", style=_tab_link(snapshot, row.name, bold)
    )
    if "" in row.values:
        unit = f" {escape_control(row.unit)}" if row.unit else ""
        return line.append(f"{format_number(row.values['']):>{_VALUE}}{unit}")
    for group in sets:
        line.append(f"{_fit_number(row.values.get(group), size):>{size}}", style=bold)
    if row.best is not None:
        line.append(f"{_fit_number(row.best.value, size):>{size}}")
        line.append(f" @{row.best.epoch}" if with_epoch else "", style=QUIET)
    return line


def _fit_number(value: float | None, size: int) -> str:
    """A number with a space before it, with fewer digits if there is no room for four."""
    text = format_number(value)
    return text if value is None or len(text) < size else f"{value:.2g}"


def _metrics_of_runs(snapshot: Snapshot, width: int, height: int) -> Text:
    tab = escape_control(snapshot.tab)
    longest = max(len(escape_control(run.name)) for run in snapshot.runs) + 1
    names = max(8, min(longest, width - 2 * _VALUE - 2))
    values = max(_VALUE, min(len(tab), width - names - _VALUE - 1))
    lines = [Text(f"{'':<{names}}{'state':>{_VALUE}} {shorten(tab, values):>{values}}", style=QUIET)]
    styles = {line.name: line.style for line in snapshot.lines if line.name}
    for number, run in enumerate(snapshot.runs):
        name = escape_control(run.name)
        bold = "bold " if number == snapshot.view.run % len(snapshot.runs) else ""
        style = Style.parse(f"{bold}{styles.get(name, QUIET)}") + _link(f"app.run({number})")
        line = Text().append(f"{shorten_middle(name, names - 1):<{names}}", style=style)
        line.append(f"{shorten(run.state, _VALUE - 1):>{_VALUE}}", style=_state_color(run.state))
        lines.append(line.append(f" {format_number(run.status.latest.get(snapshot.tab)):>{values}}"))
    return _stack(lines, width, height)


def tabs(snapshot: Snapshot, width: int, _: int = 1) -> Text:
    """The metrics around the chosen one, as many as fit; ‹ and › lead to the others."""
    if snapshot.tab not in snapshot.tabs:
        return Text(" no metrics yet", style=QUIET)
    names = [f" {number} {shorten_middle(escape_control(name), 24)} " for number, name in enumerate(snapshot.tabs, 1)]
    chosen = snapshot.tabs.index(snapshot.tab)
    shown = _fit_around(chosen, [len(name) for name in names], width - 2)
    line = Text().append("‹" if shown.start else " ", style=_link("app.metric(-1)"))
    for number in shown:
        style = "bold reverse" if number == chosen else ""
        line.append(names[number], _tab_link(snapshot, snapshot.tabs[number], style))
    return line.append("›" if shown.stop < len(names) else "", style=_link("app.metric(1)"))


def controls(snapshot: Snapshot, width: int, _: int = 1) -> Text:
    """How the chart is drawn; every word can be clicked."""
    view, quiet = snapshot.view, Style.parse(QUIET)
    line = Text("")
    for kind in KINDS:
        style = Style(bold=True, underline=True) if kind == view.kind else quiet
        line.append(" ").append(kind, style=style + _link(f"app.kind('{kind}')"))
    if view.kind != "epochs":
        part = SMOOTHING[view.smoothing]
        line.append("  ").append(f"mean {part:.0%}" if part else "raw", style=quiet + _link("app.smooth(1)"))
        line.append(" ").append("log" if snapshot.log else "linear", style=quiet + _link("app.log"))
        line.append(" ").append(view.by, style=quiet + _link("app.by"))
    line.truncate(width)
    return line


def draw_chart(snapshot: Snapshot, width: int, height: int, *, ascii_only: bool = False, colors: bool = True) -> Text:
    """As many charts as fit, the chosen one first, or a short message if there is no room or nothing to draw."""
    if width < MIN_WIDTH or height < MIN_HEIGHT + 1:
        return Text("too small", style=QUIET)
    charts = [one for one in snapshot.charts if one.lines]
    if not snapshot.lines or not charts:
        return Text("\n  nothing to draw yet", style=QUIET)
    across = min(len(charts), max(1, width // _CHART_WIDTH))
    down = min(-(-len(charts) // across), max(1, height // _CHART_HEIGHT))
    size = (width // across - (across > 1), height // down)
    options = {"titled": across * down > 1, "ascii_only": ascii_only, "colors": colors}
    lines: list[Text] = []
    for first in range(0, across * down, across):
        drawn = [_draw_chart(snapshot, one, *size, **options) for one in charts[first : first + across]]
        for row in range(size[1] if drawn else 0):
            line = Text()
            for column, rows in enumerate(drawn):
                line.truncate(column * (size[0] + 1), pad=True)
                line.append_text(rows[row])
            lines.append(line)
    return Text("\n").join(lines)


def _draw_chart(
    snapshot: Snapshot, one: ChartLines, width: int, height: int, *, titled: bool, ascii_only: bool, colors: bool
) -> list[Text]:
    """A chart under its legend, and its title if the tab does not say it."""
    head = Text(" ")
    if titled:
        head.append(shorten_middle(escape_control(one.title), width // 2), style="bold").append("  ")
    head.append_text(legend(one.lines, ascii_only=ascii_only, colors=colors))
    head.truncate(width, overflow="ellipsis")
    if snapshot.view.kind == "epochs":
        rows = bars(one.lines, width, height - 1, ascii_only=ascii_only, colors=colors)
    else:
        times = snapshot.view.by == "time"
        rows = chart(one.lines, width, height - 1, log=one.log, times=times, ascii_only=ascii_only, colors=colors)
    return [head, *rows]


def with_contrast(text: Text, background: str) -> Text:
    """The text with colors that have a contrast of at least 4.5 to the background, as WCAG asks for.

    >>> str(with_contrast(Text("train", style="#0072B2"), "#101216").style)
    '#2687be'
    """
    text.style = _readable(text.style, background)
    text.spans = [span._replace(style=_readable(span.style, background)) for span in text.spans]
    return text


@functools.lru_cache(maxsize=1000)
def _readable(style: str | Style, background: str) -> Style:
    style = Style.parse(style) if isinstance(style, str) else style
    if style.color is None or style.color.triplet is None or style.bgcolor is not None:
        return style
    behind, color = Color.parse(background).get_truecolor(), style.color.triplet
    towards = (255, 255, 255) if _luminance(behind) < 0.5 else (0, 0, 0)
    for step in range(21):  # mixed with ever more white or black
        mixed = ColorTriplet(
            *(round(part + (end - part) * step / 20) for part, end in zip(color, towards, strict=True))
        )
        if contrast(mixed, behind) >= 4.5:
            return style + Style(color=Color.from_triplet(mixed))
    return style


def contrast(first: ColorTriplet, second: ColorTriplet) -> float:
    """The contrast ratio of two colors, from 1 to 21.

    >>> contrast(ColorTriplet(0, 0, 0), ColorTriplet(255, 255, 255))
    21.0
    """
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: ColorTriplet) -> float:
    """The relative luminance of WCAG, from 0 (black) to 1 (white)."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _fit_around(chosen: int, sizes: list[int], room: int) -> range:
    """The largest range around the chosen number whose sizes fit, grown to both sides in turn."""
    first, after = chosen, chosen + 1
    while True:
        before = (first, after)
        if after < len(sizes) and sum(sizes[first : after + 1]) <= room:
            after += 1
        if first > 0 and sum(sizes[first - 1 : after]) <= room:
            first -= 1
        if (first, after) == before:
            return range(first, after)


def _state_color(state: str) -> str:
    return _STATE_COLORS.get(state, BAD)


def _badge(text: str, color: str) -> Text:
    """A word on a colored background, readable on dark and light screens."""
    return Text(f" {text} ", style=f"bold #000000 on {color}")


def _of(done: int, total: int | None, between: str = " of ") -> str:
    """`7 of 20`, or `7` if the total is unknown."""
    return f"{done:,}{between}{total:,}" if total else f"{done:,}"


def _batch(now: Status) -> int:
    """The current batch; between two epochs, the last one."""
    return now.batch or (now.batches if now.phase_fraction == 1.0 and now.batches else 0)


def _has_timestamp(line: str) -> bool:
    return line[:_TIMESTAMP].translate(_DIGITS) == "0000-00-00 00:00:00  "


def _bar(label: str, fraction: float | None, width: int, color: str, text: str) -> Text:
    full = round(min(max(fraction or 0.0, 0.0), 1.0) * width)
    return Text(label).append("━" * full, color).append("─" * (width - full), QUIET).append(f"  {text}")


def _tab_link(snapshot: Snapshot, name: str, style: str = "") -> Style:
    """A style that selects the metric on click, if it has a chart."""
    link = _link(f"app.tab({snapshot.tabs.index(name)})") if name in snapshot.tabs else Style()
    return Style.parse(style) + link


def _link(action: str) -> Style:
    """A style that runs an action of the app on click."""
    return Style(meta={"@click": action})


def _stack(lines: list[Text], width: int, height: int) -> Text:
    """The lines that fit, one below the other, cut instead of wrapped."""
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[: max(height, 0)])
