"""POST /v1/moderations: OpenAI's body in, OpenAI's result out, with what the rules of this server found.

OpenAI's categories are always there; those of our rules (`category`, or else the rule's id) come beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from gateway.edge.identity import new_id
from gateway.postprocess.safety.hit import Hit
from gateway.postprocess.safety.policy import SafetyPolicy
from wire.errors import InvalidRequestError

MAX_INPUTS = 256

_CATEGORIES = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm",
    "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip


class Part(msgspec.Struct, kw_only=True):
    """A piece of a multi-part input."""

    type: str
    text: str | None = None


class ModerationRequest(msgspec.Struct, kw_only=True):
    """The body. `direction` (ours) chooses which rules apply: those for prompts, unless said otherwise."""

    input: str | list[str | Part]
    model: str | None = None
    direction: Literal["prompt", "answer", "reasoning", "tool"] = "prompt"


def texts_of(body: ModerationRequest) -> list[str]:
    """Return the texts to be looked at: one a string; parts make one text together. Raises InvalidRequestError."""
    given = [body.input] if isinstance(body.input, str) else body.input
    if not 1 <= len(given) <= MAX_INPUTS:
        raise InvalidRequestError(f"input: 1 to {MAX_INPUTS} texts are possible, not {len(given)}.", param="input")
    strings = [text for text in given if isinstance(text, str)]
    if len(strings) == len(given):
        return strings
    parts: list[str] = []
    for at, part in enumerate(given):
        if isinstance(part, str) or part.type != "text" or part.text is None:
            raise InvalidRequestError(
                f"input[{at}]: only parts of type 'text' are possible here.", param=f"input[{at}]"
            )
        parts.append(part.text)
    return ["\n".join(parts)]


class Finding(msgspec.Struct, frozen=True):
    """What the rules made of one text."""

    shown: str
    hits: Sequence[Hit]


def moderation(body: ModerationRequest, policy: SafetyPolicy, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return OpenAI's object."""
    return {
        "id": new_id("modr"),
        "model": body.model or "headrace-safety",
        "results": [_result(policy, finding) for finding in findings],
    }


def _result(policy: SafetyPolicy, finding: Finding) -> dict[str, Any]:
    own = {rule.id: rule.category or rule.id for rule in policy.rules}
    found = {own[hit.rule] for hit in finding.hits}
    names = dict.fromkeys((*_CATEGORIES, *own.values()))
    blocked = any(hit.action == "block" for hit in finding.hits)
    return {
        "flagged": bool(finding.hits),
        "categories": {name: name in found for name in names},
        "category_scores": {name: float(name in found) for name in names},
        "category_applied_input_types": {name: ["text"] for name in names},
        "headrace": {
            "action": "block" if blocked else "redact" if any(h.action == "redact" for h in finding.hits) else "none",
            "text": None if blocked else finding.shown,
            "matches": [
                {"rule": hit.rule, "action": hit.action, "start": hit.start, "end": hit.end} for hit in finding.hits
            ],
        },
    }
