"""The web server: its address and port, its routes, the files of the page, and the check of every request."""

import ipaddress
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import InvalidArgument, MissingExtra, MissingFile
from stoker.view.ui._json import to_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from stoker.view.ui._runs import RunFolder

_PORT = 7070
_PORTS = 20  # tried from the default port on
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ANY_ADDRESS = ("0.0.0.0", "::", "")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_PAGE = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


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
        try:
            import starlette  # noqa: F401
            import uvicorn
        except ImportError as error:
            raise MissingExtra("the web page needs starlette and uvicorn: pip install 'stoker[ui]'") from error
        from stoker.view.ui._runs import RunFolder

        runs = RunFolder(folder)
        self.folder = runs.path
        self.host = host
        self.token = None if read_only else secrets.token_urlsafe(18)
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        app = create_app(runs, host=host, port=self.port, token=self.token)
        # No graceful shutdown: pages stay connected for events, and Ctrl-C should not wait for them.
        config = uvicorn.Config(
            app, log_config=None, log_level="critical", access_log=False, timeout_graceful_shutdown=0, lifespan="off"
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


def create_app(runs: "RunFolder", *, host: str, port: int, token: str | None) -> "ASGIApp":
    """The ASGI application; without a token it only reads."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    from stoker.view.ui._api import Api, JsonResponse, describe_failure, print_once

    def not_found(request: "Request", error: Exception) -> "Response":
        return JsonResponse({"error": str(error)}, 404)

    def bad_request(request: "Request", error: Exception) -> "Response":
        return JsonResponse({"error": str(error)}, 400)

    def http_error(request: "Request", error: Exception) -> "Response":
        status = error.status_code if isinstance(error, HTTPException) else 500
        texts = {404: f"nothing at {request.url.path!r}", 405: f"{request.method} is not supported here"}
        return JsonResponse({"error": texts.get(status, str(error))}, status)

    def server_error(request: "Request", error: Exception) -> "Response":
        print_once(error)
        return JsonResponse({"error": describe_failure(error)}, 500)

    api = Api(runs, token=token)
    routes = [
        Route("/", lambda request: _page_file("index.html")),
        Route("/static/{file:path}", lambda request: _page_file(request.path_params["file"])),
        Route("/api/runs", api.runs),
        Route("/api/run/{id:path}", api.run),
        Route("/api/points/{id:path}", api.points),
        Route("/api/compare", api.compare),
        Route("/api/events", api.events),
        Route("/api/control/{id:path}", api.control, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {
        HTTPException: http_error,
        MissingFile: not_found,
        InvalidArgument: bad_request,
        Exception: server_error,
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), host=host, port=port)


def _page_file(name: str) -> "Response":
    """A file of the page; only files that are part of the package are served."""
    from starlette.responses import Response

    files = {path.relative_to(_PAGE).as_posix(): path for path in _PAGE.rglob("*") if path.is_file()}
    if name not in files:
        raise MissingFile(f"there is no file {name!r} here")
    media_type = _MEDIA_TYPES.get(files[name].suffix, "text/plain; charset=utf-8")
    return Response(files[name].read_bytes(), media_type=media_type, headers={"cache-control": "no-cache"})


class Guard:
    """ASGI middleware: accepts only requests whose Host header means this server, and adds strict security headers.

    A page from elsewhere that points its own host name at this machine (DNS rebinding) still sends that name. A page
    that embeds an address of this server can't read the answer, but must not keep the server busy either.
    """

    def __init__(self, app: "ASGIApp", *, host: str, port: int) -> None:
        self._app = app
        self._port = port
        self._hosts = {name.lower() for name in (*_LOOPBACK, f"[{host}]" if ":" in host else host)}
        # A server on all addresses does not know them all, so any numeric one is accepted: rebinding needs a name.
        self._any_address = host in _ANY_ADDRESS
        if self._any_address:
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Handles one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # closes websockets

        async def send_with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._accepts(hosts[0]):
            await _refuse(send_with_headers, 403 if len(hosts) == 1 else 400, self._explain(hosts))
        elif scope["path"].startswith("/api/") and (b"sec-fetch-site", b"cross-site") in scope["headers"]:
            await _refuse(
                send_with_headers, 403, "the request comes from another site's page; open this server's own page"
            )
        else:
            await self._app(scope, receive, send_with_headers)

    def _accepts(self, host: str) -> bool:
        host = host.lower()
        name, colon, port = host.rpartition(":")
        if not colon or host.endswith("]"):
            name, port = host, ""
        if port != str(self._port) and not (port == "" and self._port == 80):
            return False
        return name in self._hosts or (self._any_address and _is_address(name))

    def _explain(self, hosts: list[str]) -> str:
        given = ", ".join(map(repr, hosts)) or "no host"
        return (
            f"the request is for {given}; expected 127.0.0.1:{self._port}, localhost:{self._port} or the host that the "
            f"server was started with. Through an ssh tunnel, use port {self._port} on both sides; for another host "
            "name, start the server with --host"
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


async def _refuse(send: "Send", status: int, text: str) -> None:
    body = to_json({"error": text})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
