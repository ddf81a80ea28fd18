"""The requests of the page: their arguments, checked, and their answers in JSON."""

import asyncio
import hmac
import json
import math
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.errors import InvalidArgument, StokerError
from stoker.view._configs import compare_configs
from stoker.view.ui._events import PageEvents
from stoker.view.ui._json import CurveQuery, Row, make_curves, make_details, make_unread_row, to_json
from stoker.view.ui._runs import RunFolder, RunList, ThinnedCurves

_LIST_SECONDS = 1.0  # a request waits that long for the list; runs read later follow as events
_EVENT_INTERVAL = 0.5  # seconds
_KEEP_ALIVE = 15.0  # seconds without events after which a comment is sent
_MAX_STREAMS = 64  # pages that receive events at the same time
_MAX_RUNS = 200  # in one answer or stream
_MAX_CURVES, _MAX_POINTS, _MAX_TOTAL_POINTS = 1000, 20_000, 500_000  # in one answer
_MAX_BODY = 4096  # bytes of a control request


class JsonResponse(Response):
    """A JSON answer that browsers don't cache."""

    media_type = "application/json"

    def __init__(self, content: Any = None, status_code: int = 200) -> None:
        super().__init__(content, status_code, headers={"cache-control": "no-store"})

    def render(self, content: Any) -> bytes:
        """Encodes the content."""
        return to_json(content)


class EventStream(StreamingResponse):
    """Server-sent events until the page disconnects; then `on_close` is called, even if nothing was sent."""

    def __init__(self, content: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


class Api:
    """Answers requests about the runs of a folder; with a token it also forwards requests to runs."""

    def __init__(self, folder: RunFolder, *, token: str | None) -> None:
        self._folder = folder
        self._token = token
        self._list = RunList(folder, make_failed_row)
        self._streams = 0

    def runs(self, request: Request) -> Response:
        """The list of runs."""
        problems = self._folder.find().problems
        rows = list(self._list.refresh(seconds=_LIST_SECONDS).values())
        control = self._token is not None
        return JsonResponse({"folder": str(self._folder.path), "runs": rows, "control": control, "problems": problems})

    def run(self, request: Request) -> Response:
        """Everything about a run except its curves."""
        run_id = request.path_params["id"]
        with self._folder.open(run_id) as opened:
            return JsonResponse(make_details(run_id, opened.run))

    def points(self, request: Request) -> Response:
        """Curves of a run."""
        run_id, query = request.path_params["id"], parse_curve_query(request.query_params)
        kept = self._folder.thinned_curves(run_id) if ThinnedCurves.can_answer(query) else None
        if kept is not None:
            return JsonResponse({"series": make_curves(kept, query), "behind": False})
        with self._folder.open(run_id) as opened:
            return JsonResponse({"series": make_curves(opened.run, query), "behind": opened.run.has_unread})

    def compare(self, request: Request) -> Response:
        """Runs side by side: where their configs differ, and the last values of each."""
        ids = parse_ids(request.query_params)
        for run_id in ids:
            self._folder.path_of(run_id)
        known = self._list.refresh(seconds=_LIST_SECONDS, first=ids)
        rows = [known[run_id] for run_id in ids if run_id in known]
        names = dict.fromkeys(name for row in rows for name in row["last"])
        final = {name: {row["id"]: row["last"][name] for row in rows if name in row["last"]} for name in names}
        same, different = compare_configs({row["id"]: row["config"] for row in rows})
        return JsonResponse({"rows": rows, "config": {"same": same, "different": different}, "final": final})

    async def events(self, request: Request) -> Response:
        """Changes from now on, as server-sent events."""
        ids = parse_ids(request.query_params)
        if self._streams >= _MAX_STREAMS:
            return JsonResponse({"error": f"{_MAX_STREAMS} pages are open already; close some of them"}, 503)
        self._streams += 1
        return EventStream(_send_events(PageEvents(self._folder, self._list, ids, make_failed_row)), self._close_stream)

    def _close_stream(self) -> None:
        self._streams -= 1

    async def control(self, request: Request) -> Response:
        """Asks a run to stop or to save."""
        if self._token is None:
            return JsonResponse({"error": "this server is read-only; start it without --read-only"}, 403)
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return JsonResponse({"error": "wrong token; expected the one that `stoker ui` printed at its start"}, 403)
        action = await _read_action(request)
        return await run_in_threadpool(self._ask, request.path_params["id"], action)

    def _ask(self, run_id: str, action: Any) -> Response:
        with self._folder.open(run_id) as opened:
            try:
                opened.run.request(action, by="ui")
            except StokerError as error:
                return JsonResponse({"error": str(error)}, 409)
        return JsonResponse({"asked": action})


async def _send_events(page: PageEvents) -> AsyncIterator[bytes]:
    silent = 0.0
    yield b"retry: 2000\n\n"
    while True:
        messages = await run_in_threadpool(page.collect)
        for message in messages:
            yield message
        silent = 0.0 if messages else silent + _EVENT_INTERVAL
        if silent >= _KEEP_ALIVE:
            silent = 0.0
            yield b": keep-alive\n\n"
        await asyncio.sleep(_EVENT_INTERVAL)


async def _read_action(request: Request) -> str:
    """The action in a control request's body."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            break
    try:
        action = json.loads(body)["ask"] if len(body) <= _MAX_BODY else None
    except (ValueError, KeyError, TypeError, RecursionError):
        action = None
    if action not in ("stop", "save"):
        raise InvalidArgument('expected {"ask": "stop"} or {"ask": "save"}')
    return action


def parse_curve_query(query: QueryParams) -> CurveQuery:
    """The curves that a URL asks for."""
    names = tuple(dict.fromkeys(query.getlist("name")))
    if not 1 <= len(names) <= _MAX_CURVES:
        raise InvalidArgument(f"expected 1 to {_MAX_CURVES} names (?name=train/loss&name=…); got {len(names)}")
    parsed = CurveQuery(
        names=names,
        most=_parse_number(query, "most", int, 1000, lowest=2, highest=_MAX_POINTS),
        source=_parse_choice(query, "source", ("all", "epochs", "running")),
        by=_parse_choice(query, "by", ("update", "epoch", "time")),
        start=_parse_number(query, "from", float, -math.inf),
        end=_parse_number(query, "to", float, math.inf),
    )
    if len(names) * parsed.most > _MAX_TOTAL_POINTS:
        raise InvalidArgument(
            f"{len(names)} names with most={parsed.most}; expected at most {_MAX_TOTAL_POINTS} points in one answer: "
            "ask for fewer names or fewer points"
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


_printed: set[tuple[type[BaseException], str, int]] = set()
_print_lock = threading.Lock()


def print_once(error: Exception) -> None:
    """Prints an unexpected error in the server's terminal, once per place in the code: pages ask twice a second."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    key = (type(error), place[0].filename if place else "", (place[0].lineno or 0) if place else 0)
    with _print_lock:
        is_new = key not in _printed
        _printed.add(key)
    if is_new:
        traceback.print_exception(error, file=sys.stderr)


def describe_failure(error: Exception) -> str:
    """What the page shows for an unexpected error."""
    return f"stoker ui failed with {type(error).__name__}; its terminal shows the traceback"


def make_failed_row(run_id: str, error: Exception) -> Row:
    """Prints an unexpected error and returns the row that the list shows for the run."""
    print_once(error)
    return make_unread_row(run_id, state="died", reason=describe_failure(error))
