"""Schemathesis, which knows nothing of us but the OpenAPI document, finds no answer that the document does not have.

`make fuzz-schema` tries 2,000 examples a route, one operation after the other, and notes what is done, so that a run
that was broken off goes on from there; a plain test run tries two. It runs as a process of its own, as users do it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.gateway.edge.asks import still_serves
from tests.gateway.edge.document.ledger import Ledger, count_of
from tests.gateway.edge.openapi.test_document import DOCUMENT
from tests.gateway.edge.test_moderations import POLICY
from tests.ring import MODEL, MakeRing, Ring
from tests.script import say
from tests.tiny_bert import MODEL as EMBEDDER

pytestmark = pytest.mark.anyio

EXAMPLES = os.environ.get("HEADRACE_FUZZ_EXAMPLES")
SETTINGS = Path(__file__).parent / "document" / "settings.toml"
OPERATIONS = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
# On a machine that is busy with something else a desk may be silent for long; a 504 is no finding then.
PATIENT: dict[str, Any] = {"history_timeout_s": 600.0, "tokenize_timeout_s": 600.0, "request_timeout_s": 600.0}
WAYS = "ways from one operation to the next"


async def run(ring: Ring, *options: str) -> tuple[int, str]:
    """Let schemathesis try a ring; returns its exit status and what it printed."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(SETTINGS), "run"]
    command += [f"{ring.url}/openapi.json", *options]
    names = {"HEADRACE_FUZZ_MODELS": f"{MODEL},{EMBEDDER}"}
    tried = await anyio.run_process(command, check=False, stderr=None, env={**os.environ, **names})
    return tried.returncode, tried.stdout.decode()


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """A safety policy's file."""
    (tmp_path / "policy.toml").write_text(POLICY)
    return str(tmp_path / "policy.toml")


@pytest.mark.skipif(EXAMPLES is not None, reason="each operation is tried by itself")
async def test_schemathesis_finds_nothing(make_ring: MakeRing, tiny_bert: Path, policy: str) -> None:
    async with make_ring(encoders=[tiny_bert], safety_policy=policy, **PATIENT) as ring:
        ring.replica.play(*say("one ", "two "))
        status, printed = await run(ring, "--max-examples", "2", "--phases", "fuzzing,stateful", "--seed", "1")
        assert status == 0, printed[-20_000:]
        await still_serves(ring)


@pytest.mark.skipif(EXAMPLES is None, reason="make fuzz-schema tries many examples")
@pytest.mark.parametrize("operation", [*OPERATIONS, WAYS])
async def test_an_operation_survives_many_examples(
    make_ring: MakeRing, tiny_bert: Path, policy: str, operation: str
) -> None:
    assert EXAMPLES is not None
    ledger = Ledger(int(EXAMPLES), len(OPERATIONS) + 1)
    if operation in ledger.done():
        pytest.skip("done in a run before")
    options = ["--max-examples", EXAMPLES]
    if operation == WAYS:
        options += ["--phases", "stateful"]
    else:
        options += ["--phases", "examples,coverage,fuzzing", "--include-operation-id", operation]
    async with make_ring(encoders=[tiny_bert], safety_policy=policy, **PATIENT) as ring:
        ring.replica.play(*say("one ", "two "))
        status, printed = await run(ring, *options)
        ledger.note(operation, count_of(printed), found_nothing=status == 0)
        assert status == 0, printed[-20_000:]
        await still_serves(ring)
