"""cli: takes a command line, gives text on the screen and an exit code; `main` is all there is.

`stoker demo` trains and judges a small network. `stoker runs` lists runs; `show`, `watch`, `ui` and `report` show them,
`resume` goes on with one, `export` and `import` take their numbers out and in, and `doctor` says what is installed and
what this machine can do. Each command is a file, imported when it is asked for; what only reads runs needs no torch.
"""

from stoker.cli._main import main

__all__ = ["main"]
