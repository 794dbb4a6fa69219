"""The in-flight table: repeats, gaps, old attempts, full buffers."""

from __future__ import annotations

import time

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.edge import inflight
from gateway.edge.chunks import MOST_TOKENS, without_first
from gateway.edge.flight import Flight
from gateway.edge.inflight import InFlight
from tests.gateway.edge.asks import streamed, whole
from tests.ring import Ring
from tests.script import say
from wire.errors import DeadlineExceededError, InternalError, OverloadedError
from wire.messages import ANSWER, MARKUP, REASONING, PhaseMark, TokenBatch, TokenChunk, TokenLogprob, unpack_ids

pytestmark = pytest.mark.anyio


def flight(*, max_pending_tokens: int = 100, deadline_s: float = 100.0) -> Flight:
    return Flight("r", deadline=deadline_s, max_pending_tokens=max_pending_tokens)


def chunk(index: int, *token_ids: int, attempt: int = 0, finish: str | None = None, choice: int = 0) -> TokenChunk:
    return TokenChunk(
        request_id="r", attempt=attempt, index=index, token_ids=token_ids, finish_reason=finish, choice=choice
    )


async def taken(opened: Flight) -> list[int]:
    return [token for piece in await opened.take() for token in piece.token_ids]


async def test_repeats_are_dropped_and_overlaps_cut() -> None:
    opened = flight()
    for piece in (chunk(0, 1, 2), chunk(0, 1, 2), chunk(1, 2, 3), chunk(0, 1), chunk(2, 3, 4, finish="stop")):
        assert opened.offer(piece, "replica") is None
    assert await taken(opened) == [1, 2, 3, 4]


async def test_what_came_is_told_to_whoever_goes_on_however_it_came() -> None:
    table = InFlight(max_pending_tokens=100)
    assert table.checkpoint("r") is None
    with table.open("r", deadline=time.time() + 100) as opened:
        thought = msgspec.structs.replace(chunk(0, 1, 2), phase=REASONING)
        for piece in (thought, thought, chunk(1, 2, 3), chunk(5, 6), chunk(0, 9, choice=1), chunk(2, 3, 4, attempt=1)):
            opened.offer(piece, "replica")
        await opened.take()
        opened.offer(chunk(4, 5, attempt=1), "replica")
        opened.end(1)
        found = table.checkpoint("r")
    assert found is not None
    assert {choice: unpack_ids(ids) for choice, ids in found.token_ids.items()} == {0: [1, 2, 3, 4, 5], 1: [9]}
    assert found.ended == (1,)
    assert (found.attempt, found.marks) == (1, {0: (PhaseMark(0, 0, REASONING), PhaseMark(2, 0, ANSWER))})


async def test_a_gap_is_asked_for_once_from_where_it_begins() -> None:
    opened = flight()
    opened.offer(chunk(0, 1), "replica")
    gap = opened.offer(chunk(3, 4), "replica")
    assert gap is not None
    assert (gap.from_index, gap.choice, gap.replica_id) == (1, 0, "replica")
    assert opened.offer(chunk(4, 5), "replica") is None, "the answer to the first question is under way"
    opened.offer(chunk(1, 2, 3, 4, 5), "replica")
    assert await taken(opened) == [1, 2, 3, 4, 5]


async def test_tokens_of_an_old_attempt_are_fenced_off() -> None:
    opened = flight()
    opened.offer(chunk(0, 1, attempt=0), "old")
    opened.offer(chunk(1, 2, attempt=1), "new")
    opened.offer(chunk(2, 99, attempt=0), "old")
    opened.offer(chunk(2, 3, attempt=1, finish="stop"), "new")
    assert await taken(opened) == [1, 2, 3]
    assert opened.replica_id == "new"


async def test_a_failure_of_an_old_attempt_does_not_end_the_new_one() -> None:
    opened = flight()
    opened.offer(chunk(0, 1, attempt=2), "new")
    opened.fail(InternalError("late"), attempt=1)
    opened.offer(chunk(1, 2, attempt=2), "new")
    assert await taken(opened) == [1, 2]
    opened.fail(InternalError("now"), attempt=2)
    with pytest.raises(InternalError, match="now"):
        await opened.take()


async def test_tokens_before_a_failure_are_still_taken() -> None:
    opened = flight()
    opened.offer(chunk(0, 1), "replica")
    opened.fail(InternalError("broken"))
    assert await taken(opened) == [1]
    with pytest.raises(InternalError):
        await opened.take()


async def test_the_deadline_ends_the_wait() -> None:
    table = InFlight(100)
    with (
        table.open("late", deadline=time.time() + 0.01) as late,
        table.open("other", deadline=time.time() + 60) as other,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(table.watch_deadlines)
            with anyio.fail_after(60), pytest.raises(DeadlineExceededError):
                await late.take()
            tasks.cancel_scope.cancel()
        assert not other.is_ready


@pytest.mark.parametrize("set_by_s", [3600.0, -3600.0])
async def test_a_clock_that_is_set_moves_no_deadline(monkeypatch: pytest.MonkeyPatch, set_by_s: float) -> None:
    clock = [1e9]
    monkeypatch.setattr(inflight, "time", lambda: clock[0])
    table = InFlight(100)
    with table.open("late", deadline=1e9 + 0.01) as late, table.open("other", deadline=1e9 + 600) as other:
        clock[0] += set_by_s
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(table.watch_deadlines)
            with anyio.fail_after(60), pytest.raises(DeadlineExceededError):
                await late.take()
            tasks.cancel_scope.cancel()
        assert not other.is_ready


async def test_the_deadline_of_a_request_that_comes_later_may_be_the_first() -> None:
    table = InFlight(100)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(table.watch_deadlines)
        await anyio.wait_all_tasks_blocked()
        with (
            table.open("late", deadline=time.time() + 0.01) as late,
            anyio.fail_after(60),
            pytest.raises(DeadlineExceededError),
        ):
            await late.take()
        tasks.cancel_scope.cancel()


async def test_a_full_buffer_ends_the_request_after_what_it_holds() -> None:
    opened = flight(max_pending_tokens=3)
    for index in range(10):
        opened.offer(chunk(index, index), "replica")
    assert opened.num_pending_tokens <= 4
    assert await taken(opened) == [0, 1, 2, 3]
    with pytest.raises(OverloadedError):
        await opened.take()


async def test_what_waits_for_a_slow_client_is_joined_and_complete() -> None:
    opened = flight(max_pending_tokens=10_000)
    for index in range(2_000):
        opened.offer(chunk(index, index), "replica")
        opened.offer(chunk(index, -index, choice=1), "replica")
    assert len(opened.peek()) < 500
    pieces = await opened.take()
    assert [token for piece in pieces if piece.choice == 0 for token in piece.token_ids] == list(range(2_000))
    assert [token for piece in pieces if piece.choice == 1 for token in piece.token_ids] == [-n for n in range(2_000)]
    assert max(len(piece.token_ids) for piece in pieces) <= MOST_TOKENS


async def test_a_gap_is_asked_for_with_the_attempt_it_belongs_to() -> None:
    opened = flight()
    opened.offer(chunk(0, 1, attempt=2), "replica")
    gap = opened.offer(chunk(5, 6, attempt=2), "replica")
    assert gap is not None
    assert (gap.from_index, gap.attempt) == (1, 2)


async def test_choices_are_counted_apart() -> None:
    opened = flight()
    assert opened.offer(chunk(0, 1, choice=1), "replica") is None
    assert opened.offer(chunk(0, 2, choice=0), "replica") is None
    assert [piece.choice for piece in await opened.take()] == [1, 0]


async def test_nothing_is_taken_after_the_finish_reason() -> None:
    opened = flight()
    opened.offer(chunk(0, 1, finish="length"), "replica")
    opened.offer(chunk(1, 2), "replica")
    opened.offer(chunk(0, 1, finish="length"), "replica")
    assert await taken(opened) == [1]


def test_late_tokens_for_an_unknown_request_are_dropped() -> None:
    table = InFlight(max_pending_tokens=10)
    assert table.deliver(TokenBatch(replica_id="replica", step=1, chunks=(chunk(0, 1),))) == []
    assert len(table) == 0


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_the_rest_of_a_cut_chunk_keeps_its_phases_and_log_probabilities(count: int) -> None:
    marks = (PhaseMark(0, 2, MARKUP), PhaseMark(1, 0, REASONING), PhaseMark(2, 3, ANSWER), PhaseMark(3, 0, REASONING))
    logprobs = tuple(TokenLogprob(-float(at)) for at in range(4))
    whole_chunk = msgspec.structs.replace(chunk(7, 10, 11, 12, 13), phase=ANSWER, marks=marks, logprobs=logprobs)
    rest = without_first(whole_chunk, count)
    assert rest.index == 7 + count
    assert rest.token_ids == whole_chunk.token_ids[count:]
    assert rest.logprobs == logprobs[count:]
    assert [phase_at(rest, at, 9) for at in range(4 - count)] == [
        phase_at(whole_chunk, at, 9) for at in range(count, 4)
    ]
    assert [phase_at(rest, at, 0) for at in range(4 - count)] == [
        phase_at(whole_chunk, at, 0) for at in range(count, 4)
    ]


def phase_at(piece: TokenChunk, index: int, offset: int) -> int:
    """The plain meaning of phase and marks."""
    phase = piece.phase
    for mark in piece.marks:
        if (mark.index, mark.offset) <= (index, offset):
            phase = mark.phase
    return phase


async def test_lost_repeated_and_stale_tokens_do_not_show_at_the_client(ring: Ring) -> None:
    lost = {3}
    texts = ("one ", "two ", "three ", "EN", "joy", "!")

    def drop(piece: TokenChunk) -> bool:
        if piece.index in lost:
            lost.remove(piece.index)
            return True
        return False

    ring.replica.drop = drop
    ring.replica.transform = lambda piece: [
        msgspec.structs.replace(piece, attempt=-1, token_ids=(65,)),
        piece,
        piece,
    ]
    ring.replica.play(*say(*texts))
    assert (await streamed(ring)).text() == "".join(texts)
    assert await ring.metric("headrace_resubscribes_total") == 1
    assert (await whole(ring))["choices"][0]["message"]["content"] == "".join(texts)


SPAN = st.tuples(st.integers(0, 11), st.integers(1, 12))


@settings(deadline=None)
@given(st.lists(SPAN, max_size=20))
def test_any_order_of_repeats_overlaps_and_losses_gives_every_token_once(spans: list[tuple[int, int]]) -> None:
    opened = flight(max_pending_tokens=1000)
    for start, length in [*spans, (0, 12)]:
        stop = min(12, start + length)
        before = tokens_in(opened)
        gap = opened.offer(chunk(start, *range(start, stop)), "replica")
        if gap is not None:
            assert gap.from_index == len(before) < start
            opened.offer(chunk(gap.from_index, *range(gap.from_index, stop)), "replica")
        assert tokens_in(opened) == list(range(max(len(before), stop)))


def tokens_in(opened: Flight) -> list[int]:
    return [token for piece in opened.peek() for token in piece.token_ids]
