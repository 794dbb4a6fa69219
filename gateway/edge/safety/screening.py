"""Safety rules on what the client sends, before it is admitted: a blocked prompt is refused with 400 `content_filter`.

Screened is all text that reaches a model or is kept (see prompt_texts.py). Token ids are screened as the text they
stand for. What cannot be rewritten (ids, names of functions, schemas, grammars) is refused where a rule would redact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gateway.edge.safety.prompt_texts import Hand, metadata, num_ids, rewritten
from gateway.edge.safety.safety import Safety
from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.hit import Hit
from gateway.postprocess.safety.policy import SafetyPolicy
from wire.errors import ContentFilterError
from wire.messages import Request
from wire.threads import in_thread

_BIG = 2_000  # characters that may take a millisecond

T = TypeVar("T")
Rewrite = Callable[[T, Hand], T]


async def screen(request: Request, safety: Safety | None, field: str, *, system: str = "instructions") -> Request:
    """Return the request with redactions made. Raises ContentFilterError naming the field that is blocked.

    `field` is the name that the prompt has in the body, `system` that of the instructions.
    """

    def rewrite(one: Request, hand: Hand) -> Request:
        return rewritten(one, hand, field=field, system=system)

    return await _screened(request, request, safety, rewrite, field)


async def screen_metadata(given: dict[str, str], request: Request, safety: Safety | None) -> dict[str, str]:
    """Return metadata with redactions made; `request` says whose it is."""
    return await _screened(given, request, safety, metadata, "metadata")


async def _screened(subject: T, request: Request, safety: Safety | None, rewrite: Rewrite[T], field: str) -> T:
    policy = safety.for_request(request) if safety is not None else None
    if safety is None or policy is None or not policy.has_rules("prompt"):
        return subject
    finding, count = _Finding(policy), _Counting(num_ids(request))
    rewrite(subject, count)

    def find() -> tuple[T, list[str]]:
        ids = safety.texts_of_ids(request)
        for text in ids:
            finding.fixed(text, field)
        return rewrite(subject, finding), ids

    try:
        found, ids = find() if count.num_chars < _BIG else await in_thread(find)
        if policy.judged("prompt"):
            found = await _judged(found, ids, policy, safety, rewrite, field, finding.hits)
    except BaseException:
        safety.audit.note(finding.hits, tenant=request.tenant, model=request.model)
        raise
    await safety.audit.note_first(policy, finding.hits, tenant=request.tenant, model=request.model)
    return found


async def _judged(
    subject: T, ids: list[str], policy: SafetyPolicy, safety: Safety, rewrite: Rewrite[T], field: str, hits: list[Hit]
) -> T:
    """Put what the matching rules left before the rules that judge."""
    collecting = _Collecting()
    rewrite(subject, collecting)
    judged: dict[str, str] = {}
    for text, where, fixed in [*((text, field, True) for text in ids), *collecting.texts]:
        if text in judged:
            continue
        judged[text], found = await safety.judge_whole(policy, "prompt", text)
        hits += found
        if any(hit.action == "block" or (hit.action == "redact" and fixed) for hit in found):
            raise _refused(where)
    return rewrite(subject, _Replacing(judged))


class _Finding:
    """Applies the rules that match; what stands twice in the same place (a reply repeats it) is noted once."""

    def __init__(self, policy: SafetyPolicy) -> None:
        self._policy = policy
        self._cleaned: dict[tuple[str, str], str] = {}
        self._passed: set[str] = set()  # schemas say the same few words over and over
        self.hits: list[Hit] = []

    def text(self, text: str, where: str) -> str:
        known = self._cleaned.get((text, where))
        if known is not None:
            return known
        cleaned, hits, blocked_by = check(self._policy, text, "prompt")
        self.hits += hits
        if blocked_by is not None:
            raise _refused(where)
        self._cleaned[text, where] = cleaned
        return cleaned

    label = text

    def fixed(self, text: str, where: str) -> str:
        if text in self._passed:
            return text
        _, hits, _ = check(self._policy, text, "prompt")
        self.hits += hits
        if any(hit.action != "flag" for hit in hits):
            raise _refused(where)
        self._passed.add(text)
        return text


class _Counting:
    """Finds out how much there is to do."""

    def __init__(self, num_chars: int) -> None:
        self.num_chars = num_chars

    def text(self, text: str, where: str) -> str:
        del where
        self.num_chars += len(text)
        return text

    label = fixed = text


class _Collecting:
    """Gathers what the rules that judge shall see: texts, not names."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, bool]] = []

    def text(self, text: str, where: str) -> str:
        self.texts.append((text, where, False))
        return text

    def label(self, text: str, where: str) -> str:
        del where
        return text

    fixed = label


class _Replacing:
    """Puts in what was judged."""

    def __init__(self, judged: dict[str, str]) -> None:
        self._judged = judged

    def text(self, text: str, where: str) -> str:
        del where
        return self._judged[text]

    def label(self, text: str, where: str) -> str:
        del where
        return text

    fixed = label


def _refused(where: str) -> ContentFilterError:
    return ContentFilterError(f"{where}: refused by the safety policy.", param=where)
