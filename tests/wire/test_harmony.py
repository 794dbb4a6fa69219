"""Headers of harmony's messages: what they open, however they are written."""

from __future__ import annotations

import re

import pytest

from tests.harmony import TEMPLATE
from wire.harmony import TAGS, Kind, MessageReader, speaks_harmony
from wire.tool_style import tool_style

_TAG = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")")


def read(text: str, reader: MessageReader | None = None) -> MessageReader:
    reader = reader or MessageReader()
    for at, piece in enumerate(_TAG.split(text)):
        if at % 2:
            reader.tag(piece)
        else:
            for char in piece:
                reader.text(char.encode())
    return reader


CASES = [
    ("<|channel|>analysis<|message|>", Kind.REASONING, ""),
    ("<|channel|>final<|message|>", Kind.ANSWER, ""),
    ("<|channel|>final <|constrain|>json<|message|>", Kind.ANSWER, ""),
    ("<|channel|>commentary<|message|>", Kind.ANSWER, ""),
    ("<|channel|>commentary to=user<|message|>", Kind.ANSWER, ""),
    ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", Kind.CALL, "f"),
    ("<|channel|>commentary to=functions.f<|constrain|>json<|message|>", Kind.CALL, "f"),
    ("<|channel|>commentary to=functions.a__b-c json<|message|>", Kind.CALL, "a__b-c"),
    (" to=functions.f<|channel|>commentary json<|message|>", Kind.CALL, "f"),
    ("<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>", Kind.CALL, "f"),
    ("<|channel|>analysis to=functions.f code<|message|>", Kind.CALL, "f"),
    ("<|channel|>analysis to=python code<|message|>", Kind.REASONING, ""),
    ("<|channel|>commentary to=browser.search<|message|>", Kind.REASONING, ""),
    # malformed
    ("<|message|>", Kind.ANSWER, ""),
    ("<|channel|><|message|>", Kind.ANSWER, ""),
    ("<|channel|>secret<|message|>", Kind.REASONING, ""),
    ("<|channel|>finality<|message|>", Kind.REASONING, ""),
    ("<|channel|>analysis<|channel|>final<|message|>", Kind.ANSWER, ""),
    ("<|channel|>analysis<|start|>assistant<|channel|>final<|message|>", Kind.ANSWER, ""),
    ("<|channel|>commentary to=functions.<|message|>", Kind.REASONING, ""),
    ("<|channel|>commentary to=functions.a/b<|message|>", Kind.REASONING, ""),
    ("<|channel|>commentary to=functions.fé<|message|>", Kind.REASONING, ""),
    ("<|constrain|>json<|channel|>final<|message|>", Kind.ANSWER, ""),
    ("<|start|>user<|message|>", Kind.REASONING, ""),
    ("<|start|>functions.f to=assistant<|channel|>commentary<|message|>", Kind.REASONING, ""),
    ("<|channel|>final", Kind.HEADER, ""),
    ("no header", Kind.HEADER, ""),
    ("<|end|>", Kind.BETWEEN, ""),
    ("<|end|>what is<|constrain|>this<|message|>", Kind.ANSWER, ""),
    ("<|channel|>final<|message|>a<|message|>b<|constrain|>c", Kind.ANSWER, ""),
    ("<|channel|>final<|message|>a<|channel|>analysis<|message|>", Kind.REASONING, ""),
    ("<|channel|>final<|message|>a<|return|>", Kind.BETWEEN, ""),
    ("<|channel|>" + "x" * 5_000 + "final<|message|>", Kind.REASONING, ""),
]


@pytest.mark.parametrize(("text", "kind", "name"), CASES)
def test_a_header_tells_for_whom_a_message_is(text: str, kind: Kind, name: str) -> None:
    found = read(text)
    assert (found.kind, found.name if kind is Kind.CALL else "") == (kind, name)


def test_what_is_said_in_a_message_does_not_become_part_of_the_next_header() -> None:
    first = read("<|channel|>commentary to=functions.f<|message|>to=functions.g final<|end|>")
    assert read("<|start|>assistant<|channel|>analysis<|message|>", first).kind is Kind.REASONING


def test_a_template_tells_that_its_model_speaks_harmony_with_and_without_tools() -> None:
    assert speaks_harmony(TEMPLATE) and tool_style(TEMPLATE) == "harmony"
    assert tool_style("<|start|>{{ messages }}<|channel|><|message|>") == "harmony"
    assert not speaks_harmony("<|start|>{{ messages }}") and not speaks_harmony(None)
