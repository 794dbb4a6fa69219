"""Which bytes tokens stand for, and which of them end a sentence."""

from __future__ import annotations

import pytest

from model_svc.engine.reasoning import ReasoningTracker
from model_svc.engine.token_bytes import ends_sentence, sentence_ends, tag_bytes
from tests.model_svc.engine.driver import one_byte
from wire.messages import ANSWER, MARKUP, REASONING, ReasoningPlan
from wire.vocabulary import Vocabulary


def test_a_special_token_stands_for_its_own_text() -> None:
    vocabulary = Vocabulary([b"a", b"", b""], {"<think>": 1, "</think>": 2})
    tracker = ReasoningTracker(ReasoningPlan(), tag_bytes(vocabulary))
    for token in (1, 0, 2, 0):
        tracker.feed(token)
    assert [runs[0][1] for runs in tracker.take()] == [MARKUP, REASONING, MARKUP, ANSWER]
    assert tracker.ended_by == "model"


@pytest.mark.parametrize("data", [b".", b"end.", b'!"', b"?", b"x\n\n", b". ", "。".encode(), b".**"])
def test_these_tokens_end_a_sentence(data: bytes) -> None:
    assert ends_sentence(data)


@pytest.mark.parametrize("data", [b"", b"a", b",", b" the", b"</think>", b">\n\n", b"]\n", b"1.5"])
def test_these_tokens_do_not_end_a_sentence(data: bytes) -> None:
    assert not ends_sentence(data)


def test_the_mask_of_sentence_ends_has_a_bit_for_each_token() -> None:
    mask = int.from_bytes(sentence_ends(one_byte, 300), "little")
    assert {n for n in range(300) if mask >> n & 1} == set(b".!?\n")
    assert len(sentence_ends(one_byte, 300)) == 40
