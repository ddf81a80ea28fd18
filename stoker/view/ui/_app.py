"""The server as an ASGI application: every address, behind the guard."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stoker.errors import InvalidArgument, MissingFile
from stoker.view.ui._api import Answer, Api
from stoker.view.ui._faults import tell
from stoker.view.ui._guard import Guard, hosts_for
from stoker.view.ui._page import Page
from stoker.view.ui._shelf import Shelf
from stoker.view.ui._views import failure


def app_of(shelf: Shelf, *, host: str, port: int, token: str | None) -> ASGIApp:
    """The application; without a token nothing can be asked of a run."""
    api, page = Api(shelf, token=token), Page()
    routes = [
        Route("/", page.index),
        Route("/static/{file:path}", page.static),
        Route("/api/runs", api.runs),
        Route("/api/run/{id:path}", api.run),
        Route("/api/points/{id:path}", api.points),
        Route("/api/compare", api.compare),
        Route("/api/events", api.events),
        Route("/api/control/{id:path}", api.control, methods=["POST"]),
    ]
    errors = {HTTPException: _http, MissingFile: _missing, InvalidArgument: _invalid, Exception: _unexpected}
    return Guard(Starlette(routes=routes, exception_handlers=errors), hosts=hosts_for(host), port=port)


def _missing(request: Request, error: Exception) -> Response:
    return Answer({"error": str(error)}, 404)


def _invalid(request: Request, error: Exception) -> Response:
    return Answer({"error": str(error)}, 400)


def _http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    texts = {404: f"there is nothing at {request.url.path!r}", 405: f"{request.method} is not possible here"}
    return Answer({"error": texts.get(status, str(error))}, status)


def _unexpected(request: Request, error: Exception) -> Response:
    tell(error)
    return Answer({"error": failure(error)}, 500)
