"""Messages, outwards: Anthropic's message object and its named events.

`message_start` tells how many tokens went in, so it waits for the first ones that come out. Content blocks follow one
another: thinking, text, and a block for each tool call. Thinking is signed at its end, by a digest that nobody checks:
clients do not send back thinking without a signature, or send it as text.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.edge.bill import Bill
from gateway.edge.errors import anthropic_error
from gateway.edge.jsontext import to_json
from gateway.edge.reply import ChoiceUpdate, merged
from gateway.edge.running_usage import RunningUsage
from gateway.postprocess.delta import CallRef, TextDelta
from wire.errors import HeadraceError
from wire.messages import ChatMessage

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class _Block:
    """One content block while it grows."""

    def __init__(self, kind: str, call: CallRef | None) -> None:
        self.kind = kind
        self.call = call
        self.texts: list[str] = []

    def takes(self, delta: TextDelta) -> bool:
        """Tell whether a delta belongs to this block."""
        return delta.kind == self.kind and delta.call == self.call

    def empty(self) -> dict[str, Any]:
        """Return the block as it is opened."""
        if self.call is not None:
            return {"type": "tool_use", "id": self.call.id, "name": self.call.name, "input": {}}
        if self.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}  # `citations: null`, as the types allow, the AI SDK refuses

    def delta(self, text: str) -> dict[str, Any]:
        """Return a piece of the block."""
        if self.call is not None:
            return {"type": "input_json_delta", "partial_json": text}
        if self.kind == "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        return {"type": "text_delta", "text": text}

    def whole(self) -> dict[str, Any]:
        """Return the block as it is now; arguments that were cut off are no object, and shown as none."""
        text = "".join(self.texts)
        if self.call is not None:
            return self.empty() | {"input": _object(text)}
        if self.kind == "reasoning":
            return self.empty() | {"thinking": text, "signature": self.signature()}
        return self.empty() | {"text": text}

    def signature(self) -> str:
        """Return what stands for a signature of the thinking so far."""
        return blake2b("".join(self.texts).encode(), digest_size=16).hexdigest()


class MessagesReply:
    """The answer to one request of the Messages API."""

    def __init__(self, model: str) -> None:
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._usage = RunningUsage(choices_per_prompt=1)
        self._blocks: list[_Block] = []
        self._started = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    @property
    def id(self) -> str:
        """Return the id of the message."""
        found: str = self._message["id"]
        return found

    def opening(self) -> bytes:
        """Nothing is known yet."""
        return b""

    def events(self, updates: list[ChoiceUpdate]) -> bytes:
        """Return the events of new text."""
        events: list[bytes] = []
        for update in updates:
            self._usage.note(update)
            events += self._start()
            for delta in self._take(update):
                if not self._blocks or not self._blocks[-1].takes(delta):
                    events += self._open(delta)
                block = self._blocks[-1]
                if delta.text:
                    block.texts.append(delta.text)
                    piece = {"index": len(self._blocks) - 1, "delta": block.delta(delta.text)}
                    events.append(_event("content_block_delta", piece))
        return b"".join(events)

    def absorb(self, updates: list[ChoiceUpdate]) -> None:
        """Collect blocks and the reason of the end."""
        self.events(updates)

    def closing(self, bill: Bill) -> bytes:
        """Return the end of the last block, and of the message with its usage."""
        end = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        events = [*self._start(), *self._close(), _event("message_delta", {"delta": end, "usage": _usage(bill)})]
        return b"".join((*events, _event("message_stop", {})))

    def failure(self, error: HeadraceError) -> bytes:
        """Return the error event, which is the last."""
        return b"".join((*self._start(), b"event: error\ndata: " + to_json(anthropic_error(error)) + b"\n\n"))

    def whole(self, bill: Bill) -> dict[str, Any]:
        """Return the message."""
        return self._message | {
            "content": [block.whole() for block in self._blocks],
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": _usage(bill),
        }

    def stored(self, bill: Bill, status: str, error: HeadraceError | None = None) -> dict[str, Any]:
        """Messages are not stored."""
        del bill, status, error
        return {}

    def messages(self) -> tuple[ChatMessage, ...]:
        """Messages are not stored."""
        return ()

    def _take(self, update: ChoiceUpdate) -> list[TextDelta]:
        if update.finish_reason is not None:
            self._stop_sequence = update.stop
            stopped = update.finish_reason == "stop" and update.stop is not None
            self._stop_reason = "stop_sequence" if stopped else _STOP_REASONS[update.finish_reason]
        return [delta for delta in merged(update.deltas) if delta.text or delta.call is not None]

    def _start(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        totals = self._usage.totals()
        usage = _token_counts(totals["prompt_tokens"], self._usage.cached_tokens, totals["completion_tokens"])
        return [_event("message_start", {"message": {**self._message, "usage": usage}}), _event("ping", {})]

    def _open(self, delta: TextDelta) -> list[bytes]:
        events = self._close()
        self._blocks.append(_Block(delta.kind, delta.call))
        opened = {"index": len(self._blocks) - 1, "content_block": self._blocks[-1].empty()}
        return [*events, _event("content_block_start", opened)]

    def _close(self) -> list[bytes]:
        """Return the end of the last block."""
        if not self._blocks:
            return []
        index, block = len(self._blocks) - 1, self._blocks[-1]
        stop = _event("content_block_stop", {"index": index})
        if block.kind != "reasoning":
            return [stop]
        signed = {"type": "signature_delta", "signature": block.signature()}
        return [_event("content_block_delta", {"index": index, "delta": signed}), stop]


def _object(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _usage(bill: Bill) -> dict[str, Any]:
    counts = _token_counts(bill.prompt_tokens, bill.cached_tokens, bill.completion_tokens)
    return counts | {"output_tokens_details": {"thinking_tokens": bill.reasoning_tokens}, "headrace": bill.headrace()}


def _token_counts(prompt: int, cached: int, completion: int) -> dict[str, Any]:
    """In this dialect `input_tokens` does not hold the cached ones."""
    return {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": completion,
        "service_tier": "standard",
    }


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + to_json({"type": name, **fields}) + b"\n\n"
