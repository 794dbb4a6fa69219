"""The bill of a request: tokens, times and energy, as usage object, `headrace` extension and Server-Timing header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.postprocess.safety.hit import Delay, Hit
from wire.messages import PromptNote, TokenChunk

_GUESSES = ("accepted_prediction_tokens", "rejected_prediction_tokens")
_PHASES = ("queue_ms", "tokenize_ms", "match_ms", "fetch_ms", "prefill_ms", "decode_ms")


class Bill(msgspec.Struct, kw_only=True):
    """What one request used. Milliseconds come from the desks and the replica, `ttft_ms` is the edge's own clock.

    `fetched_tokens` of the cached ones came from another replica. `energy_j` is None where no replica has a meter.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    fetched_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    queue_ms: float = 0.0
    tokenize_ms: float = 0.0
    match_ms: float = 0.0
    fetch_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    ttft_ms: float = 0.0
    tokens_per_second: float = 0.0
    messages_dropped: int = 0
    reasoning_budget: int | None = None
    reasoning_ended_by: str | None = None
    held_chars: int | None = None
    held_ms: float = 0.0
    mean_held_ms: float = 0.0
    num_redacted: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    energy_j: float | None = None
    knows_prompt: bool = False

    @classmethod
    def joined(cls, bills: Sequence[Bill]) -> Bill:
        """Return the bill of requests that ran side by side: tokens add up, of times the longest counts."""
        if len(bills) == 1:
            return bills[0]
        sums = (
            "prompt_tokens",
            "cached_tokens",
            "fetched_tokens",
            "completion_tokens",
            "reasoning_tokens",
            "tokens_per_second",
            *_GUESSES,
        )
        values: dict[str, Any] = {name: sum(getattr(bill, name) for bill in bills) for name in sums}
        longest = (*_PHASES, "ttft_ms", "held_ms", "mean_held_ms")
        values |= {name: max(getattr(bill, name) for bill in bills) for name in longest}
        values["held_chars"] = max((bill.held_chars for bill in bills if bill.held_chars is not None), default=None)
        values["num_redacted"] = sum(bill.num_redacted for bill in bills)
        joules = [bill.energy_j for bill in bills if bill.energy_j is not None]
        values["energy_j"] = sum(joules) if joules else None
        return cls(**values)

    def note(self, chunk: TokenChunk) -> None:
        """Take over what first and last chunks say of the prompt, the cache and the times."""
        if chunk.num_prompt_tokens:
            self.prompt_tokens = max(self.prompt_tokens, chunk.num_prompt_tokens)
            self.cached_tokens = max(self.cached_tokens, chunk.num_cached_tokens)
            self.fetched_tokens = max(self.fetched_tokens, chunk.num_fetched_tokens)
        self.note_timings(chunk.timings_ms)
        if chunk.prompt_note is not None:
            self.note_prompt(chunk.prompt_note)

    def note_prompt(self, note: PromptNote) -> None:
        """Take over what the bill says of the prompt besides its length."""
        self.messages_dropped, self.reasoning_budget = note.messages_dropped, note.reasoning_budget
        self.knows_prompt = True

    def note_timings(self, timings_ms: dict[str, float]) -> None:
        """Take over the times that travelled with the tokens: those of the desks and those of the replica."""
        get = timings_ms.get
        self.queue_ms = max(self.queue_ms, sum(v for k, v in timings_ms.items() if k == "queue" or k.endswith(".wait")))
        self.tokenize_ms = max(self.tokenize_ms, get("tokenizer.work", 0.0))
        self.match_ms = max(self.match_ms, get("prefix.work", 0.0))
        self.fetch_ms = max(self.fetch_ms, get("fetch", 0.0))
        self.prefill_ms = max(self.prefill_ms, get("prefill", 0.0) + get("prefill.work", 0.0))
        self.decode_ms = max(self.decode_ms, get("decode", 0.0))

    def note_safety(self, delays: Sequence[Delay], hits: Sequence[Sequence[Hit]]) -> None:
        """Take over how long safety rules held text back, and how often they redacted; nothing without rules."""
        if delays:
            self.held_chars = max(delay.max_chars for delay in delays)
            self.held_ms = max(delay.max_ms for delay in delays)
            num_pieces = sum(delay.num_pieces for delay in delays)
            self.mean_held_ms = sum(delay.sum_ms for delay in delays) / max(1, num_pieces)
            self.num_redacted = sum(hit.action == "redact" for of_choice in hits for hit in of_choice)

    def headrace(self) -> dict[str, Any]:
        """Return our usage extension."""
        held = {
            "held_chars": self.held_chars,
            "held_ms": round(self.held_ms, 3),
            "mean_ms": round(self.mean_held_ms, 3),
            "redacted": self.num_redacted,
        }
        return {
            **({"safety": held} if self.held_chars is not None else {}),
            **{name: round(getattr(self, name), 3) for name in (*_PHASES, "ttft_ms")},
            **({"energy_j": round(self.energy_j, 3)} if self.energy_j is not None else {}),
            "cached_tokens": self.cached_tokens,
            "fetched_tokens": self.fetched_tokens,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "messages_dropped": self.messages_dropped,
            "reasoning": {
                "budget": self.reasoning_budget,
                "used": self.reasoning_tokens,
                "ended_by": self.reasoning_ended_by,
            },
        }

    def chat_usage(self) -> dict[str, Any]:
        """Return `usage` of chat completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                **{name: getattr(self, name) for name in _GUESSES},
            },
            "headrace": self.headrace(),
        }

    def responses_usage(self) -> dict[str, Any]:
        """Return `usage` of the Responses API."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "headrace": self.headrace(),
        }

    def server_timing(self) -> str:
        """Return the Server-Timing header: what is known when the headers leave."""
        known = [(name.removesuffix("_ms"), getattr(self, name)) for name in (*_PHASES, "ttft_ms")]
        return ", ".join(f"{name};dur={value:.3f}" for name, value in known if value)
