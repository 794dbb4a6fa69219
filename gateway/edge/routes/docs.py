"""GET /openapi.json and /docs: what this server offers, for programs and for people."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gateway.edge.jsontext import json_response
from gateway.edge.openapi.document import document
from gateway.edge.openapi.page import HEADERS, docs_page


async def openapi(request: Request) -> Response:
    """Return this document."""
    return json_response(document(request.app.routes))


async def docs(request: Request) -> Response:
    """Return a page that shows the document."""
    return HTMLResponse(docs_page(document(request.app.routes)), headers=HEADERS)
