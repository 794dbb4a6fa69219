"""What a choice has said so far, so that it can be sent in one piece if the bus was slow, and again when asked."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from wire.messages import ANSWER, PhaseMark, TokenChunk, TokenLogprob, pack_ids


class TokenLog:
    """All tokens of one choice; `take` returns what was not sent yet as one chunk.

    Those of earlier attempts come first, if they are known (`begin_with`): who asks for the answer again gets it whole.
    """

    __slots__ = (
        "_ended_by", "_first_index", "_logprobs", "_marks", "_num_before", "_phase", "_token_ids", "first", "last",
        "next_index", "sent_all",
    )  # fmt: skip

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._marks: list[tuple[int, int, int]] = []  # (token number, offset, phase), the phase's first byte
        self._phase = ANSWER
        self._first_index = 0
        self._num_before = 0
        self._ended_by: str | None = None
        self.first: TokenChunk | None = None
        self.last: TokenChunk | None = None
        self.next_index = 0  # the first one that was not sent
        self.sent_all = False  # the finish reason too

    @property
    def finished(self) -> bool:
        """Whether the choice has ended."""
        return self.last is not None and self.last.finish_reason is not None

    @property
    def has_unsent(self) -> bool:
        """Whether `take` would return anything."""
        if self.next_index < self._first_index + len(self._token_ids):
            return self.first is not None
        return self.finished and not self.sent_all

    @property
    def num_tokens(self) -> int:
        """How many tokens there are, those of earlier attempts that are known included."""
        return len(self._token_ids)

    @property
    def _end(self) -> int:
        return self._first_index + len(self._token_ids)

    def begin_with(self, token_ids: list[int], marks: tuple[PhaseMark, ...]) -> None:
        """Take the tokens that an earlier attempt generated, from the first one on; their edge has them."""
        self._token_ids = token_ids
        self._num_before = self.next_index = len(token_ids)
        self._marks = [(mark.index, mark.offset, mark.phase) for mark in marks]
        self._phase = marks[-1].phase if marks else ANSWER

    def snapshot(self) -> tuple[bytes, tuple[PhaseMark, ...]]:
        """Return the ids, packed, and where their phase changes: what `begin_with` takes in another replica."""
        return pack_ids(self._token_ids), tuple(PhaseMark(*mark) for mark in self._marks)

    def add(self, chunk: TokenChunk) -> None:
        """Append what the engine produced."""
        if self.first is None:
            self.first = chunk
            self._first_index = chunk.index - self._num_before
            self.next_index = max(self.next_index, self._first_index)
        base = len(self._token_ids)
        if chunk.token_ids and chunk.phase != self._phase:
            self._marks.append((base, 0, chunk.phase))
            self._phase = chunk.phase
        for mark in chunk.marks:
            self._marks.append((base + mark.index, mark.offset, mark.phase))
            self._phase = mark.phase
        self._token_ids += chunk.token_ids
        self._logprobs += chunk.logprobs
        self._ended_by = chunk.reasoning_ended_by or self._ended_by
        self.last = chunk

    def rewind(self, index: int) -> None:
        """Send again from `index` on, or from the first token that is here."""
        self.next_index = min(max(index, self._first_index), self._end)
        self.sent_all = False

    def take_back(self, index: int) -> None:
        """Count a chunk that begins at `index` as not sent, unless somebody asked for even earlier tokens meanwhile."""
        self.next_index = min(self.next_index, index)
        self.sent_all = False

    def take(self) -> TokenChunk:
        """Return all that was not sent as one chunk, and count it as sent."""
        first, last = self.first, self.last
        assert first is not None and last is not None, "nothing was added"
        if last is not first and last.index == self.next_index and last.token_ids and not self._marks:
            # The common case: all before it was sent.
            self.next_index = self._first_index + len(self._token_ids)
            self.sent_all = last.finish_reason is not None
            return last
        begin = self.next_index - self._first_index
        at_start = begin in (0, self._num_before)
        phase, marks = self._phases(begin)
        self.next_index = self._end
        self.sent_all = self.finished
        return TokenChunk(
            request_id=first.request_id,
            attempt=first.attempt,
            index=self._first_index + begin,
            choice=first.choice,
            token_ids=tuple(self._token_ids[begin:]),
            phase=phase,
            marks=marks,
            logprobs=tuple(self._logprobs[begin - self._num_before :]) if begin >= self._num_before else (),
            finish_reason=last.finish_reason,
            stop_token=last.stop_token,
            num_cached_tokens=first.num_cached_tokens if at_start else 0,
            num_prompt_tokens=first.num_prompt_tokens if at_start else 0,
            num_fetched_tokens=first.num_fetched_tokens if at_start else 0,
            prompt_logprobs=first.prompt_logprobs if begin == 0 else (),
            num_reasoning_tokens=last.num_reasoning_tokens,
            reasoning_ended_by=self._ended_by if marks or self.finished else None,
            num_accepted_drafts=last.num_accepted_drafts,
            num_rejected_drafts=last.num_rejected_drafts,
            energy_j=last.energy_j,
            stuck=last.stuck,
            timings_ms={**(first.timings_ms if at_start else {}), **last.timings_ms},
            prompt_note=first.prompt_note if at_start else last.prompt_note,
        )

    def _phases(self, begin: int) -> tuple[int, tuple[PhaseMark, ...]]:
        """Return the phase where token number `begin` starts and the marks behind that point."""
        if not self._marks:
            return ANSWER, ()
        at = bisect_right(self._marks, (begin, 0), key=itemgetter(0, 1))
        phase = self._marks[at - 1][2] if at else ANSWER
        return phase, tuple(PhaseMark(number - begin, offset, to) for number, offset, to in self._marks[at:])
