"""The post-processing of an answer: its model's text, its stop strings, its tools, its tenant's rules."""

from __future__ import annotations

from gateway.edge.flight import Flight
from gateway.edge.safety.safety import Safety
from gateway.edge.served import ServedModel
from gateway.postprocess.pipeline import Pipeline
from wire.messages import Request


def new_pipeline(request: Request, model: ServedModel, safety: Safety | None, flight: Flight, choice: int) -> Pipeline:
    """Return the pipeline of one choice."""
    policy = safety.for_request(request) if safety is not None else None
    calls = model.calls(request, policy, f"{flight.request_id}:{choice}")
    return Pipeline(
        model.vocabulary,
        stop=request.sampling.stop,
        min_tokens=request.sampling.min_tokens,
        shows_stop=request.sampling.include_stop,
        safety=policy,
        gate=safety.gate(policy, flight, choice) if safety is not None and policy is not None else None,
        logprobs=request.sampling.logprobs is not None,
        calls=calls,
        tags=calls.control_texts(model.card.tool_tags) if calls else {},
        continues=request.kind != "chat",
        include_reasoning=request.include_reasoning,
    )
