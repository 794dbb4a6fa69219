"""Policies are read again when their files change; a faulty file changes nothing but what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.postprocess.safety.filter import check
from gateway.postprocess.safety.policy import SafetyPolicyError
from gateway.postprocess.safety.store import Policies

RULE = '[[rule]]\nid = "r1"\nkind = "terms"\naction = "redact"\n'


def shown(policies: Policies, text: str, tenant: str = "") -> str:
    policy = policies.of(tenant)
    return text if policy is None else check(policy, text, "answer")[0]


def look(policies: Policies) -> None:
    """Look twice, as a change counts when it is at rest."""
    policies.refresh()
    policies.refresh()


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(RULE + 'terms = ["one"]\n')
    policies = Policies(file)
    assert shown(policies, "one three") == "[redacted] three"
    file.write_text(RULE + 'terms = ["three"]\n')
    look(policies)
    assert shown(policies, "one three") == "one [redacted]"
    look(policies)
    assert policies.num_reloads == 1


def test_a_file_that_is_being_written_is_left_alone_until_it_rests(tmp_path: Path) -> None:
    file = tmp_path / "acme.toml"
    (tmp_path / "default.toml").write_text("")
    file.write_text(RULE + 'terms = ["one"]\n')
    policies = Policies(tmp_path)
    file.write_text("")  # an editor empties it first
    policies.refresh()
    assert shown(policies, "one", "acme") == "[redacted]"
    file.write_text(RULE + 'terms = ["two"]\n')
    policies.refresh()
    assert shown(policies, "one", "acme") == "[redacted]"
    policies.refresh()
    assert shown(policies, "one two", "acme") == "one [redacted]"
    file.unlink()  # and others put a new one in its place
    policies.refresh()
    assert shown(policies, "two", "acme") == "[redacted]"


def test_a_faulty_or_missing_file_leaves_the_old_policy_at_work_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(RULE + 'terms = ["one"]\n')
    policies = Policies(file)
    file.write_text(RULE + "terms = []\n")
    look(policies)
    assert shown(policies, "one") == "[redacted]"
    assert "rule 'r1': terms" in policies.faults["default"]
    file.unlink()
    look(policies)
    assert shown(policies, "one") == "[redacted]"
    assert "No such file" in policies.faults["default"]
    file.write_text(RULE + 'terms = ["two", "three"]\n')
    look(policies)
    assert (shown(policies, "one two"), policies.faults) == ("one [redacted]", {})


def test_a_file_of_terms_is_watched_too(tmp_path: Path) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text("# a list\none\n\n")
    (tmp_path / "policy.toml").write_text(RULE + 'terms_file = "terms.txt"\n')
    policies = Policies(tmp_path / "policy.toml")
    assert shown(policies, "one # a list") == "[redacted] # a list"
    terms.write_text("# a list\nother\n")
    look(policies)
    assert shown(policies, "one other") == "one [redacted]"


def test_each_tenant_has_its_own_policy_or_the_default_one(tmp_path: Path) -> None:
    (tmp_path / "default.toml").write_text(RULE + 'terms = ["one"]\n')
    policies = Policies(tmp_path)
    assert shown(policies, "one two", "acme") == "[redacted] two"
    (tmp_path / "acme.toml").write_text(RULE + 'terms = ["two"]\n')
    look(policies)
    assert shown(policies, "one two", "acme") == "one [redacted]"
    assert shown(policies, "one two", "other") == "[redacted] two"
    (tmp_path / "acme.toml").unlink()
    look(policies)
    assert shown(policies, "one two", "acme") == "[redacted] two"


def test_at_the_start_a_faulty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SafetyPolicyError, match="No such file"):
        Policies(tmp_path / "none.toml")


def test_matches_are_named_by_a_keyed_hash(tmp_path: Path) -> None:
    (tmp_path / "default.toml").write_text(RULE + 'terms = ["one"]\n')
    names = []
    for key in (b"a", b"a", b"b"):
        policies = Policies(tmp_path)
        policies.name_matches_with(key)
        policy = policies.of("")
        assert policy is not None
        names.append(check(policy, "one", "answer")[1][0].digest)
    assert names[0] == names[1] != names[2]
    assert len(names[0]) == 32


def test_a_directory_without_a_policy_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "default.toml.bak").write_text(RULE + 'terms = ["one"]\n')
    with pytest.raises(SafetyPolicyError, match=r"holds no policy; name it default\.toml, or by its tenant"):
        Policies(tmp_path)
    (tmp_path / "acme.toml").write_text(RULE + 'terms = ["one"]\n')
    assert Policies(tmp_path).names == ("acme",)
