"""How the run stands, as coloured text: each part takes a scene and the room that it has."""

from rich.text import Text

from stoker._text import format_number as number
from stoker.record import Status
from stoker.view.console import clock, short, visible
from stoker.view.watch._colours import BAD, QUIET, TRAIN, VALID
from stoker.view.watch._scene import Glance, Scene
from stoker.view.watch._words import badge, of, stacked, state_colour

_PHASES = {"train": "training", "valid": "validating", "starting": "starting", "over": "over"}

_STAMP = len("2026-01-31 12:00:00  ")  # before each line of a log
_DATE = len("2026-01-31 ")
_DIGITS = str.maketrans("123456789", "000000000")
_NARROW = 110  # letters; in less, a line of the log has its time without the day
_MARKS = {"warning": VALID, "error": BAD}


def header(scene: Scene, width: int, _: int = 1) -> Text:
    """How the run stands, what it is, how long it takes."""
    run, status = scene.run, scene.run.status
    left = f" · {clock(status.seconds_left)} left" if status.seconds_left is not None and run.state == "running" else ""
    times = f" {clock(status.seconds)}{left} "
    line = Text.assemble(badge(run.state, state_colour(run.state)), (f"  {visible(run.path)}", "bold"))
    line.append(f"  {visible(run.title)}", style=QUIET)
    if len(scene.runs) > 1:
        line.append(f"  ({scene.view.run % len(scene.runs) + 1} of {len(scene.runs)} runs)", style=QUIET)
    line.truncate(max(0, width - len(times)), overflow="ellipsis", pad=True)
    return line.append(times)


def banner(scene: Scene, hung: float = 0.0) -> Text | None:
    """What a reader has to know before all else: how the run died, what can't be read; nothing in good times."""
    run = scene.run
    texts: list[Text] = []
    if run.state not in ("running", "finished"):
        reason = visible(run.reason) or "no reason is written down"
        texts.append(Text.assemble(badge("last words", state_colour(run.state)), f" {reason}"))
    if run.problem and run.problem != run.reason:
        texts.append(Text.assemble(badge("reading", BAD), f" {visible(run.problem)}"))
    if hung:
        told = f" the disk has not answered for {clock(hung)}; this is what was read before"
        texts.append(Text.assemble(badge("waiting", BAD), told))
    elif run.behind:
        texts.append(Text(" a large record: still reading …", style=QUIET))
    return Text("\n").join(texts) if texts else None


def status(scene: Scene, width: int, height: int) -> Text:
    """Where the run stands, a fact a line."""
    run, now = scene.run, scene.run.status
    phase = _PHASES.get(now.phase, now.phase) if run.state == "running" else run.state
    phase += f" on {visible(now.set_name)}" if now.phase == "valid" and run.state == "running" else ""
    pace = f", {short(now.updates_per_second)}/s" if now.updates_per_second and run.state == "running" else ""
    # The name comes last: it may be cut.
    best = f"{number(now.best.value)} @{now.best.epoch} {visible(now.best.name)}" if now.best else ""
    facts = {
        "phase": phase,
        "epoch": of(now.epoch, now.epochs),
        "batch": of(_batch(now), now.batches) if run.state == "running" and _batch(now) else "",
        "update": of(now.update, now.updates) + pace,
        "speed": f"{short(now.samples_per_second)} samples/s" if now.samples_per_second else "",
        "time": clock(now.seconds)
        + (f", {clock(now.seconds_left)} left" if now.seconds_left and run.state == "running" else ""),
        "best": best,
        "warnings": f"{run.warnings:,}" if run.warnings else "",
    }
    lines = [Text.assemble((f"{name:<9}", QUIET), value) for name, value in facts.items() if value]
    return stacked(lines, width, height)


def plan(scene: Scene, width: int, height: int) -> Text:
    """What the run was going to do, in its own words."""
    return stacked([Text(visible(line)) for line in scene.run.plan], width, height)


def progress(scene: Scene, width: int, _: int = 2) -> Text:
    """Two bars: of the running epoch (or validation) and of the whole plan."""
    run, now = scene.run, scene.run.status
    over = run.state != "running"
    label = "valid" if now.phase == "valid" else f"epoch {of(now.epoch, now.epochs, '/')}"
    batch = "" if over else f"batch {of(_batch(now), now.batches, '/')}"
    left = f" · {clock(now.seconds_left)} left" if now.seconds_left is not None and not over else ""
    fraction = 1.0 if run.state == "finished" else now.fraction
    share = f"{fraction:.0%}{left}" if fraction is not None else f"{now.update:,} updates"
    size = max(len(label), 5)
    long = max(4, width - size - 4 - max(len(batch), len(share), 18))
    colour = state_colour(run.state)
    within = 1.0 if over and not now.batch else now.phase_fraction  # ended between two epochs
    first = _bar(f" {label:<{size}} ", within, long, TRAIN if now.phase != "valid" else VALID, batch)
    second = _bar(f" {'run':<{size}} ", fraction, long, colour, share)
    return stacked([first, second], width, 2)


def log(scene: Scene, width: int, height: int) -> Text:
    """The last lines of the log; where there is little room, without the day."""
    lines = log_lines(scene.run, height)
    if width < _NARROW:
        lines = [line[_DATE:] if _is_stamped(line.plain) else line for line in lines]
    return stacked(lines, width, height)


def log_lines(run: Glance, most: int = 1000) -> list[Text]:
    """The log's last lines, with warnings and errors in colour, and a stop in that of how the run stands."""
    marks = {**_MARKS, "stopped": state_colour(run.state if run.state == "finished" else "stopped")}
    lines = [Text(visible(line)) for line in (run.log[-most:] if most else ())]
    for line in lines:
        word = line.plain[_STAMP:].partition(": ")[0]
        if word in marks:
            line.stylize(f"#000000 on {marks[word]}", _STAMP, _STAMP + len(word))
    return lines


def settings(run: Glance) -> Text:
    """The plan, the config and what ran, whole."""
    lines = [Text("plan", style="bold"), *(Text(f"  {visible(line)}") for line in run.plan)] if run.plan else []
    lines.append(Text("\nconfig and surroundings", style="bold"))
    widest = min(28, max((len(name) for name, _ in run.settings), default=0))
    lines += [Text.assemble((f"  {visible(name):<{widest}}  ", QUIET), visible(value)) for name, value in run.settings]
    return Text("\n").join(lines)


def _batch(now: Status) -> int:
    """The batch that an epoch has come to: between two epochs, the last one."""
    return now.batch or (now.batches if now.phase_fraction == 1.0 and now.batches else 0)


def _is_stamped(line: str) -> bool:
    return line[:_STAMP].translate(_DIGITS) == "0000-00-00 00:00:00  "


def _bar(label: str, share: float | None, long: int, colour: str, text: str) -> Text:
    full = round(min(max(share or 0.0, 0.0), 1.0) * long)
    return Text(label).append("━" * full, colour).append("─" * (long - full), QUIET).append(f"  {text}")
