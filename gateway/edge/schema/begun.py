"""An answer that the client has begun (a last message of the assistant) and the model goes on with."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.edge.schema.sampling import fail
from wire.messages import ChatMessage, SamplingParams


def check_begun(
    messages: Sequence[ChatMessage], where: str, sampling: SamplingParams, *, effort: str | None, budget: int | None
) -> None:
    """Refuse a beginning that nothing can follow. Raises InvalidRequestError naming the field.

    A grammar holds for whole answers, and who has begun to answer thinks no more.
    """
    last = messages[-1]
    if len(messages) == 1:
        raise fail("messages", "an answer that was begun needs a message before it.")
    if last.tool_calls or last.reasoning:
        raise fail(where, "only text can be gone on with, no call and no thinking.")
    if not last.content or last.content != last.content.rstrip():
        raise fail(where, "an answer that was begun must have text, and no white space at its end.")
    if sampling.grammar is not None:
        raise fail(where, "an answer that was begun cannot be held to a format or to a call.")
    if effort not in (None, "none") or budget:
        raise fail(where, "an answer that was begun goes without thinking.")
