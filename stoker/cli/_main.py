"""The command line: which commands there are, and what becomes of their errors."""

import argparse
import os
import sys
from collections.abc import Sequence

from stoker.errors import StokerError

_RUN = "a run's directory, or its name in the folder runs"
_RESUME = """Starts the script of a run again, in the folder and with the arguments that it was started with, and has it
go on from the run's newest whole checkpoint (STOKER_RESUME names the run to it). That runs a command out of a file,
run.json, so it is shown first, and you are asked. The exit code is the script's."""
_WATCH = """Shows a run, or several laid over each other: curves, numbers, progress, log. It only reads, and leaving
with q leaves the run alone; ? lists the keys. Where stdout is no terminal, it prints one page of text and ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command (`sys.argv` where no `arguments` are given) and returns its exit code.

    0 is success, 1 an error that is told on stderr, 2 a command line that makes no sense, 130 Ctrl-C.
    """
    given, unknown = parser().parse_known_args(arguments)
    if unknown:
        given.own.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code = _run(given)
        sys.stdout.flush()
    except StokerError as error:
        from stoker.cli._screen import harmless

        print(f"stoker: {harmless(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `stoker show … | head`; without this, Python complains again as it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def parser() -> argparse.ArgumentParser:
    """Every command with its arguments."""
    top = argparse.ArgumentParser(prog="stoker", description="Trains PyTorch models, and shows what came of it.")
    top.add_argument("--version", action="store_true", help="say the version and end")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser("demo", help="train a small network on digits drawn by code: about a minute")
    demo.add_argument("--folder", default="runs", help="where the run's directory goes (default: runs)")

    runs = commands.add_parser("runs", help="list the runs in a folder")
    runs.add_argument("folder", nargs="?", default="runs", help="where to look, with all folders below (default: runs)")

    show = commands.add_parser("show", help="show a run: how it went, its curves, its config")
    show.add_argument("run", metavar="RUN", help=_RUN)
    show.add_argument(
        "--verify", action="store_true", help="read the checkpoints whole, and name those that are damaged"
    )

    resume = commands.add_parser("resume", help="go on with a run that was cut short", description=_RESUME)
    resume.add_argument("run", metavar="RUN", help=_RUN)
    resume.add_argument("--yes", action="store_true", help="don't ask: the directory comes from somebody you trust")

    watch = commands.add_parser("watch", help="show runs on this terminal while they train", description=_WATCH)
    watch.add_argument("runs", metavar="RUN", nargs="*", help=f"{_RUN} (default: the newest run there is)")
    watch.add_argument("--wait", action="store_true", help="wait for a run that has not begun yet")
    watch.add_argument("--light", action="store_true", default=None, help="colours for a light terminal")

    ui = commands.add_parser("ui", help="show the runs in a folder as a web page on this machine")
    ui.add_argument("folder", nargs="?", default="runs", help="where to look, with all folders below (default: runs)")
    ui.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, this machine)")
    ui.add_argument("--port", type=int, help="the port (default: 7070 or the next free one; 0: any free one)")
    ui.add_argument("--read-only", action="store_true", help="nothing can be asked of a run, with no token either")
    ui.add_argument("--open", action="store_true", help="open the page in a browser")

    report = commands.add_parser("report", help="write a run, or several to compare, as one HTML file")
    report.add_argument("runs", metavar="RUN", nargs="+", help=_RUN)
    report.add_argument("-o", "--output", default="report.html", help="the file to write (default: report.html)")

    _add_files(commands)
    commands.add_parser("doctor", help="say what is installed, what is missing, and what this machine can do")
    top.set_defaults(own=top)
    for each in commands.choices.values():
        each.set_defaults(own=each)  # whose usage a mistake calls for
    return top


def _run(given: argparse.Namespace) -> int:
    if given.version:
        import stoker

        print(stoker.__version__)
    elif given.command == "demo":
        from stoker.cli import _demo

        _demo.main(given.folder)
    elif given.command == "runs":
        from stoker.cli import _runs

        _runs.main(given.folder)
    elif given.command == "show":
        from stoker.cli import _show

        _show.main(given.run, verify=given.verify)
    elif given.command == "resume":
        from stoker.cli import _resume

        return _resume.main(given.run, yes=given.yes)
    elif given.command == "watch":
        from stoker.cli import _watch

        return _watch.main(given.runs, wait=given.wait, light=given.light)
    elif given.command == "ui":
        from stoker.cli import _ui

        _ui.main(given.folder, host=given.host, port=given.port, read_only=given.read_only, browse=given.open)
    elif given.command == "report":
        from stoker.cli import _report

        _report.main(given.runs, given.output)
    elif given.command == "export":
        from stoker.cli import _export

        _export.main(given.run, given.output, source=given.source, long=given.long)
    elif given.command == "doctor":
        from stoker.cli import _doctor

        _doctor.main()
    else:
        parser().print_help()
    return 0


def _add_files(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    export = commands.add_parser("export", help="write a run's numbers as CSV, Parquet or JSON")
    export.add_argument("run", metavar="RUN", help=_RUN)
    export.add_argument("-o", "--output", required=True, help="the file: its ending, .csv, .parquet or .json, says how")
    sources = ("epochs", "all", "running")
    export.add_argument("--source", choices=sources, default="epochs", help="which numbers (default: a row per epoch)")
    export.add_argument("--long", action="store_true", help="a row for each number: name, epoch, update, time, value")
