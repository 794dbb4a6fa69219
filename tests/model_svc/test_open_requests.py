"""What a request's chunks carry besides tokens, for the bill."""

from __future__ import annotations

from model_svc.open_requests import OpenRequest
from wire.messages import Job, PromptNote, TokenChunk

NOTE = PromptNote(messages_dropped=2, reasoning_budget=64)


def chunk(index: int, *, timings: bool = False, finish: str | None = None) -> TokenChunk:
    times = {"prefill": 1.0} if timings else {}
    return TokenChunk(request_id="r", attempt=0, index=index, token_ids=(7,), timings_ms=times, finish_reason=finish)


def test_first_and_last_chunk_carry_the_note_of_the_prompt_and_none_between() -> None:
    request = OpenRequest(Job(request_id="r", partition=0, model="m", edge="e", deadline=1.0))
    request.prompt_note = NOTE
    sent = []
    for one in (chunk(0, timings=True), chunk(1), chunk(2, timings=True, finish="stop")):
        request.add(one)
        sent.append(request.logs[0].take())
    assert [one.prompt_note for one in sent] == [NOTE, None, NOTE]
    log = request.logs[0]
    log.rewind(0)
    assert log.take().prompt_note == NOTE


def test_what_a_prefill_replica_used_is_told_with_the_first_choices_energy() -> None:
    request = OpenRequest(Job(request_id="r", partition=0, model="m", edge="e", deadline=1.0))
    request.num_choices, request.prefill_j = 2, 5.0
    assert request.energy_j is None
    for choice, joules in ((0, 1.0), (1, 0.5), (0, 2.0)):
        one = TokenChunk(request_id="r", attempt=0, index=0, choice=choice, token_ids=(7,), energy_j=joules)
        request.add(one)
    assert request.energy_j == 7.5
    assert [request.logs[choice].take().energy_j for choice in (0, 1)] == [7.0, 0.5]
    request.add(TokenChunk(request_id="r", attempt=0, index=2, token_ids=(7,)))  # its meter has failed
    assert request.energy_j == 0.5
