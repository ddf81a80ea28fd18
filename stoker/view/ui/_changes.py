"""Requests that change something, which need the token: stop or save a run, annotate it, remove and restore it."""

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from stoker.errors import BadFile, InvalidArgument, StokerError
from stoker.record import Annotations, read_annotations, remove_run, restore_run, write_annotations
from stoker.view.ui._json import JsonResponse
from stoker.view.ui._runs import RunFolder

_MAX_BODY = 1 << 17  # bytes of a request: a note has at most 64 kB
_MAX_TRASH = 1000  # removed runs that can be restored with this server


class Changes:
    """Changes runs for requests with the token; without a token, for none."""

    def __init__(self, folder: RunFolder, *, token: str | None) -> None:
        self._folder = folder
        self._token = token
        self._trash: dict[str, Path] = {}  # the directories that this server has removed, by a key that the page gets

    async def control(self, request: Request) -> Response:
        """Asks a run to stop or to save."""
        return await self._answer(request, self._control)

    async def annotate(self, request: Request) -> Response:
        """Changes the title, the tags, the note of a run, or whether it is archived."""
        return await self._answer(request, self._annotate)

    async def remove(self, request: Request) -> Response:
        """Moves a run to the trash."""
        return await self._answer(request, self._remove)

    async def restore(self, request: Request) -> Response:
        """Moves a run back that this server has removed."""
        return await self._answer(request, self._restore)

    async def _answer(self, request: Request, change: Callable[[str, Mapping[str, Any]], Any]) -> Response:
        """Checks the token and the body, then makes the change; what can't be done now is a conflict (409)."""
        if self._token is None:
            return JsonResponse({"error": "this server is read-only; start it without --read-only"}, 403)
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return JsonResponse({"error": "wrong token; expected the one that `stoker ui` printed at its start"}, 403)
        body = await _read_body(request)
        run_id = request.path_params.get("id", "")
        if run_id:
            self._folder.path_of(run_id)  # an unknown run is not a conflict
        try:
            return JsonResponse(await run_in_threadpool(change, run_id, body))
        except InvalidArgument:
            raise
        except (StokerError, OSError) as error:
            return JsonResponse({"error": str(error)}, 409)

    def _control(self, run_id: str, body: Mapping[str, Any]) -> Any:
        action = body.get("ask")
        if action not in ("stop", "save"):
            raise InvalidArgument('expected {"ask": "stop"} or {"ask": "save"}')
        with self._folder.open(run_id) as opened:
            try:
                opened.run.request(action, by="ui")
            except InvalidArgument as error:  # the run has no living process
                raise BadFile(str(error)) from error
        return {"asked": action}

    def _annotate(self, run_id: str, body: Mapping[str, Any]) -> Any:
        known = Annotations.__slots__
        if not body or not set(body) <= set(known) or not isinstance(body.get("tags", []), list):
            raise InvalidArgument(f"expected an object with some of {', '.join(known)} (tags as a list)")
        path = self._folder.path_of(run_id)
        try:
            before = read_annotations(path)
        except BadFile:  # a damaged file is replaced
            before = Annotations()
        try:
            annotations = replace(before, **body)
        except TypeError as error:  # a tag that is a list
            raise InvalidArgument("expected tags as a list of texts") from error
        write_annotations(path, annotations)
        self._folder.forget_scan()
        return asdict(annotations)

    def _remove(self, run_id: str, body: Mapping[str, Any]) -> Any:
        path = self._folder.path_of(run_id)
        if path == self._folder.path:
            raise InvalidArgument(f"{run_id!r} is the folder that this server shows; it can't remove that")
        key = secrets.token_hex(8)
        self._trash[key] = remove_run(path)
        if len(self._trash) > _MAX_TRASH:
            del self._trash[next(iter(self._trash))]
        self._folder.forget_scan()
        return {"restore": key}

    def _restore(self, run_id: str, body: Mapping[str, Any]) -> Any:
        key = body.get("restore")
        if not isinstance(key, str) or key not in self._trash:
            raise InvalidArgument('expected {"restore": KEY} with a KEY that removing a run has answered')
        path = restore_run(self._trash[key])
        del self._trash[key]
        self._folder.forget_scan()
        return {"restored": path.name}


async def _read_body(request: Request) -> Mapping[str, Any]:
    """The JSON object in a request's body; empty if there is none."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            raise InvalidArgument(f"expected a body of at most {_MAX_BODY} bytes")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    return content if isinstance(content, dict) else {}
