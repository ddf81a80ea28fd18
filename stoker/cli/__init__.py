"""cli: takes a command line, gives text on the screen and an exit code; `main` is all there is.

`stoker demo` trains and judges a small network, `stoker runs` lists runs, `stoker show` draws one, `stoker resume` goes
on with one, and `stoker doctor` says what is installed and what this machine can do. Each command is a file, imported
when it is asked for.
"""

from stoker.cli._main import main

__all__ = ["main"]
