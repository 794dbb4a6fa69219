"""Log probabilities as OpenAI shows them; `bytes` are the token's own, also where they are half a character."""

from __future__ import annotations

from typing import Any

from gateway.postprocess.logprobs import LogprobEntry


def logprob_object(entry: LogprobEntry) -> dict[str, Any]:
    """Return one token's entry."""
    return {
        "token": entry.token,
        "logprob": entry.logprob,
        "bytes": list(entry.raw),
        "top_logprobs": [
            {"token": other.token, "logprob": other.logprob, "bytes": list(other.raw)} for other in entry.top
        ],
    }
