"""What a client may see next of a choice: a piece of answer, of reasoning, or of a tool call's arguments."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.postprocess.logprobs import LogprobEntry
from wire.messages import ToolForm


class CallRef(msgspec.Struct, frozen=True):
    """Which tool call a piece belongs to: its place in the answer, the id it goes by, the function's name.

    `form`: what the client calls the function, if otherwise.
    """

    index: int
    id: str
    name: str
    form: ToolForm | None = None


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Text to append, and the log probabilities of the answer tokens it completes.

    Of kind "tool": argument text of `call`, as the model wrote it, or the free text that a custom tool is called with.
    A call's first delta announces it and may be empty; calls come one after another.
    """

    kind: Literal["answer", "reasoning", "tool"]
    text: str
    logprobs: tuple[LogprobEntry, ...] = ()
    call: CallRef | None = None


def append(deltas: list[TextDelta], delta: TextDelta) -> None:
    """Add a delta, joined with the last one when both speak of the same thing."""
    last = deltas[-1] if deltas else None
    if last is not None and last.kind == delta.kind and last.call == delta.call:
        text, logprobs = last.text + delta.text, last.logprobs + delta.logprobs
        deltas[-1] = TextDelta(kind=last.kind, text=text, logprobs=logprobs, call=last.call)
    else:
        deltas.append(delta)
