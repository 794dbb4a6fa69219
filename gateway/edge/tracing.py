"""The root span of a request, with OpenTelemetry's GenAI attributes; prompts and outputs are never among them."""

from __future__ import annotations

from contextlib import AbstractContextManager

from opentelemetry.trace import Span, SpanContext, SpanKind
from starlette.datastructures import Headers

from gateway.edge.generation import Generation
from wire import telemetry
from wire.messages import Request


def request_span(
    request: Request, operation: str, *, stream: bool, parent: SpanContext | None
) -> AbstractContextManager[Span]:
    """Open the span `chat <model>`."""
    sampling, reference = request.sampling, request.conversation
    attributes: dict[str, telemetry.AttributeValue | None] = {
        telemetry.OPERATION_NAME: operation,
        telemetry.PROVIDER_NAME: "headrace",
        telemetry.OUTPUT_TYPE: "text",
        telemetry.REQUEST_MODEL: request.model,
        telemetry.REQUEST_STREAM: stream,
        telemetry.REQUEST_MAX_TOKENS: sampling.max_tokens,
        telemetry.REQUEST_TEMPERATURE: sampling.temperature,
        telemetry.REQUEST_TOP_P: sampling.top_p,
        telemetry.REQUEST_TOP_K: sampling.top_k or None,
        telemetry.REQUEST_SEED: sampling.seed,
        telemetry.REQUEST_FREQUENCY_PENALTY: sampling.frequency_penalty or None,
        telemetry.REQUEST_PRESENCE_PENALTY: sampling.presence_penalty or None,
        telemetry.REQUEST_CHOICE_COUNT: sampling.n if sampling.n > 1 else None,
        telemetry.REQUEST_REASONING_LEVEL: request.effort,
        telemetry.CONVERSATION_ID: reference.conversation_id if reference else None,
        telemetry.REQUEST_PREVIOUS_RESPONSE_ID: reference.previous_response_id if reference else None,
    }
    given = {name: value for name, value in attributes.items() if value is not None}
    return telemetry.span(f"{operation} {request.model}", parent=parent, attributes=given, kind=SpanKind.SERVER)


def note_outcome(span: Span, generation: Generation) -> None:
    """Add what the request used, and the error it ended with."""
    bill, reference = generation.bill, generation.request.conversation
    if not span.is_recording():
        return
    span.set_attribute(telemetry.REQUEST_ID, generation.job.request_id)
    span.set_attribute(telemetry.RESPONSE_MODEL, generation.request.model)
    span.set_attribute(telemetry.RESPONSE_FINISH_REASONS, generation.finish_reasons)
    span.set_attribute(telemetry.USAGE_INPUT_TOKENS, bill.prompt_tokens)
    span.set_attribute(telemetry.USAGE_OUTPUT_TOKENS, generation.num_tokens)
    span.set_attribute(telemetry.USAGE_CACHE_READ_INPUT_TOKENS, bill.cached_tokens)
    span.set_attribute(telemetry.USAGE_REASONING_OUTPUT_TOKENS, bill.reasoning_tokens)
    if generation.energy_j is not None:
        span.set_attribute(telemetry.ENERGY_J, generation.energy_j)
    if reference is not None:
        span.set_attribute(telemetry.RESPONSE_ID, reference.response_id)
    if generation.first_token_at is not None:
        span.set_attribute(telemetry.RESPONSE_TIME_TO_FIRST_CHUNK, bill.ttft_ms / 1e3)
    if generation.error is not None:
        telemetry.mark_error(span, generation.error)


def trace_headers(headers: Headers) -> SpanContext | None:
    """Return the caller's trace context; a malformed one, or a header that came twice, counts as absent."""
    parents = headers.getlist("traceparent")
    return telemetry.extract(parents[0], headers.get("tracestate", "")) if len(parents) == 1 else None
