"""What a prefill replica does of a request: it computes the prompt's whole blocks, and another goes on from there."""

from __future__ import annotations

import msgspec

from model_svc.engine.request import EngineRequest
from model_svc.open_requests import OpenRequest
from wire.block_hash import DIGEST_BYTES
from wire.messages import ID_BYTES, Closed, Job, Prefilled, Prompt, SamplingParams, TokenChunk


def prefill_of(request: EngineRequest) -> EngineRequest | None:
    """Return a request for the whole blocks of a prompt and nothing else; None if it has none to compute.

    The block that holds the last token is left out even if it is full: who draws the first token computes that one.
    """
    prompt, sampling = request.prompt, request.sampling
    num_blocks = (prompt.num_tokens - 1) // prompt.block_size
    if num_blocks < 1 or sampling.prompt_logprobs is not None:  # those need the logits of the whole prompt
        return None
    num_tokens = num_blocks * prompt.block_size
    whole = Prompt(
        token_ids=prompt.token_ids[: num_tokens * ID_BYTES],
        num_tokens=num_tokens,
        block_root=prompt.block_root,
        block_hashes=prompt.block_hashes[: num_blocks * DIGEST_BYTES],
        block_size=prompt.block_size,
        max_tokens=1,  # a draw ends it; nobody sees the token
        images=tuple(span for span in prompt.images if span.position < num_tokens),
    )
    return EngineRequest(
        request_id=request.request_id,
        prompt=whole,
        sampling=SamplingParams(temperature=0.0, deterministic=sampling.deterministic),
        attempt=request.attempt,
        priority=request.priority,
        tenant=request.tenant,
        adapter=request.adapter,
        pictures=request.pictures,
    )


def note_prefilled(request: OpenRequest, chunk: TokenChunk) -> None:
    """Take the engine's word that the prompt is computed, or will not be (then whoever goes on computes it)."""
    if chunk.finish_reason is None:
        return
    request.prefilled_tokens = chunk.num_prompt_tokens if chunk.finish_reason in ("length", "stop") else 0
    request.prefill_ms = sum(chunk.timings_ms.values())
    request.prefill_j = chunk.energy_j
    request.pass_on()


def next_job(request: OpenRequest) -> Job:
    """Return the envelope as it goes on, with the times of this replica."""
    times = {"prefill.wait": request.wait_ms, "prefill.work": round(request.prefill_ms, 3)}
    return msgspec.structs.replace(request.job, timings_ms=request.job.timings_ms | times)


def next_fields(request: OpenRequest, replica_id: str) -> dict[str, msgspec.Struct]:
    """Return what the record is to say for whoever goes on."""
    fields: dict[str, msgspec.Struct] = {
        "prefilled": Prefilled(replica_id=replica_id, num_tokens=request.prefilled_tokens, energy_j=request.prefill_j)
    }
    if request.ends_thinking and not request.closed_at:  # before the first token
        fields["closed"] = Closed(at=dict.fromkeys(range(request.num_choices), (0,)))
    return fields
