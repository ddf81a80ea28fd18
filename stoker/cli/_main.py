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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command (`sys.argv` where no `arguments` are given) and returns its exit code.

    0 is success, 1 an error that is told on stderr, 2 a command line that makes no sense, 130 Ctrl-C.
    """
    given = parser().parse_args(arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
    except StokerError as error:
        print(f"stoker: {error}", file=sys.stderr)
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

    commands.add_parser("doctor", help="say what is installed, what is missing, and what this machine can do")
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
    elif given.command == "doctor":
        from stoker.cli import _doctor

        _doctor.main()
    else:
        parser().print_help()
    return 0
