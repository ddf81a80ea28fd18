"""Who may ask, and what the browser may do with the answers: the part of the server that every request passes."""

import ipaddress
import socket
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.view.ui._json import to_json

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_WILDCARDS = ("0.0.0.0", "::", "")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """Lets requests through that name this server as their host, and puts the same strict headers on every answer.

    A page from elsewhere that points its own name at this machine (DNS rebinding) still has to send that name. One
    that embeds an address of this server can't read the answer, but must not keep the server busy either.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], port: int) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no websockets here: the connection is closed

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.encode(): value.encode() for name, value in _HEADERS.items()}
                message = {**message, "headers": [*message.get("headers", ()), *own.items()]}
            await send(message)

        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) != 1 or not self.allows(given[0]):
            await _refuse(guarded, 403 if len(given) == 1 else 400, self._expectation(given))
        elif scope["path"].startswith("/api/") and (b"sec-fetch-site", b"cross-site") in scope["headers"]:
            await _refuse(guarded, 403, "a page of another site asks; open this server's own page instead")
        else:
            await self._app(scope, receive, guarded)

    def allows(self, host: str) -> bool:
        """Whether a Host header means this server."""
        name, port = _split(host.lower())
        if port != str(self._port) and not (port == "" and self._port == 80):
            return False
        return name in self._hosts or ("*" in self._hosts and _is_address(name))

    def _expectation(self, given: list[str]) -> str:
        asked = ", ".join(map(repr, given)) or "nothing"
        expected = " or ".join(f"{host}:{self._port}" for host in LOOPBACK[:2])
        return (
            f"the request is for {asked}; this server answers to {expected} and to the host that it was started with. "
            f"Through an ssh tunnel, use port {self._port} on both sides; for another name, start it with --host"
        )


def hosts_for(host: str) -> set[str]:
    """The names that a server on this address answers to; "*" stands for any address in numbers.

    >>> sorted(hosts_for("127.0.0.1"))
    ['127.0.0.1', '[::1]', 'localhost']

    One that listens everywhere can't know its addresses. An attack by DNS rebinding comes with a name, never a number.
    """
    if host in _WILDCARDS:
        return {*LOOPBACK, socket.gethostname(), socket.getfqdn(), "*"}
    return {*LOOPBACK, f"[{host}]" if ":" in host else host}


def _split(host: str) -> tuple[str, str]:
    """A Host header as name and port."""
    name, colon, port = host.rpartition(":")
    return (host, "") if not colon or host.endswith("]") else (name, port)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


async def _refuse(send: Send, status: int, text: str) -> None:
    body = to_json({"error": text})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
