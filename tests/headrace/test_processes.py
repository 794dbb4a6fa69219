"""The processes of a house, by its settings."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.processes import processes
from headrace.roles import LIGHT_DESKS
from headrace.settings import UpSettings


def named(**fields: Any) -> dict[str, str]:
    """Return the roles of each process, by name."""
    return {name: roles for name, roles, _ in processes(UpSettings(models=("m",), **fields))}


def test_a_house_is_a_replica_and_one_process_for_all_desks() -> None:
    assert named() == {"model-m": "model", "desks": ",".join(LIGHT_DESKS)}


def test_a_house_that_is_split_has_a_process_for_each_desk() -> None:
    assert named(split=True) == {"model-m": "model"} | {role: role for role in LIGHT_DESKS}


def test_edges_that_share_a_port_stand_apart_from_the_other_desks() -> None:
    found = list(processes(UpSettings(models=("m",), edges=2)))
    assert [(name, roles) for name, roles, _ in found[-2:]] == [("edge-0", "edge"), ("edge-1", "edge")]
    assert all("--reuse-port=true" in flags for _, _, flags in found[-2:])
    assert "edge" not in found[-3].roles.split(",")


@pytest.mark.parametrize(("prefill_replicas", "role"), [(0, "both"), (1, "decode")])
def test_replicas_beside_others_for_prompts_only_decode(prefill_replicas: int, role: str) -> None:
    found = {name: flags for name, _, flags in processes(UpSettings(models=("m",), prefill_replicas=prefill_replicas))}
    assert f"--role={role}" in found["model-m"]
    assert [name for name, flags in found.items() if "--role=prefill" in flags] == ["model-m-prefill-0"][
        :prefill_replicas
    ]
