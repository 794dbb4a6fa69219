"""Held is exactly what could still become a match, no more: each held text has a continuation that makes it one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.postprocess.safety.filter import SafetyFilter, check
from gateway.postprocess.safety.policy import Rule, SafetyPolicy, SafetyPolicyError
from loadtest.hold import held

PROSE = "the end of a list - don't say 'so' - is to be at 19:50 on page 1978; 17 or 200 of us (we, he, my aunt) go up. "


def detecting(name: str, span: str = "whole", action: str = "redact") -> SafetyPolicy:
    return SafetyPolicy([Rule(id="d", kind="detect", action=action, detect=(name,), span=span)])  # type: ignore[arg-type]


def feed(policy: SafetyPolicy, *pieces: str) -> list[str]:
    safety = SafetyFilter(policy, "answer")
    return [safety.feed(piece) for piece in pieces]


@settings(max_examples=200)
@given(st.text("ab1_.-'@, (é\n", max_size=12), st.sampled_from(["whole", "domain"]))
def test_held_text_could_become_an_address_and_begins_where_that_would(text: str, span: str) -> None:
    policy = detecting("email", span)
    safety = SafetyFilter(policy, "answer")
    shown = safety.feed(text)
    num_held = safety.num_held
    if num_held:
        start = len(text) - num_held
        futures = ("x@b.co", "@b.co", "b.co", ".co", "co", "o", "")
        begins = {hit.start for future in futures for hit in check(policy, text + future, "answer")[1]}
        assert start in begins
    else:
        assert shown == check(policy, text, "answer")[0]


@pytest.mark.parametrize(
    ("pieces", "left"),
    [
        ((" we", " go", ","), [" ", "we ", "go,"]),
        (("-", " item", " one"), ["-", " ", "item "]),
        (("say '", "so", "'", " now"), ["say '", "", "", "so' "]),
        (("a@", "!"), ["", "a@!"]),
        (("x" * 64, "x", "@b.co "), ["", "x" * 65, "@b.co "]),
    ],
)
def test_a_word_is_let_go_by_the_first_sign_that_no_address_goes_on_with(
    pieces: tuple[str, ...], left: list[str]
) -> None:
    assert feed(detecting("email"), *pieces) == left


def test_a_rule_for_domains_holds_no_word_and_hides_what_follows_the_sign() -> None:
    policy = detecting("email", "domain")
    assert feed(policy, "write", " to", " anna", ".b") == ["write", " to", " anna", ".b"]
    assert feed(policy, "anna", "@", "example", ".org", ", or") == ["anna", "", "", "", "[EMAIL_1], or"]
    assert check(policy, "me@home, @ noon", "answer")[0] == "me@home, @ noon"
    assert feed(detecting("email", "domain", "block"), "anna", "@example.org ", "x") == ["anna", "", ""]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["a@b.co", "x.y", "@", ".", "c.de", "-", " ", "é", "1", "\u200b"]), max_size=8))
def test_what_follows_the_sign_of_any_address_is_hidden_by_a_rule_for_domains(parts: list[str]) -> None:
    text = "".join(parts)
    whole, domains = (
        check(detecting("email"), text, "answer")[1],
        check(detecting("email", "domain"), text, "answer")[1],
    )
    hidden = {at for hit in domains for at in range(hit.start, hit.end)}
    for hit in whole:
        sign = text.rindex("@", hit.start, hit.end)
        assert hidden.issuperset(range(sign, hit.end))


def test_a_span_goes_with_addresses_only() -> None:
    for name, fault in (("card", "span: none of what"), ("email", "")):
        source = f'[[rule]]\nid = "r"\nkind = "detect"\ndetect = ["{name}"]\naction = "redact"\nspan = "domain"\n'
        if fault:
            with pytest.raises(SafetyPolicyError, match=fault):
                SafetyPolicy.parse(source)
        else:
            assert SafetyPolicy.parse(source).has_rules("answer")
    with pytest.raises(SafetyPolicyError, match="span: does not belong"):
        SafetyPolicy([Rule(id="r", kind="terms", terms=("x",), action="flag", span="domain")])


@pytest.mark.parametrize(("name", "most"), [("iban", 0.15), ("card", 0.08), ("token", 0.10)])
def test_words_and_numbers_that_can_be_no_secret_are_not_held(name: str, most: float) -> None:
    rule = detecting(name).rules[0]
    assert held(rule, PROSE * 3).share < most
    assert held(detecting("email", "domain").rules[0], PROSE).share == 0
    assert held(detecting("email").rules[0], PROSE).share > 0.5
