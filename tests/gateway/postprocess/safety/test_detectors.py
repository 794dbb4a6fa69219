"""Detectors find what their check confirms, however it is spelled, and leave numbers alone that only look like it."""

from __future__ import annotations

import pytest

from gateway.postprocess.safety.detectors import DETECTORS
from gateway.postprocess.safety.filter import SafetyFilter, check
from gateway.postprocess.safety.policy import Rule, SafetyPolicy

ALL = SafetyPolicy([Rule(id="d", kind="detect", action="redact", detect=tuple(DETECTORS))])
KEY = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "MIIEpAIBAAKCAQEA7/x+a" * 3
    + "\nabcdEFGH1234abcdEFGH==\n-----END RSA PRIVATE KEY-----"
)


def redacted(text: str) -> str:
    whole = check(ALL, text, "answer")[0]
    safety = SafetyFilter(ALL, "answer")
    assert "".join(safety.feed(char) for char in text) + safety.feed("", final=True) == whole
    return whole


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mail john.doe+x@mail.example.co.uk.", "mail [EMAIL_1]."),
        ("<JOHN@EXAMPLE.COM>", "<[EMAIL_1]>"),
        ("写信给john@example.com吧", "写信给[EMAIL_1]吧"),
        ("jo\u200bhn@exam\u00adple.com", "[EMAIL_1]"),
        ("ｊｏｈｎ＠ｅｘａｍｐｌｅ．ｃｏｍ", "[EMAIL_1]"),
        ("jоhn@example.com", "[EMAIL_1]"),
        ("card 4111 1111 1111 1111, ok", "card [CARD_1], ok"),
        ("card ４１１１-1111-1111-1111", "card [CARD_1]"),
        ("٤١١١١١١١١١١١١١١١", "[CARD_1]"),
        ("4\u200b1\u200b1\u200b1 1111 1111 1111", "[CARD_1]"),
        ("pay DE89 3704 0044 0532 0130 00 today", "pay [IBAN_1] today"),
        ("GB82WEST12345698765432", "[IBAN_1]"),
        ("ring +49 (30) 1234-5678 or (555) 123-4567", "ring [PHONE_1] or [PHONE_2]"),
        ("at 192.168.0.1:80 and 2001:db8::1", "at [IP_1]:80 and [IP_2]"),
        ("key AKIAIOSFODNN7EXAMPLE.", "key [TOKEN_1]"),
        ("sk-proj-" + "aB3" * 20 + "\u200b" + "tail_of_it, next", "[TOKEN_1], next"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.s3cr-_et done", "[TOKEN_1] done"),
        (f"a {KEY} b", "a [PRIVATE_KEY] b"),
        (KEY.replace("\n", "\\n") + '"', '[PRIVATE_KEY]"'),
    ],
)
def test_a_secret_is_replaced_in_every_spelling(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",
        "DE89370400440532013001",
        "1111111111111111",
        "version 1.22.333",
        "300.1.1.1",
        "at 12:30:45",
        "std::vector<int>, a::b",
        "on 01-02-2026 and 01/02/2026",
        "someone@home, a @ b.com",
        "task-force, asia",
        "3.14159265358979",
        "gh_token, sk-short",
        "chapter 0123456789012345678901234567890",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert redacted(text) == text


def test_the_same_value_gets_the_same_placeholder_within_a_reply() -> None:
    text = "a@b.org, c@d.org, A@B.org; 4111111111111111 4111-1111-1111-1111 5555555555554444"
    assert redacted(text) == "[EMAIL_1], [EMAIL_2], [EMAIL_1]; [CARD_1] [CARD_1] [CARD_2]"


def test_prose_after_the_name_of_a_key_is_not_swallowed_for_long() -> None:
    prose = "is how such a file begins, and then more words come that nobody needs to hide from anyone at all. " * 5
    shown = redacted("-----BEGIN PRIVATE KEY----- " + prose)
    assert shown.startswith("[PRIVATE_KEY]") and len(shown) > len(prose) - 250


def test_nothing_is_held_for_the_body_of_a_key() -> None:
    policy = SafetyPolicy([Rule(id="d", kind="detect", action="redact", detect=("private_key",))])
    safety = SafetyFilter(policy, "answer")
    assert "".join(safety.feed(char) for char in KEY) == "[PRIVATE_KEY]"
    assert safety.feed(" b") == " b"
    assert safety.delay.max_chars < 60


def test_a_number_is_let_go_when_it_can_be_no_card_any_more() -> None:
    policy = SafetyPolicy([Rule(id="d", kind="detect", action="redact", detect=("card",))])
    safety = SafetyFilter(policy, "answer")
    assert [safety.feed(piece) for piece in ("in ", "20", "26", " we")] == ["in ", "", "", "2026 we"]
