"""The web application: its routes, the check of every request, and the answers in JSON."""

import asyncio
import functools
import ipaddress
import math
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h11
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from stoker.errors import BadFile, InvalidArgument, MissingFile
from stoker.record import MEDIA_TYPES, read_media
from stoker.view._tables import compare_configs
from stoker.view.ui._changes import Changes
from stoker.view.ui._events import EventStream
from stoker.view.ui._json import CurveQuery, JsonResponse, make_curves, make_details, make_matrix, to_json
from stoker.view.ui._runs import RunFolder, describe_failure, print_once

_LIST_SECONDS = 1.5  # a request waits that long for the list; runs read later follow as events
_OVERLAY_SECONDS = 0.7  # a request reads that long for an overlay of runs; the page asks again for the others
_INDEXED_POINTS = 500  # of a curve, for which the index of a run is enough
_MAX_STREAMS = 64  # pages that receive events at the same time
_MAX_RUNS = 200  # in one answer or stream
_MAX_CURVES, _MAX_POINTS, _MAX_TOTAL_POINTS = 1000, 20_000, 500_000  # in one answer
_MAX_CONNECTIONS = 512
_PATIENCE = 10.0  # seconds that a request may take to arrive
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ANY_ADDRESS = ("0.0.0.0", "::", "")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_NO_PAGE = "default-src 'none'; sandbox"  # for what runs have logged, should a browser open it by itself
_PAGE = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def create_app(runs: RunFolder, *, host: str, port: int, token: str | None) -> ASGIApp:
    """The ASGI application; without a token it only reads."""
    api, changes = Api(runs, control=token is not None), Changes(runs, token=token)
    files = {path.relative_to(_PAGE).as_posix(): path for path in _PAGE.rglob("*") if path.is_file()}

    def page_file(request: Request) -> Response:
        name = request.path_params.get("file", "index.html")
        if name not in files:
            raise MissingFile(f"there is no file {name!r} here")
        media_type = _MEDIA_TYPES.get(files[name].suffix, "text/plain; charset=utf-8")
        return Response(files[name].read_bytes(), media_type=media_type, headers={"cache-control": "no-cache"})

    routes = [
        Route("/", page_file),
        Route("/static/{file:path}", page_file),
        Route("/api/runs", api.runs),
        Route("/api/run/{id:path}", api.run),
        Route("/api/points/{id:path}", api.points),
        Route("/api/overlay", api.overlay),
        Route("/api/compare", api.compare),
        Route("/api/events", api.events),
        Route("/api/matrix/{id:path}", api.matrix),
        Route("/api/media/{id:path}", api.media),
        Route("/api/control/{id:path}", changes.control, methods=["POST"]),
        Route("/api/annotate/{id:path}", changes.annotate, methods=["POST"]),
        Route("/api/remove/{id:path}", changes.remove, methods=["POST"]),
        Route("/api/restore", changes.restore, methods=["POST"]),
    ]
    errors = (HTTPException, MissingFile, InvalidArgument, BadFile, Exception)
    return Guard(Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, _answer_error)), host, port)


def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, MissingFile):
        return JsonResponse({"error": str(error)}, 404)
    if isinstance(error, InvalidArgument):
        return JsonResponse({"error": str(error)}, 400)
    if isinstance(error, BadFile):
        return JsonResponse({"error": str(error)}, 422)
    if isinstance(error, HTTPException):
        texts = {404: f"nothing at {request.url.path!r}", 405: f"{request.method} is not supported here"}
        return JsonResponse({"error": texts.get(error.status_code, str(error))}, error.status_code)
    print_once(error)
    return JsonResponse({"error": describe_failure(error)}, 500)


class Connection(H11Protocol):
    """A connection that is closed if a request does not arrive in time, and if there are too many others.

    uvicorn's own timeout only begins after the first answer. The tests notice if these attributes of its class move.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins the first wait for a request."""
        super().connection_made(transport)
        self._check(None, was_waiting=False)
        if len(self.connections) > _MAX_CONNECTIONS:
            transport.close()

    def _check(self, last_request: object, *, was_waiting: bool) -> None:
        """Closes the connection if it waits for the same request as at the last check."""
        is_waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if is_waiting and was_waiting and self.cycle is last_request:
            self.transport.close()
        elif not self.transport.is_closing():
            check = functools.partial(self._check, self.cycle, was_waiting=is_waiting)
            self.loop.call_later(_PATIENCE, check)


class Guard:
    """ASGI middleware: accepts only requests whose Host header means this server, and adds strict security headers.

    A page from elsewhere that points its own host name at this machine (DNS rebinding) still sends that name. A page
    that embeds an address of this server can't read the answer, but must not keep the server busy either.
    """

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._app = app
        self._port = port
        self._hosts = {name.lower() for name in (*_LOOPBACK, f"[{host}]" if ":" in host else host)}
        # A server on all addresses does not know them all, so any numeric one is accepted: rebinding needs a name.
        self._any_address = host in _ANY_ADDRESS
        if self._any_address:
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message.get("headers", ())}
                headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                added = [(name, value) for name, value in headers if name not in given]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
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


async def _refuse(send: Send, status: int, text: str) -> None:
    body = to_json({"error": text})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Api:
    """Answers requests about the runs of a folder."""

    def __init__(self, folder: RunFolder, *, control: bool) -> None:
        self._folder = folder
        self._control = control  # whether runs can be changed
        self._streams = 0

    def runs(self, request: Request) -> Response:
        """The list of runs."""
        problems = self._folder.find().problems
        rows = list(self._folder.rows(seconds=_LIST_SECONDS).values())
        known = {"folder": str(self._folder.path), "control": self._control, "problems": problems}
        return JsonResponse({**known, "runs": rows})

    def run(self, request: Request) -> Response:
        """Everything about a run except its curves."""
        run_id = request.path_params["id"]
        with self._folder.open(run_id) as opened:
            return JsonResponse(make_details(run_id, opened.run))

    def points(self, request: Request) -> Response:
        """Curves of a run."""
        run_id, query = request.path_params["id"], parse_curve_query(request.query_params)
        with self._folder.open(run_id) as opened:
            return JsonResponse({"series": make_curves(opened.run, query), "behind": opened.run.has_unread})

    def matrix(self, request: Request) -> Response:
        """A matrix of a run, as it was in an epoch."""
        run_id, name = request.path_params["id"], request.query_params.get("name", "")
        epoch = _parse_number(request.query_params, "epoch", int, -1, lowest=0, highest=2**62)
        with self._folder.open(run_id) as opened:
            return JsonResponse(make_matrix(opened.run, name, None if epoch < 0 else epoch))

    def media(self, request: Request) -> Response:
        """The content of a media file, which one of the run's events must name.

        Browsers show it as what its event says, or not at all: never as a page, and never with scripts.
        """
        run_id, file = request.path_params["id"], request.query_params.get("file", "")
        with self._folder.open(run_id) as opened:
            event = next((event for event in opened.run.media if event.extra["file"] == file), None)
            path = opened.path
        if event is None:
            raise MissingFile(f"the run {run_id!r} has logged no file {file[:200]!r}")
        _, content_type = MEDIA_TYPES[event.extra["type"]]
        headers = {
            "cache-control": "no-cache",
            "content-disposition": "attachment",
            "content-security-policy": _NO_PAGE,
        }
        return Response(read_media(path, event), media_type=content_type, headers=headers)

    def overlay(self, request: Request) -> Response:
        """One number of several runs.

        Reads for about a second: `behind` names the runs that were not read, or not to their end. Runs that do not
        exist (any more) are left out.
        """
        ids, query = parse_ids(request.query_params), parse_curve_query(request.query_params, runs=True)
        thinned = query.most <= _INDEXED_POINTS and query.start == -math.inf and query.end == math.inf
        end = time.monotonic() + _OVERLAY_SECONDS
        series: dict[str, Any] = {}
        behind: list[str] = []
        for run_id in ids:
            if series and time.monotonic() > end:
                behind.append(run_id)
                continue
            with suppress(MissingFile), self._folder.open(run_id, thinned=thinned) as opened:
                series[run_id] = make_curves(opened.run, query)[query.names[0]]
                if opened.run.has_unread and not (thinned and opened.run.is_indexed):
                    behind.append(run_id)
        return JsonResponse({"series": series, "behind": behind})

    def compare(self, request: Request) -> Response:
        """Runs side by side: where their settings differ, and the last and best values of each."""
        ids = parse_ids(request.query_params)
        for run_id in ids:
            self._folder.path_of(run_id)
        known = self._folder.rows(seconds=_LIST_SECONDS, first=ids)
        rows = [known[run_id] for run_id in ids if run_id in known]
        same, different = compare_configs({row["id"]: row["config"] for row in rows})
        return JsonResponse({"rows": rows, "config": {"same": same, "different": different}})

    async def events(self, request: Request) -> Response:
        """Changes from now on, as server-sent events."""
        ids = parse_ids(request.query_params)
        if self._streams >= _MAX_STREAMS:
            return JsonResponse({"error": f"{_MAX_STREAMS} pages are open already; close some of them"}, 503)
        self._streams += 1
        return EventStream(self._folder, ids, self._close_stream)

    def _close_stream(self) -> None:
        self._streams -= 1


def parse_curve_query(query: QueryParams, *, runs: bool = False) -> CurveQuery:
    """The curves that a URL asks for: several of one run, or with `runs` one of several."""
    names = tuple(dict.fromkeys(query.getlist("name")))
    if not 1 <= len(names) <= (1 if runs else _MAX_CURVES):
        expected = "one name (?name=train/loss)" if runs else f"1 to {_MAX_CURVES} names (?name=train/loss&name=…)"
        raise InvalidArgument(f"expected {expected}; got {len(names)}")
    parsed = CurveQuery(
        names=names,
        most=_parse_number(query, "most", int, 1000, lowest=2, highest=_MAX_POINTS),
        source=_parse_choice(query, "source", ("all", "epochs", "running", "auto")),
        by=_parse_choice(query, "by", ("update", "epoch", "time", "elapsed")),
        start=_parse_number(query, "from", float, -math.inf),
        end=_parse_number(query, "to", float, math.inf),
    )
    count, things = (len(query.getlist("id")), "runs") if runs else (len(names), "names")
    if count * parsed.most > _MAX_TOTAL_POINTS:
        raise InvalidArgument(
            f"{count} {things} with most={parsed.most}; expected at most {_MAX_TOTAL_POINTS} points in one answer: "
            f"ask for fewer {things} or fewer points"
        )
    if parsed.start > parsed.end:
        raise InvalidArgument(f"from={parsed.start} is after to={parsed.end}; expected from ≤ to")
    return parsed


def parse_ids(query: QueryParams) -> list[str]:
    """The runs that a URL names."""
    ids = list(dict.fromkeys(query.getlist("id")))
    if len(ids) > _MAX_RUNS:
        raise InvalidArgument(f"expected at most {_MAX_RUNS} runs; got {len(ids)}")
    return ids


def _parse_choice(query: QueryParams, key: str, choices: tuple[str, ...]) -> Any:
    given = query.get(key) or choices[0]
    if given not in choices:
        raise InvalidArgument(f"{key}={given[:40]!r}; expected one of {', '.join(choices)}")
    return given


def _parse_number(
    query: QueryParams,
    key: str,
    kind: Callable[[str], Any],
    default: float,
    *,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> Any:
    given = query.get(key)
    if not given:
        return default
    try:
        number = kind(given)
    except ValueError:
        number = math.nan
    if not lowest <= number <= highest:  # false for NaN
        between = f" from {lowest} to {highest}" if lowest > -math.inf else ""
        raise InvalidArgument(f"{key}={given[:40]!r}; expected a number{between}")
    return number
