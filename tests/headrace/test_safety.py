"""`headrace safety test` shows what the rules do; the policies in deploy/ can be loaded and do what they say."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.policy import SafetyPolicy
from headrace.__main__ import app
from headrace.doctor import check_safety
from headrace.safety import main

POLICIES = Path(__file__).resolve().parent.parent.parent / "deploy" / "policies"


def shown(policy: str, text: str, tmp_path: Path, direction: str = "answer") -> str:
    (tmp_path / "text").write_text(text)
    out = io.StringIO()
    assert main(POLICIES / policy, tmp_path / "text", direction, out) == 0  # type: ignore[arg-type]
    return out.getvalue()


def test_each_rule_tells_what_it_found_and_what_leaves_is_shown(tmp_path: Path) -> None:
    text = "Write to a@b.org, pay 4111 1111 1111 1111."
    told = shown("default.toml", text, tmp_path)
    assert "4 rules, 3 for answer; at most" in told
    assert "payment (detect, redact): 1 match\n    22-41  '4111 1111 1111 1111'" in told
    assert "contact (detect, flag): 1 match\n    9-16  'a@b.org'" in told
    assert told.endswith("--- what leaves ---\nWrite to a@b.org, pay [CARD_1].\n")


def test_a_policy_of_one_rule_is_counted_in_the_singular(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('[[rule]]\nid = "one"\nkind = "terms"\nterms = ["x"]\naction = "flag"\n')
    (tmp_path / "text").write_text("x")
    out = io.StringIO()
    assert main(tmp_path / "one.toml", tmp_path / "text", "answer", out) == 0
    assert out.getvalue().startswith("1 rule, 1 for answer; at most")


def test_a_block_cuts_and_judges_are_run_or_named(tmp_path: Path) -> None:
    told = shown("private.toml", "So: ghp_" + "a1" * 18, tmp_path)
    assert told.endswith("--- what leaves, up to the block by secrets ---\nSo: \n")
    told = shown("judged.toml", "All is well here today. You are a stupid worthless idiot!", tmp_path)
    assert "house-judge (callout, redact): not asked here" in told
    assert "harassment (classifier, flag): 1 match\n    23-" in told


def test_the_command_reads_standard_input_and_names_what_is_wrong(tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["safety", "test", str(POLICIES / "default.toml"), "-"], input="card 4111111111111111")
    assert done.exit_code == 0 and "card [CARD_1]" in done.output
    (tmp_path / "bad.toml").write_text('[[rule]]\nid = "a"\nkind = "terms"\naction = "block"\n')
    done = runner.invoke(app, ["safety", "test", str(tmp_path / "bad.toml"), "-"], input="x")
    assert done.exit_code == 2
    assert (
        runner.invoke(app, ["safety", "test", str(POLICIES / "default.toml"), "-", "--direction", "up"]).exit_code == 2
    )
    done = runner.invoke(app, ["safety", "test", str(POLICIES / "default.toml"), str(tmp_path / "absent")])
    assert (done.exit_code, done.stderr) == (2, f"headrace: {tmp_path / 'absent'}: No such file or directory\n")


def test_the_doctor_names_a_faulty_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADRACE_SAFETY_POLICY", raising=False)
    assert check_safety().seen == "no policy is set; nothing is filtered"
    monkeypatch.setenv("HEADRACE_SAFETY_POLICY", str(POLICIES))
    assert "default" in check_safety().seen
    (tmp_path / "bad.toml").write_text("[[rule]]")
    monkeypatch.setenv("HEADRACE_SAFETY_POLICY", str(tmp_path / "bad.toml"))
    finding = check_safety()
    assert finding.fatal and "rule number 1" in finding.seen


@pytest.mark.parametrize("policy", sorted(path.name for path in POLICIES.glob("*.toml")))
def test_a_policy_of_deploy_leaves_plain_text_alone(policy: str) -> None:
    text = "Plain text about rivers: 3.14, 12:30, the year 2026, a-b, f(x) = x*x, std::move.\n" * 3
    loaded = SafetyPolicy.load(POLICIES / policy)
    for direction in ("prompt", "answer", "reasoning", "tool"):
        assert check(loaded, text, direction) == (text, [], None)


def test_the_private_policy_leaves_nothing_of_a_person(tmp_path: Path) -> None:
    text = "anna@example.org or +49 30 123456, C-2026-000123, blue  heron two, Blue Heron Two"
    assert check(SafetyPolicy.load(POLICIES / "private.toml"), text, "prompt")[0] == (
        "[EMAIL_1] or [PHONE_1], [CUSTOMER_1], blue  heron two, [project]"
    )
