"""The sequences of an engine whose answers a grammar governs.

Grammars are compiled away from the thread that steps. Until its grammar is there a sequence cannot start; one whose
grammar cannot be compiled, or has come to a point where it allows nothing, has failed.
"""

from __future__ import annotations

from concurrent.futures import wait

from model_svc.engine.draw_rules import mask_of
from model_svc.engine.grammar import AnswerGrammar, Matchers, OpenTag
from model_svc.engine.scheduler import ScheduledStep
from model_svc.engine.sequence import Sequence
from model_svc.engine.token_bytes import TokenBytes
from wire.errors import InvalidRequestError
from wire.grammar import GrammarError
from wire.messages import ReasoningPlan, SamplingParams

_COMPILE_WAIT_S = 0.02  # then commands are looked at again


class Governed:
    """Gives grammars to sequences and follows them until these are finished."""

    def __init__(self, matchers: Matchers | None, token_bytes: TokenBytes, vocab_size: int) -> None:
        self._matchers = matchers
        self._token_bytes = token_bytes
        self._vocab_size = vocab_size
        self._open_tags: dict[bytes, OpenTag] = {}
        self.sequences: list[Sequence] = []

    def check(self, sampling: SamplingParams) -> None:
        """Raise InvalidRequestError for a grammar where none can be compiled."""
        if sampling.grammar is not None and self._matchers is None:
            raise InvalidRequestError("this replica has no grammars", param=sampling.grammar.field or "tools")

    def add(self, seq: Sequence) -> None:
        """Begin to compile a sequence's grammar, if it has one."""
        wanted, plan = seq.request.sampling.grammar, seq.request.prompt.reasoning
        if wanted is not None and self._matchers is not None:
            pending = self._matchers.start(wanted, self._vocab_size)
            seq.grammar = AnswerGrammar(pending, seq.reasoning, self._open_tag(plan))
            self.sequences.append(seq)

    def take_failed(self) -> list[Sequence]:
        """Return the sequences that cannot go on, and forget what is finished."""
        self.sequences = [seq for seq in self.sequences if not seq.finished]
        return [seq for seq in self.sequences if _is_stuck(seq)]

    def wait(self) -> bool:
        """Give grammars that are being compiled a moment; False if there are none."""
        grammars = [seq.grammar for seq in self.sequences if seq.grammar is not None and not seq.finished]
        waiting = [grammar.pending for grammar in grammars if grammar.matcher is None]
        if waiting:
            wait(waiting, timeout=_COMPILE_WAIT_S)
        return bool(waiting)

    def masks(self, scheduled: ScheduledStep) -> dict[int, bytes]:
        """Return the masks that follow a plan, by slot; those of draws that have become void allow everything."""
        masks: dict[int, bytes] = {}
        for item, seq, epoch in zip(scheduled.plan.sequences, scheduled.sequences, scheduled.epochs, strict=True):
            if item.mask_follows:
                live = not seq.finished and seq.epoch == epoch
                masks[item.slot] = mask_of(seq, self._vocab_size) if live else b""
        return masks

    def _open_tag(self, plan: ReasoningPlan | None) -> OpenTag | None:
        """Return the tag with which a model may begin to think, if it may."""
        if plan is None or plan.starts_open or plan.budget == 0 or not plan.open_tag:
            return None
        tag = plan.open_tag
        if tag not in self._open_tags:
            self._open_tags[tag] = OpenTag(tag, self._token_bytes, self._vocab_size)
        return self._open_tags[tag]


def _is_stuck(seq: Sequence) -> bool:
    """Tell whether a sequence's grammar cannot be compiled, or leaves its next draw nothing."""
    assert seq.grammar is not None
    try:
        must_allow = seq.grammar.ready() and seq.grammar.governs and not seq.num_pending
        return must_allow and seq.grammar.allowed() is None
    except GrammarError:
        return True
