"""The web server: its address and port, and the limits of its connections."""

import os
import secrets
import socket

from stoker.errors import InvalidArgument, explain_missing

_PORT = 7070
_PORTS = 20  # tried from the default port on
_MAX_HEADERS = 1 << 18  # bytes of a request's first line and headers: a thousand names fit


class Server:
    """The web page of a folder of runs, bound to its port and ready to run.

    `token` authorises a page to ask a run to stop or to save; with `read_only` it is `None`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        read_only: bool = False,
    ) -> None:
        with explain_missing("the web page needs starlette and uvicorn: pip install 'stoker[ui]'"):
            import uvicorn

            from stoker.view.ui._app import Connection, create_app
        from stoker.view.ui._runs import RunFolder

        runs = RunFolder(folder)
        self.folder = runs.path
        self.host = host
        self.token = None if read_only else secrets.token_urlsafe(18)
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        app = create_app(runs, host=host, port=self.port, token=self.token)
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            h11_max_incomplete_event_size=_MAX_HEADERS,
            timeout_graceful_shutdown=0,  # pages stay connected for events, and Ctrl-C should not wait for them
        )
        self._server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        """The URL for a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host and host[0] != '[' else host}:{self.port}/"

    def run(self) -> None:
        """Serves until Ctrl-C or `stop`."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Ends `run`; may be called from another thread."""
        self._server.should_exit = True


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket; without a port, on the default port or the next free one."""
    if port is not None and not 0 <= port <= 65535:
        raise InvalidArgument(f"port={port}; expected a number from 0 to 65535")
    problem: OSError | None = None
    for number in range(_PORT, _PORT + _PORTS) if port is None else [port]:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host or None, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(128)
            except BaseException:
                listener.close()
                raise
            return listener
        except OSError as error:
            problem = error
    where = f"port {port}" if port is not None else f"any port from {_PORT} to {_PORT + _PORTS - 1}"
    raise InvalidArgument(f"can't listen on {host!r} at {where}: {problem}; --port 0 takes any free port") from problem
