"""A token log gives back what was put in, however it is cut."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from gateway.edge.received import Received, checkpoint
from model_svc.token_log import TokenLog
from wire.messages import ANSWER, MARKUP, REASONING, PhaseMark, TokenChunk, TokenLogprob, pack_ids, unpack_ids

TOKEN_BYTES = 3
PHASES = st.sampled_from([ANSWER, REASONING, MARKUP])


@st.composite
def chunks(draw: st.DrawFn) -> list[TokenChunk]:
    """Chunks of one choice, as an engine sends them."""
    index = draw(st.integers(0, 3))
    made = []
    for number in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 4))
        places = st.tuples(st.integers(0, length - 1), st.integers(0, TOKEN_BYTES - 1))
        marks = sorted(set(draw(st.lists(places, max_size=3))) - {(0, 0)})
        made.append(
            TokenChunk(
                request_id="r",
                attempt=2,
                index=index,
                choice=1,
                token_ids=tuple(range(index, index + length)),
                phase=draw(PHASES),
                marks=tuple(PhaseMark(at, offset, draw(PHASES)) for at, offset in marks),
                logprobs=tuple(TokenLogprob(float(at)) for at in range(index, index + length)),
                num_cached_tokens=5 if number == 0 else 0,
                timings_ms={"queue": 1.0} if number == 0 else {},
            )
        )
        index += length
    return made


def bytes_of(made: list[TokenChunk]) -> dict[int, list[int]]:
    """The phase of every byte of every token, by index."""
    phases: dict[int, list[int]] = {}
    for chunk in made:
        phase = chunk.phase
        for at, _ in enumerate(chunk.token_ids):
            row = []
            for offset in range(TOKEN_BYTES):
                phase = next((m.phase for m in chunk.marks if (m.index, m.offset) == (at, offset)), phase)
                row.append(phase)
            phases[chunk.index + at] = row
    return phases


@given(chunks(), st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 20))
def test_tokens_and_phases_survive_joining_and_rewinding(made: list[TokenChunk], cuts: list[bool], again: int) -> None:
    log = TokenLog()
    sent = []
    for chunk, cut in zip(made, cuts, strict=False):
        log.add(chunk)
        if cut:
            sent.append(log.take())
    if log.has_unsent:
        sent.append(log.take())
    assert not log.has_unsent
    assert [token for chunk in sent for token in chunk.token_ids] == [t for chunk in made for t in chunk.token_ids]
    assert bytes_of(sent) == bytes_of(made)
    assert all(lp.logprob == token for c in sent for token, lp in zip(c.token_ids, c.logprobs, strict=True))
    assert sent[0].num_cached_tokens == 5
    assert (sent[0].timings_ms, sent[0].attempt, sent[0].choice) == ({"queue": 1.0}, 2, 1)

    log.rewind(again)
    first, last = made[0].index, made[-1].index + len(made[-1].token_ids)
    begin = min(max(again, first), last)
    if begin < last:
        repeated = log.take()
        assert repeated.token_ids == tuple(range(begin, last))
        assert bytes_of([repeated]) == {at: row for at, row in bytes_of(made).items() if at >= begin}


def test_a_finish_without_tokens_is_sent_once() -> None:
    log = TokenLog()
    log.add(TokenChunk(request_id="r", attempt=0, index=0, token_ids=(1,)))
    log.take()
    log.add(TokenChunk(request_id="r", attempt=0, index=1, finish_reason="stop", timings_ms={"decode": 3.0}))
    assert log.has_unsent and log.finished
    last = log.take()
    assert (last.index, last.token_ids, last.finish_reason, last.timings_ms) == (1, (), "stop", {"decode": 3.0})
    assert not log.has_unsent
    log.rewind(0)
    whole = log.take()
    assert (whole.token_ids, whole.finish_reason) == ((1,), "stop")


def test_what_could_not_be_sent_does_not_overtake_a_rewind() -> None:
    log = TokenLog()
    log.add(TokenChunk(request_id="r", attempt=0, index=0, token_ids=(1, 2)))
    log.take()
    log.add(TokenChunk(request_id="r", attempt=0, index=2, token_ids=(3,)))
    failed = log.take()
    log.rewind(0)  # a client came back while the send was under way
    log.take_back(failed.index)
    assert log.take().token_ids == (1, 2, 3)


@given(chunks(), st.integers(1, 6), st.integers(0, 20))
def test_what_an_edge_has_is_taken_up_in_another_replica_with_its_phases(
    made: list[TokenChunk], kept: int, again: int
) -> None:
    first = made[0].index
    made = [msgspec.structs.replace(chunk, index=chunk.index - first) for chunk in made]
    before, after = made[:kept], made[kept:]
    received = Received()
    for chunk in before:
        received.add(chunk)
    shown = checkpoint(2, {1: received})
    log = TokenLog()
    log.begin_with(unpack_ids(shown.token_ids[1]), shown.marks.get(1, ()))
    assert not log.has_unsent
    for chunk in after:
        log.add(chunk)
    sent: list[TokenChunk] = [log.take()] if log.has_unsent else []
    assert bytes_of(sent) == bytes_of(after)
    if after:
        log.rewind(again)
        whole = bytes_of([log.take()])
        assert whole == {index: phases for index, phases in bytes_of(made).items() if index >= again}
        assert log.snapshot()[0] == pack_ids(token for chunk in made for token in chunk.token_ids)
