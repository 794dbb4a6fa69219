"""The ASGI layer that asks for an API key. Open without one: what only reads and is no API (page, health, metrics).

Answers to known callers carry `x-ratelimit-*` headers as OpenAI's do (Anthropic's names for its clients).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.edge.errors import error_response, speaks_anthropic
from gateway.edge.tenancy.caller import Caller, current
from gateway.edge.tenancy.key_file import ApiKey
from gateway.edge.tenancy.keyring import Keyring
from gateway.edge.tenancy.limits import Limits, Standing
from wire.errors import AuthenticationError, ForbiddenError, HeadraceError

RATE_HEADERS = tuple(
    f"x-ratelimit-{what}-{name}" for what in ("limit", "remaining", "reset") for name in ("requests", "tokens")
)


class KeyGate:
    """Lets in who has a key."""

    def __init__(self, app: ASGIApp, keyring: Keyring, limits: Limits) -> None:
        self.app = app
        self._keyring = keyring
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it with 401 or 403."""
        if scope["type"] != "http" or _is_open(scope):
            await self.app(scope, receive, send)
            return
        try:
            caller = Caller(self._admitted(Headers(scope=scope)), self._limits)
        except HeadraceError as error:
            await _refusal(error, scope)(scope, receive, send)
            return

        async def with_standing(message: Message) -> None:
            if message["type"] == "http.response.start" and caller.standing is not None:
                MutableHeaders(scope=message).update(_headers(caller.key, caller.standing, scope))
            await send(message)

        scope["headrace.tenant"] = caller.key.tenant
        token = current.set(caller)
        try:
            await self.app(scope, receive, with_standing)
        finally:
            current.reset(token)

    def _admitted(self, headers: Headers) -> ApiKey:
        given = _given(headers)
        if not given:
            raise AuthenticationError("An API key is needed: `Authorization: Bearer hr-...`.")
        key = self._keyring.find(given)
        if key is None:
            raise AuthenticationError("This API key is not known here.")
        if key.disabled:
            raise ForbiddenError("This API key is disabled.")
        return key


def _is_open(scope: Scope) -> bool:
    method: str = scope["method"]
    path: str = scope["path"]
    return not path.startswith(("/v1/", "/tokenizer_info")) if method in ("GET", "HEAD") else method == "OPTIONS"


def _given(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", headers.get("api-key", ""))


def _refusal(error: HeadraceError, scope: Scope) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    response = error_response(error, scope)
    response.headers.update(headers)
    return response


def _headers(key: ApiKey, standing: Standing, scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    is_anthropic = speaks_anthropic(scope)
    rows = (
        ("requests", key.requests_per_minute, standing.requests, standing.requests_reset_s),
        ("tokens", key.tokens_per_minute, standing.tokens, standing.tokens_reset_s),
    )
    for name, limit, left, reset_s in rows:
        if not limit:
            continue
        if is_anthropic:
            at = datetime.now(UTC) + timedelta(seconds=reset_s)
            start = f"anthropic-ratelimit-{name}-"
            found |= {f"{start}limit": str(limit), f"{start}remaining": str(left)}
            found[f"{start}reset"] = at.isoformat(timespec="seconds").replace("+00:00", "Z")
        else:
            found |= {f"x-ratelimit-limit-{name}": str(limit), f"x-ratelimit-remaining-{name}": str(left)}
            found[f"x-ratelimit-reset-{name}"] = _duration(reset_s)
    return found


def _duration(seconds: float) -> str:
    """Write a time as OpenAI does: 17ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
