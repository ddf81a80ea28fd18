"""Parses the command line, runs the command, and turns errors into exit codes."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence

from stoker._text import escape_control
from stoker.errors import StokerError, did_you_mean

_RUN = "a run's directory, or its name in the directory runs"
_FOLDER = "the directory to search, including its subdirectories (default: runs)"
_RUNS = """Lists runs, newest first. Conditions compare columns, settings and metrics: 'lr<0.005' state=failed
'best<=0.1' tag=baseline 'optimizer=AdamW*'. Quote them: < and > redirect in a shell."""
_RESUME = """Starts the script of a run again, in the same directory and with the same arguments, and lets it continue
from the run's newest intact checkpoint (the variable STOKER_RESUME tells it which run). The command is read from the
file run.json, so it is shown first and you are asked before it runs. The exit code is the script's."""
_WATCH = """Shows one run, or several in one chart: curves, numbers, progress, log. It only reads files; leaving with q
does not affect the run. ? lists the keys. If stdout is not a terminal, it prints one page of text and ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command (by default that of `sys.argv`) and returns its exit code.

    0 means success, 1 an error that is printed to stderr, 2 a wrong command line, 130 Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, commands = _parser()
    if words[:1] == ["_complete"]:  # asked by the scripts of `stoker completion`
        from stoker.cli._completion import complete

        print("\n".join(complete(words[1:], {name: each.format_help() for name, each in commands.items()})))
        return 0
    if words and words[0] not in commands and not words[0].startswith("-"):
        hint = did_you_mean(words[0], commands) or f"; there are: {', '.join(commands)}"
        parser.error(f"there is no command {words[0]!r}{hint}")
    args, unknown = parser.parse_known_args(words)
    if unknown:
        known = re.findall(r"--[a-z][\w-]*", args.command_parser.format_help())
        hint = did_you_mean(unknown[0], known) if unknown[0].startswith("-") else ""
        args.command_parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    try:
        code = _run(args)
        sys.stdout.flush()
    except StokerError as error:
        from stoker.cli._screen import escape_lines

        print(f"stoker: {escape_lines(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `stoker show … | head`; without this, Python prints another error when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # no permission, a full disk
        path = f"{escape_control(str(error.filename))}: " if error.filename else ""
        print(f"stoker: {path}{error.strerror or error}", file=sys.stderr)
        return 1
    return code


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands by name."""
    parser = argparse.ArgumentParser(prog="stoker", description="Trains PyTorch models, and shows the results.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser("demo", help="train a small network on generated digits, in about a minute")
    demo.add_argument("--folder", default="runs", help="where to create the run's directory (default: runs)")

    runs = commands.add_parser("runs", help="list the runs in a directory", description=_RUNS)
    runs.add_argument("words", metavar="FOLDER or CONDITION", nargs="*", help=f"{_FOLDER}, or a condition: 'lr<0.01'")
    runs.add_argument("--sort", metavar="FIELD", default="started", help="a column, setting or metric to sort by")
    runs.add_argument("--reverse", action="store_true", help="sort in the other direction")
    runs.add_argument("--json", action="store_true", dest="as_json", help="print everything that is known, as JSON")
    runs.add_argument("--all", action="store_true", dest="archived", help="list archived runs too")

    show = commands.add_parser("show", help="show a run: its curves, numbers, config and end")
    show.add_argument("name", metavar="RUN", help=_RUN)
    show.add_argument("--verify", action="store_true", help="read all checkpoints, and name those that are damaged")

    resume = commands.add_parser("resume", help="continue a run that was interrupted", description=_RESUME)
    resume.add_argument("name", metavar="RUN", help=_RUN)
    resume.add_argument("--yes", action="store_true", help="do not ask; use it only if you trust the run's directory")

    watch = commands.add_parser("watch", help="show runs on this terminal while they train", description=_WATCH)
    watch.add_argument("names", metavar="RUN", nargs="*", help=f"{_RUN} (default: the newest run)")
    watch.add_argument("--wait", action="store_true", help="wait for a run that has not started yet")
    watch.add_argument("--light", action="store_true", default=None, help="use colors for a light terminal")

    ui = commands.add_parser("ui", help="show the runs in a directory as a web page on this machine")
    ui.add_argument("folder", nargs="?", default="runs", help=_FOLDER)
    ui.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, this machine)")
    ui.add_argument("--port", type=int, help="the port (default: 7070 or the next free one; 0: any free one)")
    ui.add_argument("--read-only", action="store_true", help="do not allow stopping or saving runs from the page")
    ui.add_argument("--open", action="store_true", dest="open_browser", help="open the page in a browser")

    report = commands.add_parser("report", help="write one run, or a comparison of several, as one HTML file")
    report.add_argument("names", metavar="RUN", nargs="+", help=_RUN)
    report.add_argument("-o", "--output", default="report.html", help="the file to write (default: report.html)")

    export = commands.add_parser("export", help="write a run's numbers as CSV, Parquet or JSON")
    export.add_argument("name", metavar="RUN", help=_RUN)
    export.add_argument("-o", "--output", required=True, help="the file to write, ending in .csv, .parquet or .json")
    sources = ("epochs", "all", "running")
    export.add_argument("--source", choices=sources, default="epochs", help="which numbers (default: a row per epoch)")
    export.add_argument("--long", action="store_true", help="one row per number: name, epoch, update, time, value")

    tag = commands.add_parser("tag", help="add tags to a run, remove them, or show them")
    tag.add_argument("name", metavar="RUN", help=_RUN)
    tag.add_argument("tags", metavar="TAG", nargs="*", help="a word to find the run by: stoker runs tag=TAG")
    tag.add_argument("--remove", action="store_true", help="remove these tags")

    note = commands.add_parser("note", help="write a note about a run, or show it")
    note.add_argument("name", metavar="RUN", help=_RUN)
    note.add_argument("text", metavar="TEXT", nargs="?", help='the note; "" removes it')

    rename = commands.add_parser("rename", help="give a run a title; its directory keeps its name")
    rename.add_argument("name", metavar="RUN", help=_RUN)
    rename.add_argument("title", metavar="TITLE", help='the title; "" removes it')

    archive = commands.add_parser("archive", help="leave runs out of lists, or list them again")
    archive.add_argument("names", metavar="RUN", nargs="+", help=_RUN)
    archive.add_argument("--undo", action="store_true", help="list them again")

    remove = commands.add_parser("rm", help="move runs to the trash, or back")
    remove.add_argument("names", metavar="RUN", nargs="*", help=_RUN)
    remove.add_argument("--undo", action="store_true", help="restore runs (default: the one that was removed last)")

    completion = commands.add_parser("completion", help="print a script that completes commands and runs in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help='eval "$(stoker completion bash)"')

    commands.add_parser("doctor", help="show what is installed, what is missing, and what this machine supports")
    parser.set_defaults(command_parser=parser)
    for command in commands.choices.values():
        command.set_defaults(command_parser=command)  # its usage is printed for a wrong argument
    return parser, dict(commands.choices)


def _run(args: argparse.Namespace) -> int:
    """Calls the function of the command, whose parameters have the names of the command's arguments."""
    options = vars(args)
    del options["command_parser"]
    if options.pop("version"):
        import stoker

        print(stoker.__version__)
        return 0
    command = options.pop("command")
    if command is None:
        _parser()[0].print_help()
        return 0
    return _function_of(command)(**options) or 0


def _function_of(command: str) -> Callable[..., int | None]:
    """The function of a command; its module is imported now, because some of them need torch."""
    if command in ("runs", "show", "completion"):
        from stoker.cli import _completion, _list, _show

        functions = {"runs": _list.list_runs, "show": _show.show_run, "completion": _completion.print_completion}
        return functions[command]
    if command in ("tag", "note", "rename", "archive", "rm"):
        from stoker.cli import _annotate as annotate

        functions = {"tag": annotate.tag_run, "note": annotate.note_run, "rename": annotate.rename_run}
        functions |= {"archive": annotate.archive_runs, "rm": annotate.remove_runs}
        return functions[command]
    if command in ("watch", "ui", "report", "export"):
        from stoker.cli import _viewers as viewers

        functions = {"watch": viewers.watch_runs, "ui": viewers.serve_ui}
        functions |= {"report": viewers.write_report, "export": viewers.export_run}
        return functions[command]
    from stoker.cli import _demo, _doctor, _resume

    return {"demo": _demo.demo, "doctor": _doctor.doctor, "resume": _resume.resume}[command]
