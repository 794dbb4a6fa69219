"""Chunks of tokens, cut and joined.

What waits for a slow client is joined: a chunk of one token takes ten times the memory of its token. Joined chunks stay
small enough that reading one never holds up other streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from wire.messages import PhaseMark, TokenChunk

MOST_TOKENS = 32


def joined(chunks: Iterable[TokenChunk]) -> list[TokenChunk]:
    """Return the same tokens in fewer chunks, those of each choice in their order."""
    done: list[TokenChunk] = []
    open_: dict[int, list[TokenChunk]] = {}
    for chunk in chunks:
        parts = open_.setdefault(chunk.choice, [])
        if parts and not _follows(parts, chunk):
            done.append(_one(parts))
            parts.clear()
        parts.append(chunk)
    return done + [_one(parts) for parts in open_.values() if parts]


def only_first(chunk: TokenChunk, count: int) -> TokenChunk:
    """Return the first `count` tokens of a chunk that has more; how it ends belongs to the rest."""
    return msgspec.structs.replace(
        chunk,
        token_ids=chunk.token_ids[:count],
        logprobs=chunk.logprobs[:count],
        marks=tuple(mark for mark in chunk.marks if mark.index < count),
        finish_reason=None,
        stop_token=False,
    )


def without_first(chunk: TokenChunk, count: int) -> TokenChunk:
    """Return a chunk without its first `count` tokens, with the phase that holds where the rest begins."""
    if count == 0:
        return chunk
    phase = chunk.phase
    marks = []
    for mark in chunk.marks:
        if (mark.index, mark.offset) <= (count, 0):
            phase = mark.phase
        else:
            marks.append(PhaseMark(mark.index - count, mark.offset, mark.phase))
    return msgspec.structs.replace(
        chunk,
        index=chunk.index + count,
        token_ids=chunk.token_ids[count:],
        logprobs=chunk.logprobs[count:],
        phase=phase,
        marks=tuple(marks),
    )


def _follows(parts: Sequence[TokenChunk], chunk: TokenChunk) -> bool:
    num_tokens = sum(len(part.token_ids) for part in parts)
    return parts[-1].attempt == chunk.attempt and num_tokens + len(chunk.token_ids) <= MOST_TOKENS


def _one(parts: Sequence[TokenChunk]) -> TokenChunk:
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    phase, marks = _phases(parts)
    return msgspec.structs.replace(
        last,
        index=first.index,
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        phase=phase,
        marks=marks,
        logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
        num_cached_tokens=max(part.num_cached_tokens for part in parts),
        num_fetched_tokens=max(part.num_fetched_tokens for part in parts),
        num_prompt_tokens=max(part.num_prompt_tokens for part in parts),
        num_reasoning_tokens=max(part.num_reasoning_tokens for part in parts),
        reasoning_ended_by=next((p.reasoning_ended_by for p in reversed(parts) if p.reasoning_ended_by), None),
        timings_ms={name: value for part in parts for name, value in part.timings_ms.items()},
        prompt_logprobs=next((part.prompt_logprobs for part in parts if part.prompt_logprobs), ()),
        closed_at=max(part.closed_at for part in parts),
        prompt_note=next((part.prompt_note for part in parts if part.prompt_note is not None), None),
    )


def _phases(parts: Sequence[TokenChunk]) -> tuple[int, tuple[PhaseMark, ...]]:
    """Return the phase of the first byte, and where it changes; a chunk without tokens has no say."""
    spoken = [part for part in parts if part.token_ids]
    first = phase = spoken[0].phase if spoken else parts[0].phase
    marks: list[PhaseMark] = []
    base = 0
    for part in spoken:
        if part.phase != phase:
            marks.append(PhaseMark(base, 0, part.phase))
        marks += [PhaseMark(base + mark.index, mark.offset, mark.phase) for mark in part.marks]
        phase = part.marks[-1].phase if part.marks else part.phase
        base += len(part.token_ids)
    return first, tuple(marks)
