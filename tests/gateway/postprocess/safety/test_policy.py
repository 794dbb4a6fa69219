"""A policy is checked when it is loaded, and every message names the rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.postprocess.safety.policy import SafetyPolicy, SafetyPolicyError

RULE = '[[rule]]\nid = "r1"\nkind = "terms"\nterms = ["x"]\naction = "redact"\n'


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("[[rule]", "not TOML"),
        pytest.param(f"a = {'[' * 3000}{']' * 3000}", "not TOML", id="nested too deep"),
        ("rules = 1", "unknown key 'rules'"),
        ('[[rule]]\nkind = "terms"\n', "rule number 1.*`id`"),
        (RULE + RULE, "rule 'r1'.*twice"),
        (RULE + 'color = "red"\n', "rule 'r1'.*color"),
        (RULE.replace("redact", "delete"), "rule 'r1'.*action"),
        (RULE.replace('terms"', 'words"'), "rule 'r1'.*kind"),
        (RULE.replace('["x"]', "[]"), "rule 'r1'.*needs a non-empty `terms`"),
        (RULE + 'pattern = "a"\n', "rule 'r1': pattern: does not belong to kind 'terms'"),
        (RULE + 'directions = ["up"]\n', "rule 'r1'.*directions"),
        (RULE.replace('"terms"', '"pattern"'), "rule 'r1': terms: does not belong to kind 'pattern'"),
        ('[[rule]]\nid = "p"\nkind = "pattern"\naction = "block"\n', "rule 'p': pattern: .*needs a non-empty"),
        (RULE.replace('["x"]', "[3]"), r"rule 'r1': terms\[0\]: Expected `str`"),
        (RULE + 'terms_file = "none.txt"\n', "rule 'r1': terms: .*none.txt cannot be read"),
        (
            '[[rule]]\nid = "d"\nkind = "detect"\ndetect = ["mail"]\naction = "flag"\n',
            "rule 'd': detect: 'mail' is none",
        ),
        ('[[rule]]\nid = "c"\nkind = "callout"\naction = "flag"\n', "rule 'c': url: "),
        ('[[rule]]\nid = "c"\nkind = "classifier"\naction = "flag"\nthreshold = 2\n', "rule 'c': threshold: "),
        ('[[rule]]\nid = "c"\nkind = "classifier"\naction = "flag"\nmodel = "m"\n', "rule 'c': question: "),
        ('[[rule]]\nid = "c"\nkind = "classifier"\naction = "flag"\nweights = "none.npz"\n', "rule 'c': weights: "),
        ('[[rule]]\nid = "p"\nkind = "pattern"\npattern = "a*"\naction = "block"\n', "rule 'p'.*no finite maximum"),
    ],
)
def test_a_faulty_policy_is_refused_with_the_rule_named(source: str, says: str) -> None:
    with pytest.raises(SafetyPolicyError, match=says):
        SafetyPolicy.parse(source)


def test_an_error_in_a_policy_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    with pytest.raises(SafetyPolicyError, match=r"policy\.toml: No such file"):
        SafetyPolicy.load(file)
    file.write_text(RULE + RULE)
    with pytest.raises(SafetyPolicyError, match=r"policy\.toml: rule 'r1'"):
        SafetyPolicy.load(file)


def test_a_rule_applies_to_its_directions_only() -> None:
    policy = SafetyPolicy.parse(RULE + 'directions = ["reasoning"]\n')
    assert [policy.has_rules(direction) for direction in ("answer", "reasoning", "prompt")] == [False, True, False]


def test_an_empty_policy_has_no_rules() -> None:
    assert not SafetyPolicy.parse("").has_rules("answer")
