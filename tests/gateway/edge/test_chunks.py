"""Joining chunks changes nothing but their number: tokens, phases of bytes, log probabilities and endings stay."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.chunks import MOST_TOKENS, joined
from wire.messages import PhaseMark, TokenChunk, TokenLogprob

PART = st.tuples(
    st.integers(0, 1),  # choice
    st.integers(0, 5),  # tokens
    st.integers(0, 2),  # phase
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2)), max_size=2),
)


def chunks(parts: list[tuple[int, int, int, list[tuple[int, int, int]]]]) -> list[TokenChunk]:
    made: list[TokenChunk] = []
    at = {0: 0, 1: 0}
    for choice, count, phase, marks in parts:
        ids = tuple(range(at[choice], at[choice] + count))
        kept = tuple(PhaseMark(*mark) for mark in sorted(marks) if mark[0] < count)
        made.append(
            TokenChunk(
                request_id="r",
                attempt=0,
                index=at[choice],
                choice=choice,
                token_ids=ids,
                phase=phase,
                marks=kept,
                logprobs=tuple(TokenLogprob(-float(token)) for token in ids),
                num_reasoning_tokens=at[choice],
            )
        )
        at[choice] += count
    return made


def meaning(found: list[TokenChunk], choice: int) -> tuple[Any, ...]:
    """Ids, log probabilities, and each change of phase by absolute token and byte."""
    ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    changes: list[tuple[int, int, int]] = []
    for chunk in (chunk for chunk in found if chunk.choice == choice and chunk.token_ids):
        assert chunk.index == len(ids)
        steps = [(0, 0, chunk.phase), *((mark.index, mark.offset, mark.phase) for mark in chunk.marks)]
        for index, offset, phase in steps:
            if not changes or changes[-1][2] != phase:
                changes.append((len(ids) + index, offset, phase))
        ids += chunk.token_ids
        logprobs += chunk.logprobs
    reasoning = max((chunk.num_reasoning_tokens for chunk in found if chunk.choice == choice), default=0)
    return ids, logprobs, changes, reasoning


@given(st.lists(PART, max_size=40))
def test_joined_chunks_mean_the_same(parts: list[Any]) -> None:
    before = chunks(parts)
    after = joined(before)
    for choice in (0, 1):
        assert meaning(after, choice) == meaning(before, choice)
    assert all(len(chunk.token_ids) <= MOST_TOKENS for chunk in after)
    assert len(after) <= 2 + 2 * sum(len(chunk.token_ids) for chunk in before) // (MOST_TOKENS - 4)


def test_how_an_answer_ends_and_what_its_first_chunk_tells_are_kept() -> None:
    first = TokenChunk(
        request_id="r", attempt=0, index=0, token_ids=(1,), num_cached_tokens=4, timings_ms={"queue": 1.0}
    )
    last = TokenChunk(
        request_id="r", attempt=0, index=1, token_ids=(2,), finish_reason="stop", stop_token=True, timings_ms={"d": 2.0}
    )
    [one] = joined([first, last])
    assert (one.index, one.token_ids, one.finish_reason, one.stop_token) == (0, (1, 2), "stop", True)
    assert (one.num_cached_tokens, one.timings_ms) == (4, {"queue": 1.0, "d": 2.0})


def test_attempts_are_not_mixed() -> None:
    parts = [TokenChunk(request_id="r", attempt=n, index=n, token_ids=(n,)) for n in (0, 1)]
    assert joined(parts) == parts
