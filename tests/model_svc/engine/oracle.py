"""What a request must answer, worked out one token at a time with no schedule, no cache and no cleverness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from model_svc.engine.request import EngineRequest, choice_seed
from tests.model_svc.scripted_runner import LANDING_STRENGTH, Reply
from wire.messages import ANSWER, MARKUP, REASONING, ReasoningPlan, TokenChunk, unpack_ids

UNDECIDED = -1


@dataclass
class Answer:
    """One choice: ids, why it ended, and for each id the phase of each of its bytes."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    phases: list[list[int]] = field(default_factory=list)
    num_reasoning_tokens: int = 0
    ended_by: str | None = None


class _Labels:
    """The phase of every byte, found by looking at the bytes one by one."""

    def __init__(self, plan: ReasoningPlan, token_bytes: Callable[[int], bytes]) -> None:
        self.plan, self.token_bytes = plan, token_bytes
        self.phase = REASONING if plan.starts_open else ANSWER
        self.ended_by: str | None = None
        self.text = b""
        self.labels: list[int] = []
        self.tokens: list[tuple[int, int, list[int]]] = []  # begin, end, phases if they do not come from the labels
        self.since = 0

    def feed(self, token_id: int) -> None:
        begin = len(self.text)
        for byte in self.token_bytes(token_id):
            self.text += bytes([byte])
            self.labels.append(UNDECIDED)
            tag = self.plan.close_tag if self.phase == REASONING else self.plan.open_tag
            if self.text[self.since :].endswith(tag):
                self.settle(len(self.text) - len(tag))
                self.labels[-len(tag) :] = [MARKUP] * len(tag)
                self.since = len(self.text)
                self.ended_by = "model" if self.phase == REASONING else self.ended_by
                self.phase = ANSWER if self.phase == REASONING else REASONING
            else:
                held = next(
                    n for n in range(len(tag), -1, -1) if tag.startswith(self.text[self.since :][-n:] if n else b"")
                )
                self.settle(len(self.text) - min(held, len(self.text) - self.since))
        self.tokens.append((begin, len(self.text), []))

    def settle(self, limit: int) -> None:
        for at in range(self.since, limit):
            self.labels[at] = self.phase

    def force(self, token_ids: Sequence[int], ended_by: str) -> None:
        self.settle(len(self.text))
        for token_id in token_ids:
            self.aside(token_id, MARKUP)
        self.phase, self.ended_by, self.since = ANSWER, ended_by, len(self.text)

    def aside(self, token_id: int, phase: int) -> None:
        """A token whose bytes are not looked at."""
        self.tokens.append((len(self.text), len(self.text), [phase] * max(1, len(self.token_bytes(token_id)))))

    def num_thinking(self, *, undecided_too: bool) -> int:
        wanted = {REASONING, UNDECIDED} if undecided_too else {REASONING}
        return sum(any(label in wanted for label in self.labels[begin:end]) for begin, end, _ in self.tokens)

    def phases(self) -> list[list[int]]:
        return [aside or self.labels[begin:end] for begin, end, aside in self.tokens]


def _progress(plan: ReasoningPlan, labels: _Labels) -> float:
    """How far into the last stretch of the budget the next draw is."""
    assert plan.budget is not None
    used = labels.num_thinking(undecided_too=True)
    return (used - (plan.budget - plan.landing)) / plan.landing


def _may_land(plan: ReasoningPlan, labels: _Labels, num_output: int) -> bool:
    """Whether a draw here may be the soft landing: thinking, in the last stretch, a sentence just ended."""
    if not plan.landing or labels.phase != REASONING or _progress(plan, labels) <= 0 or not num_output:
        return False
    begin, end, aside = labels.tokens[-1]
    data = labels.text[begin:end]
    return not aside and not set(data) & set(b">]") and data.rstrip(b" \"')*_\n").endswith((b".", b"!", b"?"))


def answer(
    request: EngineRequest, choice: int, reply: Reply, *, eos_ids: Sequence[int], token_bytes: Callable[[int], bytes],
    max_total_tokens: int, vocab_size: int = 300,
) -> Answer:  # fmt: skip
    """Return what one choice must be."""
    prompt = unpack_ids(request.prompt.token_ids)
    sampling = request.sampling
    room = min(request.prompt.max_tokens, max_total_tokens - len(prompt))
    own = () if sampling.ignore_eos else (*eos_ids, *request.prompt.stop_token_ids)
    stops = {*own, *sampling.stop_token_ids}
    seed = choice_seed(request, choice)
    ids: list[int] = []
    plan = request.prompt.reasoning
    labels = _Labels(plan or ReasoningPlan(open_tag=b"\xff\xff\xff"), token_bytes)
    reason = ""
    while not reason:
        budget = plan.budget if plan is not None and labels.phase == REASONING else None
        if plan is not None and budget is not None and labels.num_thinking(undecided_too=True) >= budget:
            forced = plan.close_ids[: room - len(ids)]
            ids += forced
            labels.force(forced, "budget")
            reason = "length" if len(ids) >= room else ""
            continue
        token = reply([*prompt, *ids], len(ids), seed)
        while len(ids) < sampling.min_tokens and token in stops:
            token = (token + 1) % vocab_size
        if token is None:
            reason = "error"
            continue
        at_end = plan is not None and _may_land(plan, labels, len(ids))
        if at_end and plan is not None and 30.0 * _progress(plan, labels) >= LANDING_STRENGTH:
            token = plan.landing_ids[0]
        ids.append(token)
        if token in stops and len(ids) > sampling.min_tokens:
            labels.settle(len(labels.text))
            labels.aside(token, labels.phase)
            reason = "stop"
        else:
            labels.feed(token)
            if at_end and plan is not None and token == plan.landing_ids[0] and len(ids) < room:
                rest = plan.landing_ids[1 : 1 + room - len(ids)]
                ids += rest
                for token_id in rest:
                    labels.feed(token_id)
                labels.ended_by = "budget"
            reason = "length" if len(ids) >= room else ""
    labels.settle(len(labels.text))
    num_reasoning = labels.num_thinking(undecided_too=False)
    ended_by = "stop" if labels.phase == REASONING else labels.ended_by
    return Answer(ids, reason, labels.phases(), num_reasoning if plan else 0, ended_by if plan else None)


class Received:
    """The chunks of one choice put together again, checking that they fit."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self.answer = Answer()
        self.num_cached_tokens: int | None = None
        self._token_bytes = token_bytes

    def add(self, chunk: TokenChunk) -> None:
        assert not self.answer.finish_reason, "a chunk after the last one"
        assert chunk.index == len(self.answer.token_ids), "a gap or a repeat"
        assert chunk.token_ids or chunk.finish_reason, "an empty chunk"
        if self.num_cached_tokens is None:
            self.num_cached_tokens = chunk.num_cached_tokens
        self.answer.token_ids += chunk.token_ids
        phase = chunk.phase
        for index, token_id in enumerate(chunk.token_ids):
            bytes_of = []
            for offset in range(max(1, len(self._token_bytes(token_id)))):
                phase = next((m.phase for m in chunk.marks if (m.index, m.offset) == (index, offset)), phase)
                bytes_of.append(phase)
            self.answer.phases.append(bytes_of)
        self.answer.num_reasoning_tokens = chunk.num_reasoning_tokens
        self.answer.ended_by = chunk.reasoning_ended_by
        self.answer.finish_reason = chunk.finish_reason or ""

    def rewind(self, num_tokens: int) -> list[int]:
        """Forget the last tokens, as an edge that had not shown them yet; returns the ids that are left."""
        kept = max(0, len(self.answer.token_ids) - num_tokens)
        del self.answer.token_ids[kept:]
        del self.answer.phases[kept:]
        return self.answer.token_ids
