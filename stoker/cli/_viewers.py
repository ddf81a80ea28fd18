"""`stoker watch`, `ui`, `report` and `export`: other ways to look at runs."""

import os
import platform
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from stoker._text import escape_control, format_size
from stoker.cli._screen import find_run, new_screen
from stoker.errors import BadFile, InvalidArgument, MissingFile
from stoker.record import Follower, Source, export

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def watch_runs(names: Sequence[str], *, wait: bool, light: bool | None) -> int:
    """Shows the named runs, or the newest one, on the terminal; prints one page if stdout is not a terminal."""
    from stoker.view.watch import page, watch

    paths = [_find_run_to_watch(name, wait=wait) for name in names] or [_newest_run()]
    dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    if sys.stdout.isatty() and sys.stdin.isatty() and not dumb:
        return watch(paths, light=light)
    followers = [Follower(path) for path in paths]
    for follower in followers:
        follower.refresh()
    screen = new_screen()
    screen.print(page(followers, ascii_only=screen.ascii_only), markup=False, soft_wrap=True)
    return 0


def _find_run_to_watch(name: str, *, wait: bool) -> Path:
    """A run by its path or its name in runs, or the newest run in a directory of runs."""
    from stoker.view.watch import newest, wait_for

    paths = [Path(name), Path("runs", name)]
    for path in paths:
        if path.is_file():
            return path
        if run := newest(path):
            return run
    if wait:
        print(f"waiting for {name} to start; Ctrl-C ends this", file=sys.stderr)
        return wait_for(*paths)
    try:
        return find_run(name)
    except BadFile as error:
        raise BadFile(f"{error}; --wait waits for a run that has not started yet") from None


def _newest_run() -> Path:
    from stoker.view.watch import newest

    for folder in ("runs", "."):
        if run := newest(folder):
            return run
    raise MissingFile("there is no run in 'runs' or below this directory; name one, or create one with `stoker demo`")


def serve_ui(folder: str, *, host: str, port: int | None, read_only: bool, open_browser: bool) -> None:
    """Serves the web page until Ctrl-C, and prints its address and the token for requests to runs."""
    from stoker.view.ui import Server

    server = Server(folder, host=host, port=port, read_only=read_only)
    screen = new_screen()
    screen.print(Text.assemble(("stoker ui", "bold"), f" shows the runs in {escape_control(str(server.folder))}"))
    screen.print(f"  {server.address}", markup=False, style="cyan")
    if host in _LOOPBACK:
        target = f"[{host}]" if ":" in host else host
        tunnel = f"ssh -L {server.port}:{target}:{server.port} {platform.node()}"
        screen.print(f"  from another machine: {tunnel}, then open the same address there", markup=False)
    else:
        print(
            f"stoker: warning: with --host {host} everybody who can reach this machine can read these runs, "
            "unencrypted; an ssh tunnel to 127.0.0.1 is safer",
            file=sys.stderr,
        )
    if server.token is not None:
        screen.print(f"  token to stop or save a run from the page: {server.token}", markup=False)
    screen.print("  Ctrl-C ends the server; it does not affect the runs", style="dim")
    sys.stdout.flush()
    if open_browser:
        webbrowser.open(server.address)
    server.run()


def write_report(names: Sequence[str], output: str) -> None:
    """Writes one run, or a comparison of several, as an HTML file."""
    from stoker.view.report import compare_html, report_html, write_report

    if Path(output).suffix.lower() not in ("", ".html", ".htm"):
        raise InvalidArgument(f"-o {output}: a report is a web page, so the name should end in .html")
    runs = [find_run(name) for name in names]
    html = report_html(runs[0]) if len(runs) == 1 else compare_html(*runs)
    path = write_report(output, html)
    new_screen().print(f"wrote {path} ({format_size(len(html.encode()))}); open it in a browser", markup=False)


def export_run(name: str, output: str, *, source: Source, long: bool) -> None:
    """Writes a run's numbers as CSV, Parquet or JSON."""
    run = Follower(find_run(name))
    written = export(run, output, source=source, long=long)
    screen = new_screen()
    if run.problem:
        screen.print(run.problem, style="yellow", markup=False)
    screen.print(f"wrote the numbers of {run.path} to {written}", markup=False)
