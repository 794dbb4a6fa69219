"""Schemathesis, which knows nothing of us but the OpenAPI document, finds no answer that the document does not have.

`make fuzz-schema` tries 2,000 examples a route; a plain test run two. It runs as a process of its own, as users do it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from tests.gateway.edge.asks import still_serves
from tests.gateway.edge.test_embeddings import tiny_bert
from tests.gateway.edge.test_moderations import POLICY
from tests.ring import MakeRing
from tests.scripted_replica import say

pytestmark = pytest.mark.anyio
__all__ = ["tiny_bert"]

EXAMPLES = os.environ.get("HEADRACE_FUZZ_EXAMPLES")
FEW = ["--max-examples", "2", "--phases", "fuzzing,stateful", "--seed", "1"]
SETTINGS = Path(__file__).parent / "document" / "settings.toml"


async def test_schemathesis_finds_nothing(make_ring: MakeRing, tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    async with make_ring(embedder=tiny_bert, safety_policy=str(tmp_path / "policy.toml")) as ring:
        ring.replica.play(*say("one ", "two "))
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(SETTINGS), "run"]
        command += [f"{ring.url}/openapi.json", *(["--max-examples", EXAMPLES] if EXAMPLES else FEW)]
        found = await anyio.run_process(command, check=False, stderr=None)
        assert found.returncode == 0, found.stdout.decode()[-20_000:]
        await still_serves(ring)
