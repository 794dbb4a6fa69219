"""Asks a judge over HTTP: the window goes out as JSON, the verdict comes back as JSON.

POST url   {"rule": "...", "category": "...", "direction": "answer", "text": "..."}
200        {"flagged": true}    or    {"score": 0.93}, compared with the rule's threshold
"""

from __future__ import annotations

import os
from typing import Any

import httpx
import msgspec

from gateway.postprocess.safety.policy import Direction, Rule

_MAX_ANSWER_BYTES = 64 * 1024
_MAX_CONNECTIONS = 64


class CalloutError(Exception):
    """The judge gave no verdict; the message says why, and never quotes the text."""


class Callout:
    """The HTTP client of all callout rules. An async context manager; the environment's proxies are not used."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(
            trust_env=False, timeout=None, limits=httpx.Limits(max_connections=_MAX_CONNECTIONS)
        )

    async def __aenter__(self) -> Callout:
        """Open the client."""
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Close its connections."""
        await self._http.__aexit__(*error)

    async def ask(self, rule: Rule, direction: Direction, text: str) -> bool:
        """Return whether the judge flags the text. Raises CalloutError; the caller bounds the time."""
        body = {"rule": rule.id, "category": rule.category, "direction": direction, "text": text}
        headers = {"Content-Type": "application/json"}
        if rule.token_env:
            headers["Authorization"] = f"Bearer {os.environ.get(rule.token_env, '')}"
        raw = bytearray()
        try:
            content = msgspec.json.encode(body)
            async with self._http.stream("POST", rule.url, content=content, headers=headers) as response:
                if response.status_code != 200:
                    raise CalloutError(f"status {response.status_code}")
                async for piece in response.aiter_bytes():
                    raw += piece
                    if len(raw) > _MAX_ANSWER_BYTES:
                        raise CalloutError("the answer is too long")
            return _verdict(rule, msgspec.json.decode(raw))
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise CalloutError(type(error).__name__) from None


def _verdict(rule: Rule, answer: Any) -> bool:
    if isinstance(answer, dict):
        if isinstance(answer.get("flagged"), bool):
            return bool(answer["flagged"])
        if isinstance(answer.get("score"), (int, float)):
            return float(answer["score"]) >= rule.threshold
    raise CalloutError("the answer holds neither `flagged` nor `score`")
