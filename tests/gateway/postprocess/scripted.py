"""A scripted stream of tokens: bytes with their phase, cut into tokens and chunks wherever a test likes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.postprocess.logprobs import LogprobEntry
from gateway.postprocess.pipeline import Pipeline
from wire.messages import ANSWER, PhaseMark, TokenChunk, TokenLogprob

Run = tuple[int, bytes]  # phase, bytes


class Pieces:
    """A vocabulary that grows: each distinct piece of bytes is a token."""

    def __init__(self, *, strips_first_space: bool = False) -> None:
        self.strips_first_space = strips_first_space
        self._pieces: list[bytes] = []

    def token(self, piece: bytes) -> int:
        """Return the id of a piece."""
        if piece not in self._pieces:
            self._pieces.append(piece)
        return self._pieces.index(piece)

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes."""
        return self._pieces[token_id]


class Outcome:
    """What a client has at the end."""

    def __init__(self) -> None:
        self.answer = self.reasoning = ""
        self.entries: list[LogprobEntry] = []
        self.after: list[str] = []  # the answer after each chunk
        self.finish_reason: str | None = None
        self.num_tokens = self.num_reasoning_tokens = 0
        self.token_ids: list[int] = []


def cut(runs: Sequence[Run], cuts: Sequence[int]) -> list[list[Run]]:
    """Cut runs of bytes into tokens at byte positions; a token may hold parts of several runs."""
    tokens: list[list[Run]] = [[]]
    at = 0
    for phase, raw in runs:
        for byte in raw:
            if at in cuts and tokens[-1]:
                tokens.append([])
            if tokens[-1] and tokens[-1][-1][0] == phase:
                tokens[-1][-1] = (phase, tokens[-1][-1][1] + bytes([byte]))
            else:
                tokens[-1].append((phase, bytes([byte])))
            at += 1
    return [token for token in tokens if token]


def chunk(vocabulary: Pieces, tokens: Sequence[list[Run]], index: int, **fields: Any) -> TokenChunk:
    """Return a chunk of tokens as the engine marks it."""
    phase = now = tokens[0][0][0] if tokens else ANSWER
    marks: list[PhaseMark] = []
    ids = []
    for at, token in enumerate(tokens):
        offset = 0
        for run_phase, raw in token:
            if run_phase != now:
                marks.append(PhaseMark(at, offset, run_phase))
                now = run_phase
            offset += len(raw)
        ids.append(vocabulary.token(b"".join(raw for _, raw in token)))
    logprobs = tuple(TokenLogprob(-0.5, (token_id,), (-0.5,)) for token_id in ids)
    return TokenChunk(
        request_id="r",
        attempt=0,
        index=index,
        token_ids=tuple(ids),
        phase=phase,
        marks=tuple(marks),
        logprobs=logprobs,
        **fields,
    )


def run(
    tokens: Sequence[list[Run]],
    *,
    per_chunk: int = 1,
    finish: str = "length",
    vocabulary: Pieces | None = None,
    **options: Any,
) -> Outcome:
    """Feed tokens to a pipeline as the edge does; returns what the client has."""
    vocabulary = vocabulary or Pieces()
    pipeline = Pipeline(vocabulary, **options)
    outcome = Outcome()
    for at in range(0, len(tokens), per_chunk):
        _take(outcome, pipeline.feed(chunk(vocabulary, tokens[at : at + per_chunk], at)))
        outcome.after.append(outcome.answer)
        if pipeline.finish_reason is not None:
            break
    else:
        _take(outcome, pipeline.close(finish))
    outcome.finish_reason = pipeline.finish_reason
    outcome.num_tokens, outcome.token_ids = pipeline.num_tokens, pipeline.token_ids
    outcome.num_reasoning_tokens = pipeline.num_reasoning_tokens
    return outcome


def answer(*pieces: bytes) -> list[list[Run]]:
    """Return tokens of answer text."""
    return [[(ANSWER, piece)] for piece in pieces]


def _take(outcome: Outcome, deltas: Sequence[Any]) -> None:
    for delta in deltas:
        assert delta.text or delta.logprobs, "an empty delta is no news"
        if delta.kind == "answer":
            outcome.answer += delta.text
        else:
            outcome.reasoning += delta.text
        outcome.entries += delta.logprobs
