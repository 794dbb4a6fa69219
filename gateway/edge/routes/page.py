"""The page at `/`: files of gateway/webchat, read-only, under a strict content security policy."""

from __future__ import annotations

import os
import re
import stat
from mimetypes import guess_type
from pathlib import PurePosixPath

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from gateway.edge.page_files import PageFiles, takes_gzip

SUFFIXES = frozenset({"", ".html", ".js", ".mjs", ".css", ".svg", ".png", ".ico", ".webp", ".woff2", ".json", ".txt"})
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# Of what a browser shows as a document; scripts and styles are held to that of the page that they are in.
DOCUMENTS = ("text/html", "image/svg+xml")
DOCUMENT_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
}
VERSIONED = re.compile(r"~([0-9a-f]+)/(.+)")


class Page(StaticFiles):
    """Static files of known kinds; hidden files, Python files and whatever lies outside the folder do not exist.

    The document names its scripts and styles under `~version/`, which changes with any of them: so they are kept for
    ever. Under the version of another edge, or of before an update, a file is what it is now and is asked for again.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(directory=directory, html=True, check_dir=False)
        self._files = PageFiles(os.path.realpath(directory))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a file; nobody speaks WebSocket here."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        await super().__call__(scope, receive, send)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file or raise 404, whatever was to be done there."""
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(404)
        version, path = found.groups() if (found := VERSIONED.fullmatch(path)) else ("", path)
        parts = PurePosixPath(path)
        if parts.suffix not in SUFFIXES or any(part.startswith((".", "_")) and part != "." for part in parts.parts):
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        is_lasting = self._files.lasts(version, path)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_lasting else "no-cache"
        response.headers.update(HEADERS)
        if response.headers.get("content-type", "").startswith(DOCUMENTS):
            response.headers.update(DOCUMENT_HEADERS)
        return response

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file and have its codings at hand; starlette calls this in a thread."""
        full_path, found = super().lookup_path(path)
        if found is not None and stat.S_ISREG(found.st_mode):
            self._files.read(full_path, found)
        return full_path, found

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Answer with the file compressed where that helps and is taken. A part is always one of the file as it is."""
        asked = Headers(scope=scope)
        file = self._files[os.fspath(full_path)]
        is_part = "range" in asked and full_path != self._files.index  # which differs from what is on the disk
        is_zipped = bool(file.zipped) and not is_part and takes_gzip(asked.get("accept-encoding", ""))
        headers = file.headers(is_zipped=is_zipped)
        if self.is_not_modified(Headers(headers), asked):
            return NotModifiedResponse(Headers(headers))
        if is_part:
            return FileResponse(full_path, status_code, headers, stat_result=stat_result)
        return Response(file.zipped if is_zipped else file.plain, status_code, headers, guess_type(full_path)[0])
