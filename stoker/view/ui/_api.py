"""The questions that the page asks, and their answers in JSON."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.errors import InvalidArgument, StokerError
from stoker.view.ui._ask import ids, wish
from stoker.view.ui._config import compared
from stoker.view.ui._digest import Digest
from stoker.view.ui._json import to_json
from stoker.view.ui._news import News
from stoker.view.ui._points import series
from stoker.view.ui._rows import Rows
from stoker.view.ui._shelf import Shelf
from stoker.view.ui._views import detail

_PATIENCE = 1.0  # seconds that a page waits for the list; what is not read until then comes as news
_PAUSE = 0.5  # seconds between two looks for news
_BEAT = 15.0  # seconds of silence after which a comment shows that the connection stands
_STREAMS = 64  # pages that are told news at the same time
_COMPARED, _FOLLOWED = 200, 200  # runs in one answer, and in one stream
_LONGEST = 4096  # bytes of what may be asked of a run


class Answer(Response):
    """JSON that is never kept: the next answer may be another one."""

    media_type = "application/json"

    def __init__(self, content: Any = None, status_code: int = 200) -> None:
        super().__init__(content, status_code, headers={"cache-control": "no-store"})

    def render(self, content: Any) -> bytes:
        """Bytes are JSON already."""
        return content if isinstance(content, bytes) else to_json(content)


class Stream(StreamingResponse):
    """Server-sent events, until the page goes; then `close` is called, also where the page went before the first."""

    def __init__(self, content: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


class Api:
    """Answers about the runs on a shelf; with a token also takes requests to them."""

    def __init__(self, shelf: Shelf, *, token: str | None) -> None:
        self._shelf = shelf
        self._token = token
        self._rows = Rows(shelf)
        self._streams = 0

    def runs(self, request: Request) -> Response:
        """The list of runs."""
        found = self._shelf.found()
        rows = list(self._rows.latest(seconds=_PATIENCE).values())
        told = {"folder": str(self._shelf.folder), "runs": rows, "control": self._token is not None}
        return Answer({**told, "problems": found.problems})

    def run(self, request: Request) -> Response:
        """Everything about a run, but for its curves."""
        name = request.path_params["id"]
        with self._shelf.follow(name) as opened:
            return Answer(detail(name, opened.run))

    def points(self, request: Request) -> Response:
        """Curves of a run."""
        name, asked = request.path_params["id"], wish(request.query_params)
        digest = self._shelf.digest(name) if Digest.serves(asked) else None
        if digest is not None:
            return Answer({"series": series(digest, asked), "behind": False})
        with self._shelf.follow(name) as opened:
            found = {"series": series(opened.run, asked), "behind": opened.run.has_unread}
        return Answer(found)

    def compare(self, request: Request) -> Response:
        """Runs side by side: where their configs differ, and the last numbers of each."""
        names = ids(request.query_params, most=_COMPARED)
        known = self._rows.latest(seconds=_PATIENCE, first=[name for name in names if self._shelf.path(name)])
        rows = [known[name] for name in names if name in known]
        metrics = dict.fromkeys(metric for each in rows for metric in each["last"])
        final = {name: {each["id"]: each["last"][name] for each in rows if name in each["last"]} for name in metrics}
        return Answer({"rows": rows, "config": compared({each["id"]: each["config"] for each in rows}), "final": final})

    async def events(self, request: Request) -> Response:
        """What changes from now on, as server-sent events."""
        names = ids(request.query_params, most=_FOLLOWED)
        if self._streams >= _STREAMS:
            return Answer({"error": f"{_STREAMS} pages are open already; close some of them"}, 503)
        self._streams += 1  # now: many may come before the first of them is sent anything
        return Stream(told(News(self._shelf, self._rows, names)), self._close)

    def _close(self) -> None:
        self._streams -= 1

    async def control(self, request: Request) -> Response:
        """Asks a run to stop or to save."""
        if self._token is None:
            return Answer({"error": "this server is read-only; start it without --read-only"}, 403)
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return Answer({"error": "that is not the token that `stoker ui` printed as it started"}, 403)
        what = await _asked(request)
        return await run_in_threadpool(self._ask, request.path_params["id"], what)

    def _ask(self, name: str, what: Any) -> Response:
        with self._shelf.follow(name) as opened:
            try:
                opened.run.request(what, by="ui")
            except StokerError as error:
                return Answer({"error": str(error)}, 409)
        return Answer({"asked": what})


async def told(news: News) -> AsyncIterator[bytes]:
    """News without end."""
    silent = 0.0
    yield b"retry: 2000\n\n"
    while True:
        messages = await run_in_threadpool(news.latest)
        for message in messages:
            yield message
        silent = 0.0 if messages else silent + _PAUSE
        if silent >= _BEAT:
            silent = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(_PAUSE)


async def _asked(request: Request) -> str:
    """What a body wants of a run."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST:
            break
    try:
        found = json.loads(body)["ask"] if len(body) <= _LONGEST else None
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if found not in ("stop", "save"):
        raise InvalidArgument('expected {"ask": "stop"} or {"ask": "save"}')
    return found
