"""Runs the server until Ctrl-C."""

import os
import secrets
import socket

from stoker.errors import InvalidArgument, MissingExtra

PORT = 7070
_TRIES = 20  # ports after the first that are tried where it is taken


class Server:
    """The web page of a folder of runs, bound to its port and ready to run.

    `token` is what a page has to show to ask a run to stop or to save; with `read_only` there is none.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        read_only: bool = False,
    ) -> None:
        try:
            import uvicorn

            from stoker.view.ui._app import app_of
        except ImportError as error:
            raise MissingExtra("the web page needs starlette and uvicorn: pip install 'stoker[ui]'") from error
        from stoker.view.ui._shelf import Shelf

        shelf = Shelf(folder)
        self.folder = shelf.folder
        self.host = host
        self.token = None if read_only else secrets.token_urlsafe(18)
        self._socket = bound(host, port)
        self.port: int = self._socket.getsockname()[1]
        app = app_of(shelf, host=host, port=self.port, token=self.token)
        # Without a moment of grace: pages stay connected for news, and Ctrl-C should not wait for them.
        config = uvicorn.Config(
            app, log_config=None, log_level="critical", access_log=False, timeout_graceful_shutdown=0, lifespan="off"
        )
        self._server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        """Where a browser on this machine finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host and host[0] != '[' else host}:{self.port}/"

    def run(self) -> None:
        """Answers until Ctrl-C, or until `stop`."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Ends `run`, from another thread."""
        self._server.should_exit = True


def bound(host: str, port: int | None) -> socket.socket:
    """A socket on the port; where none is named, on the usual one or the next that is free."""
    if port is not None and not 0 <= port <= 65535:
        raise InvalidArgument(f"port={port}; expected a number from 0 to 65535")
    ports = range(PORT, PORT + _TRIES) if port is None else [port]
    problem: OSError | None = None
    for each in ports:
        try:
            return _bound(host, each)
        except OSError as error:
            problem = error
    where = f"port {port}" if port is not None else f"any port from {PORT} to {PORT + _TRIES - 1}"
    raise InvalidArgument(f"can't listen on {host!r} at {where}: {problem}; --port 0 takes any free one") from problem


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except BaseException:
        made.close()
        raise
    return made
