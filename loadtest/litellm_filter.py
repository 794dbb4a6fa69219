"""Runs LiteLLM's content filter over given pieces: the peer of loadtest.safety, started by it in LiteLLM's own venv.

Standard input is one JSON object {words, patterns, pieces, rounds}; standard output is {seconds, arrivals, version}:
the processor time of each round, and for each piece of output after how many pieces of input it left. Imports nothing
of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from importlib.metadata import version
from typing import Any

import anyio

_FILTER = "litellm.proxy.guardrails.guardrail_hooks.litellm_content_filter.content_filter"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for prices


async def _round(guardrail: Any, pieces: list[str]) -> tuple[float, list[tuple[int, str]]]:
    types = import_module("litellm.types.utils")

    num_fed = 0

    async def chunks() -> Any:
        nonlocal num_fed
        for number, piece in enumerate(pieces):
            num_fed = number + 1
            last = num_fed == len(pieces)
            choice = types.StreamingChoices(
                index=0, delta=types.Delta(content=piece), finish_reason="stop" if last else None
            )
            yield types.ModelResponseStream(id="x", model="m", choices=[choice])

    arrivals: list[tuple[int, str]] = []
    started = time.process_time()
    async for item in guardrail.async_post_call_streaming_iterator_hook(None, chunks(), {"model": "m"}):
        text = item.choices[0].delta.content
        if text:
            arrivals.append((num_fed, text))
    return time.process_time() - started, arrivals


async def main() -> None:
    """Read the task, run it, write what came out."""
    task = json.load(sys.stdin)
    guardrail = import_module(_FILTER).ContentFilterGuardrail(
        guardrail_name="filter",
        patterns=[{"pattern_type": "prebuilt", "pattern_name": name, "action": "MASK"} for name in task["patterns"]],
        blocked_words=[{"keyword": word, "action": "MASK"} for word in task["words"]],
    )
    seconds: list[float] = []
    arrivals: list[tuple[int, str]] = []
    for _ in range(task["rounds"]):
        took, arrivals = await _round(guardrail, task["pieces"])
        seconds.append(took)
    json.dump({"seconds": seconds, "arrivals": arrivals, "version": version("litellm")}, sys.stdout)


if __name__ == "__main__":
    anyio.run(main)
