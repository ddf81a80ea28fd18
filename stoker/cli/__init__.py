"""cli: the `stoker` command. `main` runs a command line and returns an exit code.

Each group of commands is a module that is imported when one of its commands runs, so that commands which only read
runs do not import torch.
"""

from stoker.cli._main import main

__all__: list[str] = []
