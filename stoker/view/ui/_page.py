"""The page itself: a fixed list of files that come with the package."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from stoker.errors import MissingFile

_FOLDER = Path(__file__).parent / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


def files() -> dict[str, Path]:
    """The page's files by their names in an address."""
    return {path.relative_to(_FOLDER).as_posix(): path for path in sorted(_FOLDER.rglob("*")) if path.is_file()}


class Page:
    """Answers with the page and with its files."""

    def __init__(self) -> None:
        self._files = files()

    def index(self, request: Request) -> Response:
        """The page."""
        return self._file("index.html")

    def static(self, request: Request) -> Response:
        """A script, a style or a picture of the page."""
        return self._file(request.path_params["file"])

    def _file(self, name: str) -> Response:
        if name not in self._files:
            raise MissingFile(f"there is no file {name!r} here")
        kind = _KINDS.get(self._files[name].suffix, "text/plain; charset=utf-8")
        return Response(self._files[name].read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})
