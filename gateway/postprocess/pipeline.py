"""Token ids of one choice -> what its client may see: bytes, phases, tool calls, stop strings, safety, in this order.

Whole and streamed replies go through the same pipeline, so their text cannot differ. Rules at the end of a text: an
incomplete character becomes one U+FFFD, a beginning of a stop string or of a forbidden match that never came is shown.
Stop strings are looked for in the answer only, never in tool calls; one that is complete within the first `min_tokens`
is text. `num_tokens` and `token_ids` end with the token that completed a stop string or a blocked match, however many
tokens came in the same chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.postprocess.delta import TextDelta, append
from gateway.postprocess.lane import Lane
from gateway.postprocess.logprobs import LogprobLedger
from gateway.postprocess.phases import PhaseSplitter, Piece, segments
from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.gate import Gate
from gateway.postprocess.safety.hit import Delay, Hit
from gateway.postprocess.safety.policy import SafetyPolicy
from gateway.postprocess.tools.splitter import CallSplitter
from wire.messages import ANSWER, REASONING, TokenChunk, TokenLogprob


class TokenTexts(Protocol):
    """What the pipeline needs of a wire.vocabulary.Vocabulary."""

    @property
    def strips_first_space(self) -> bool:
        """Tell whether one leading space of a whole text is not shown."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token adds to the text."""
        ...


__all__ = ["Pipeline", "TextDelta", "TokenTexts"]

NO_TAGS: Mapping[int, bytes] = {}
_GAP = b"\n\n"  # between two stretches of thinking with nothing said in between


class Pipeline:
    """Everything between the engine's tokens and the client, for one choice.

    `include_reasoning` False: reasoning is counted, not shown. `continues`: the text follows the prompt directly (raw
    completions), so SentencePiece's first space is part of it. `calls` parts tool calls from the answer; `tags` are the
    texts of the control tokens that it looks for. `gate` holds what the rules that judge have not judged: the choice
    has not finished before it is empty. `shows_stop`: the stop string or token is shown.
    """

    def __init__(
        self,
        vocabulary: TokenTexts,
        *,
        stop: tuple[str, ...] = (),
        min_tokens: int = 0,
        shows_stop: bool = False,
        safety: SafetyPolicy | None = None,
        include_reasoning: bool = True,
        logprobs: bool = False,
        continues: bool = False,
        calls: CallSplitter | None = None,
        tags: Mapping[int, bytes] = NO_TAGS,
        gate: Gate | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._tags = tags
        self._splitter = PhaseSplitter(strips_first_space=vocabulary.strips_first_space and not continues)
        ledger = LogprobLedger(vocabulary.token_bytes, _forbids(safety)) if logprobs else None
        self._answer = Lane("answer", stop=stop, shows_stop=shows_stop, safety=safety, ledger=ledger, calls=calls)
        self._reasoning = Lane("reasoning", safety=safety) if include_reasoning else None
        self._min_tokens = min_tokens if stop else 0
        self._shows_stop = shows_stop
        self._deltas: list[TextDelta] = []
        self._closed = False
        self._gate = gate
        self._reason: str | None = None
        self._said_last = ""  # of what kind
        self.token_ids: list[int] = []
        self.num_reasoning_tokens = 0

    @property
    def finish_reason(self) -> str | None:
        """Return why the choice ended, once all its text is out."""
        if self._gate is not None and self._gate.blocked_by is not None:
            return "content_filter"
        return self._reason if self._gate is None or self._gate.empty else None

    @property
    def delays(self) -> list[Delay]:
        """Return how long each text was held back for the sake of safety rules."""
        held = [delay for lane in self._lanes() for delay in lane.delays]
        return held if self._gate is None else [*held, self._gate.delay]

    @property
    def num_tokens(self) -> int:
        """Return how many generated tokens count for this choice, a stop token and hidden ones included."""
        return len(self.token_ids)

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended the answer."""
        return self._answer.stop_string if self._reason == "stop" else None

    @property
    def hits(self) -> list[Hit]:
        """Return the matches of safety rules so far, for the audit log; they hold positions, no text."""
        judged = self._gate.hits if self._gate else []
        return self._answer.hits + (self._reasoning.hits if self._reasoning else []) + judged

    def feed(self, chunk: TokenChunk) -> list[TextDelta]:
        """Take the next tokens; returns what may be shown now. After `finish_reason` is set nothing more is taken."""
        phase = chunk.phase
        last = len(chunk.token_ids) - 1
        for index, token_id in enumerate(chunk.token_ids):
            if self._over:
                break
            marks = [mark for mark in chunk.marks if mark.index == index] if chunk.marks else ()
            hidden = chunk.stop_token and index == last and not self._shows_stop
            tag = self._tags.get(token_id, b"")
            raw = b"" if hidden else tag or self._vocabulary.token_bytes(token_id)
            self.token_ids.append(token_id)
            if self._min_tokens:
                self._answer.exempt = len(self.token_ids) <= self._min_tokens
            logprob = chunk.logprobs[index] if chunk.logprobs else None
            reasons = False
            for part_phase, part in segments(raw, phase, marks) if marks else ((phase, raw),):
                reasons = reasons or part_phase == REASONING
                if tag and part_phase == REASONING:
                    continue  # a control token has a text for the answer's calls alone
                piece = self._splitter.feed(part_phase, part)
                if piece is not None:
                    self._show(piece, logprob)
            self.num_reasoning_tokens += reasons and not hidden
            phase = marks[-1].phase if marks else phase
        if self._reason in ("stop", "tool_calls") and not self._closed:
            self._close_lanes()  # the reasoning may still hold the beginning of a match
        return self._collect()

    def close(self, finish_reason: str) -> list[TextDelta]:
        """End the text; returns what was held. `finish_reason` holds unless a stop string or a rule ended it first.

        A text that stopped by itself and made whole calls has the reason "tool_calls". One that did not was cut: what
        may have become a call, and the beginning of its tag, are no text then.
        """
        if not self._over and not self._closed:
            piece = self._splitter.close()
            if piece is not None:
                self._show(piece, None)
            self._close_lanes(cut=finish_reason != "stop")
        if self._reason is None:
            self._reason = "tool_calls" if finish_reason == "stop" and self._answer.called else finish_reason
        return self._collect()

    @property
    def _over(self) -> bool:
        """Tell whether no more tokens are taken."""
        return self._reason is not None or self.finish_reason is not None

    def _close_lanes(self, *, cut: bool = False) -> None:
        """Let go what the lanes hold, up to a block: nothing comes out after one."""
        self._closed = True
        for lane in self._lanes():
            if self._reason != "content_filter":
                self._add(lane, lane.close(cut=cut))

    def _lanes(self) -> list[Lane]:
        return [self._answer] if self._reasoning is None else [self._reasoning, self._answer]

    def _show(self, piece: Piece, logprob: TokenLogprob | None) -> None:
        if piece.starts:
            for lane in self._lanes():
                self._add(lane, lane.break_text())
        lane_now = self._answer if piece.phase == ANSWER else self._reasoning
        if lane_now is not None and self._reason is None:
            again = piece.starts and lane_now is self._reasoning and self._said_last == "reasoning"
            self._add(lane_now, lane_now.feed(_GAP + piece.raw if again else piece.raw, logprob))

    def _add(self, lane: Lane, deltas: list[TextDelta]) -> None:
        reason = lane.finish_reason
        if reason == "content_filter" or self._reason is None:
            self._reason = reason
        for delta in deltas:
            self._said_last = delta.kind
            append(self._deltas, delta)

    def _collect(self) -> list[TextDelta]:
        deltas, self._deltas = self._deltas, []
        if self._gate is None:
            return deltas
        shown = self._gate.push(deltas)
        return shown + self._gate.close() if self._reason is not None else shown


def _forbids(policy: SafetyPolicy | None) -> Callable[[str], bool] | None:
    """Return a test for texts that the policy would redact or block in an answer."""
    if policy is None:
        return None
    return lambda text: any(hit.action != "flag" for hit in check(policy, text, "answer")[1])
