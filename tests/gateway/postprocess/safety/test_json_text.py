"""Needless escapes are undone, the meaning of the JSON stays, over any split."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.json_text import PlainJson
from gateway.postprocess.safety.policy import Rule, SafetyPolicy

POLICY = SafetyPolicy([Rule(id="t", kind="terms", action="redact", terms=("zorg", "😀"))])


def escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)) + '"'


@given(st.text(st.sampled_from('ab"\\/\n\u007f😀é\ud83d\ude00'), max_size=8), st.lists(st.integers(1, 5), max_size=60))
def test_the_meaning_stays_over_any_split(text: str, sizes: list[int]) -> None:
    for source in (json.dumps(text), json.dumps(text, ensure_ascii=False), escaped(text)):
        plain, shown, at = PlainJson(), "", 0
        for size in sizes:
            shown += plain.feed(source[at : at + size])
            at += size
        shown += plain.feed(source[at:], final=True)
        assert json.loads(shown) == json.loads(source)
        assert shown == PlainJson().feed(source, final=True)


@given(st.text(st.sampled_from('ab"\\u0dD8'), max_size=12), st.integers(0, 12))
def test_what_is_no_json_passes_in_every_split_alike(text: str, at: int) -> None:
    plain = PlainJson()
    assert plain.feed(text[:at]) + plain.feed(text[at:], final=True) == PlainJson().feed(text, final=True)


def test_a_word_written_in_escapes_is_found_in_arguments() -> None:
    shown, _, _ = check(POLICY, '{"q": "\\u007ao\\u0072g \\ud83d\\ude00"}', "tool")
    assert shown == '{"q": "[redacted] [redacted]"}'
    assert check(POLICY, "z\\u006frg", "answer")[1] == []
