"""`stoker` on a terminal, in a process that cannot import torch."""

import os

from tests.view.console.scenes import Terminal


class StokerTerminal(Terminal):
    """A terminal that runs `stoker` with the given arguments."""

    PREAMBLE = "import os, sys; sys.modules['torch'] = None"

    def __init__(self, arguments, *, folder=".", **options):
        program = f"os.chdir({os.path.abspath(folder)!r})\nfrom stoker.cli import main\nsys.exit(main({arguments!r}))"
        super().__init__(f"\n{program}", **options)

    def wait_for(self, text):
        """Reads until the text is on the screen."""
        while text not in (shown := "\n".join(self.screen.display)):
            assert self._read(), f"it ended without {text!r}:\n{shown}"

    def press(self, key):
        os.write(self.master, key.encode())
