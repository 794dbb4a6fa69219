"""What a replica's span of a request says: tokens and times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span

from model_svc.open_requests import OpenRequest
from wire import telemetry


@contextmanager
def span_of(request: OpenRequest, replica_id: str) -> Iterator[None]:
    """Run a request in a span, which tells at the end what came of it.

    Where only the prompt is computed it is called `prefill`: the same trace has another one that answers.
    """
    job = request.job
    attributes: dict[str, telemetry.AttributeValue] = {
        telemetry.OPERATION_NAME: "chat",
        telemetry.REQUEST_MODEL: job.model,
        telemetry.REQUEST_ID: job.request_id,
        telemetry.ATTEMPT: job.attempt,
        telemetry.REPLICA_ID: replica_id,
    }
    with telemetry.span(f"model {job.model}", job=job, attributes=attributes) as span:
        yield
        _describe(span, request)


def _describe(span: Span, request: OpenRequest) -> None:
    """Put tokens and times of a request into its span."""
    logs = [item for item in request.logs.values() if item.first is not None and item.last is not None]
    if request.error is not None:
        telemetry.mark_error(span, request.error)
    if request.is_prefill:
        span.update_name(f"prefill {request.job.model}")
        span.set_attribute(telemetry.PREFILLED_TOKENS, request.prefilled_tokens)
        span.set_attribute(telemetry.WAIT_MS, request.wait_ms)
        span.set_attribute("headrace.prefill_ms", request.prefill_ms)
        if request.prefill_j is not None:
            span.set_attribute(telemetry.ENERGY_J, request.prefill_j)
    if not span.is_recording() or not logs:
        return
    span.set_attribute(telemetry.RESPONSE_MODEL, request.model)
    first, last = logs[0].first, logs[0].last
    assert first is not None and last is not None
    span.set_attribute(telemetry.USAGE_INPUT_TOKENS, first.num_prompt_tokens)
    span.set_attribute(telemetry.USAGE_CACHE_READ_INPUT_TOKENS, first.num_cached_tokens)
    if first.num_fetched_tokens:
        span.set_attribute(telemetry.FETCHED_TOKENS, first.num_fetched_tokens)
    span.set_attribute(telemetry.USAGE_OUTPUT_TOKENS, sum(item.num_tokens for item in logs))
    reasoning = sum(item.last.num_reasoning_tokens for item in logs if item.last is not None)
    span.set_attribute(telemetry.USAGE_REASONING_OUTPUT_TOKENS, reasoning)
    reasons = tuple(item.last.finish_reason or "" for item in logs if item.last is not None)
    span.set_attribute(telemetry.RESPONSE_FINISH_REASONS, reasons)
    span.set_attribute(telemetry.WAIT_MS, request.wait_ms)
    if request.energy_j is not None:
        span.set_attribute(telemetry.ENERGY_J, request.energy_j)
    for phase, milliseconds in last.timings_ms.items():
        if "." not in phase:
            span.set_attribute(f"headrace.{phase}_ms", milliseconds)
