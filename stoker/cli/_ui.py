"""`stoker ui [FOLDER]`: the runs of a folder as a web page on this machine."""

import platform
import sys
import webbrowser

from rich.text import Text

from stoker._text import escape_control
from stoker.cli._screen import screen
from stoker.view.ui import Server

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def main(folder: str, *, host: str, port: int | None, read_only: bool, browse: bool) -> None:
    """Serves the page until Ctrl-C; says where it is, and what is needed to ask something of a run."""
    server = Server(folder, host=host, port=port, read_only=read_only)
    console = screen()
    console.print(Text.assemble(("stoker ui", "bold"), f" shows the runs in {escape_control(str(server.folder))}"))
    console.print(f"  {server.address}", markup=False, style="cyan")
    if host in _LOOPBACK:
        tunnel = f"ssh -L {server.port}:{host_in(host)}:{server.port} {platform.node()}"
        console.print(f"  from another machine: {tunnel}, and then the same address there", markup=False)
    else:
        print(
            f"stoker: warning: with --host {host} everybody who can reach this machine can read these runs, "
            "unencrypted; an ssh tunnel to 127.0.0.1 is safer",
            file=sys.stderr,
        )
    if server.token is not None:
        console.print(f"  token to stop or save a run from the page: {server.token}", markup=False)
    console.print("  Ctrl-C ends it; the runs don't notice", style="dim")
    sys.stdout.flush()
    if browse:
        webbrowser.open(server.address)
    server.run()


def host_in(host: str) -> str:
    """A host as it stands in an address.

    >>> host_in("::1"), host_in("127.0.0.1")
    ('[::1]', '127.0.0.1')
    """
    return f"[{host}]" if ":" in host else host
