"""A chat template can say what it likes to whom it serves, and harm nobody."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tokenizer_svc.conversation import system_folded
from tokenizer_svc.sandbox import Budget, OverBudget
from tokenizer_svc.template import RESERVED, ChatTemplate, check_kwargs
from wire.errors import InvalidRequestError, TemplateError
from wire.messages import ChatMessage


def render(source: str, timeout_s: float = 0.2, **variables: Any) -> str:
    return ChatTemplate(source, timeout_s=timeout_s).render(variables)


def test_hugging_faces_conventions_hold() -> None:
    assert render("{% for x in 'abc' %}{% if x == 'b' %}{% continue %}{% endif %}{{ x }}{% endfor %}") == "ac"
    assert render("{{ {'a': 'é<>'} | tojson }}") == '{"a": "é<>"}'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert render("{% generation %}x{% endgeneration %}") == "x"
    assert render("  {% if true %}\n  x\n  {% endif %}\n") == "  x\n"
    assert render("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}") == "2"
    assert render("{{ dict(a=1)['a'] }}{{ 'a' ~ 1 ~ 'b' }}{{ '%s-%d' % ('x', 3) }}{{ 'ab' * 2 }}") == "1a1bx-3abab"
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% set c = 1 %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set a = 'x' * 9000000 %}{% set b = a ~ a %}",
        "{% set a = 'x' * 9000000 %}{% set b = a + a %}",
        "{{ 'x' * 9999999999 }}",
        "{{ [1] * 9999999999 }}",
        "{{ 9 ** 99999999 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ 'x' | center(9999999999) }}",
        "{{ 'x'.ljust(9999999999) }}",
    ],
)
def test_a_template_that_would_take_for_ever_or_fill_the_memory_is_stopped(source: str) -> None:
    with pytest.raises(TemplateError, match="limit") as caught:
        render(source)
    assert caught.value.status == 400


def test_a_template_whose_thread_stood_still_has_its_whole_time_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    wall_s = own_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: wall_s, thread_time=lambda: own_s)
    monkeypatch.setattr("tokenizer_svc.sandbox.time", clock)
    budget = Budget(2.0)
    for wall_s, own_s in ((1.9, 0.1), (60.0, 0.2), (61.0, 1.1), (61.9, 1.9)):  # noqa: B007 - the clock reads them
        assert budget.tick() == ""
    wall_s, own_s = 70.0, 2.1
    with pytest.raises(OverBudget, match="time"):
        budget.tick()


def test_a_recursion_without_end_is_stopped() -> None:
    with pytest.raises(TemplateError):
        render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")


def test_a_refusal_says_why_in_short_without_the_templates_source() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{ raise_exception('roles must alternate ' ~ 'x' * 1000) }}")
    assert caught.value.message.startswith("the chat template refuses these messages: roles must alternate")
    assert len(caught.value.message) < 300
    assert caught.value.param == "messages"


FAULTS = ["{{ messages[0].content.nothing.more }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ x() }}"]


@pytest.mark.parametrize("source", FAULTS)
def test_a_fault_inside_names_its_kind_only(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source, messages=[{"content": "secret"}])
    assert "secret" not in caught.value.message
    assert "{{" not in caught.value.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ namespace(_x=1) }}",
        "{{ dict.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ _tick.__self__ }}",
        "{% include 'x' %}",
    ],
)
def test_nothing_outside_can_be_reached_or_changed(source: str) -> None:
    try:
        shown = render(source, messages=[])
    except TemplateError:
        return
    assert shown == ""


def test_source_that_is_no_template_is_refused() -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTemplate("{% if %}")


@pytest.mark.parametrize("name", [*sorted(RESERVED), "_tick", "_x", "a b", "", "1"])
def test_a_caller_cannot_set_what_is_the_desks(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_kwargs({name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_a_caller_can_set_what_a_template_offers() -> None:
    check_kwargs({"enable_thinking": False, "custom": {"a": 1}})


def test_several_system_messages_at_the_start_become_one_where_a_template_takes_one_only() -> None:
    told = [ChatMessage(role=role, content=text) for role, text in (("system", "a"), ("developer", "b"), ("user", "c"))]
    folded = system_folded(told)
    assert folded is not None
    assert [(message.role, message.content) for message in folded] == [("system", "a\n\nb"), ("user", "c")]
    assert system_folded(told[:1]) is system_folded(told[2:]) is None
