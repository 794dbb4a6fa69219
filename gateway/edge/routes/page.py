"""The page at `/`: files of gateway/webchat, read-only, under a strict content security policy."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

SUFFIXES = frozenset({"", ".html", ".js", ".mjs", ".css", ".svg", ".png", ".ico", ".webp", ".woff2", ".json", ".txt"})
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Page(StaticFiles):
    """Static files of known kinds; hidden files, Python files and whatever lies outside the folder do not exist."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(directory=directory, html=True, check_dir=False)

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
        parts = PurePosixPath(path)
        if parts.suffix not in SUFFIXES or any(part.startswith((".", "_")) and part != "." for part in parts.parts):
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
