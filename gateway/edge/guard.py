"""Who may call: Host and Origin are checked, so that a page of another site cannot reach us through a browser.

DNS rebinding needs a host name with a dot that the attacker owns; addresses, names without a dot and `allowed_hosts`
pass. A request with an Origin must come from our own page or from `cors_origins`. Every answer carries X-Request-Id:
the client's own, cut to 128 characters, or a new one; it is never used as a key. Anthropic's clients read it as
`request-id`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.edge.errors import error_response, speaks_anthropic
from gateway.edge.identity import new_request_id
from gateway.edge.schema.body import WARNINGS
from gateway.edge.schema.unknown import HEADER
from gateway.edge.settings import EdgeSettings, is_ip_address
from wire.errors import ForbiddenError

_MAX_ID = 128


class Guard:
    """ASGI layer in front of all routes."""

    def __init__(self, app: ASGIApp, settings: EdgeSettings) -> None:
        self.app = app
        self._hosts = frozenset(name.lower() for name in settings.allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it with 403."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _printable(headers.get("x-request-id", "")) or new_request_id()
        scope["headrace.request_id"] = request_id

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["X-Request-Id"] = request_id
                if speaks_anthropic(scope):
                    answer["request-id"] = request_id
                if WARNINGS in scope:
                    answer[HEADER] = scope[WARNINGS]
            await send(message)

        refusal = self._refusal(headers, scope)
        app = refusal if refusal is not None else self.app
        await app(scope, receive, with_id)

    def _refusal(self, headers: Headers, scope: Scope) -> Response | None:
        host = headers.get("host", "").lower()
        name = _split(f"//{host}")[0]
        if not self._host_allowed(name):
            return error_response(
                ForbiddenError(f"Host {name[:80]!r} is not served here; name it in HEADRACE_ALLOWED_HOSTS."), scope
            )
        origin = headers.get("origin")
        if origin is not None and not self._origin_allowed(origin.lower(), host):
            return error_response(
                ForbiddenError("Pages of this origin may not call; name it in HEADRACE_CORS_ORIGINS."), scope
            )
        return None

    def _host_allowed(self, name: str) -> bool:
        if "*" in self._hosts or name in self._hosts or is_ip_address(name):
            return True
        return bool(name) and ("." not in name or name.endswith(".localhost"))

    def _origin_allowed(self, origin: str, host: str) -> bool:
        return "*" in self._origins or origin in self._origins or _split(origin)[1] == host


def _printable(value: str) -> str:
    return "".join(char for char in value[:_MAX_ID] if " " <= char <= "~")


def _split(url: str) -> tuple[str, str]:
    """Return host name and network location; empty for text that is no URL."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.netloc
    except ValueError:
        return "", ""
