"""Settings of every role: what makes no sense is refused at the start, by the name of the flag."""

from __future__ import annotations

import pytest

from headrace.roles import load_settings, settings_class
from headrace.settings import UpSettings
from wire.environment import load
from wire.settings import Settings, SettingsError


@pytest.mark.parametrize(
    ("role", "field", "value"),
    [
        ("edge", "max_inflight", "0"),
        ("edge", "keep_alive_s", "0"),
        ("edge", "send_timeout_s", "1e12"),
        ("edge", "max_wait_s", "nan"),
        ("edge", "port", "65536"),
        ("edge", "reasoning_fields", "thoughts"),
        ("edge", "tool_styles", "morse"),
        ("edge", "tool_styles", "harmony"),  # whole answers are framed so, or none
        ("balancer", "balancer_policy", "dice"),
        ("balancer", "balancer_wait_s", "nan"),
        ("balancer", "balancer_loading_wait_s", "-1"),
        ("balancer", "balancer_fetch_share", "-0.5"),
        ("balancer", "balancer_concurrency", "0"),
        ("tokenizer", "tokenizer_threads", "0"),
        ("tokenizer", "tokenizer_threads", "1025"),
        ("tokenizer", "template_timeout_s", "61"),
        ("tokenizer", "reasoning_budgets", "low:many"),
        ("history", "history_ttl_days", "0"),
        ("history", "history_turn_wait_s", "-1"),
        ("history", "history_concurrency", "1"),
        ("prefix", "prefix_max_blocks", "0"),
        ("prefix", "prefix_concurrency", "0"),
        ("balancer", "balancer_concurrency", "65537"),
        ("history", "history_concurrency", "65537"),
        ("prefix", "prefix_concurrency", "65537"),
        ("up", "port", "0"),
        ("up", "replicas", "0"),
        ("up", "host", ""),
        ("edge", "host", ""),
        ("up", "prefill_replicas", "-1"),
        ("up", "pipeline_parallel", "0"),
        ("up", "ready_timeout_s", "0"),
    ],
)
def test_a_value_that_makes_no_sense_names_its_field(role: str, field: str, value: str) -> None:
    kind: type[Settings] = UpSettings if role == "up" else settings_class(role)
    load(kind, {}, {})
    with pytest.raises(SettingsError, match=f"^{field}"):
        load(kind, {}, {field: value})


def test_a_misspelt_flag_brings_the_one_that_was_meant() -> None:
    with pytest.raises(SettingsError, match=r"--max-inflght: no such flag for edge; did you mean --max-inflight\?"):
        load_settings(["edge"], {"max_inflght": "3"})
