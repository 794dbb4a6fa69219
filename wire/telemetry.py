"""Tracing: one span per request and desk, W3C context in the envelope, OTLP over HTTP by the standard variables.

Off by default and then next to free: the caller's context passes through untouched. The GenAI names are our own
constants, because the conventions are still moving and the published package lags behind them.
Source: https://github.com/open-telemetry/semantic-conventions-genai, https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from wire.errors import HeadraceError
from wire.messages import Job

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
CONVERSATION_ID = "gen_ai.conversation.id"
OUTPUT_TYPE = "gen_ai.output.type"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_REASONING_LEVEL = "gen_ai.request.reasoning.level"
REQUEST_PREVIOUS_RESPONSE_ID = "gen_ai.request.previous_response.id"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
USAGE_REASONING_OUTPUT_TOKENS = "gen_ai.usage.reasoning.output_tokens"
ERROR_TYPE = "error.type"

SERVER_REQUEST_DURATION = "gen_ai.server.request.duration"
SERVER_TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
SERVER_TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"
REQUEST_DURATION_BUCKETS_S = tuple(0.01 * 2**power for power in range(14))
TIME_TO_FIRST_TOKEN_BUCKETS_S = tuple(
    float(bound) for bound in ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10".split()
)
TIME_PER_OUTPUT_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

REQUEST_ID = "headrace.request.id"
ATTEMPT = "headrace.attempt"
FETCHED_TOKENS = "headrace.fetched_tokens"
PREFILLED_TOKENS = "headrace.prefilled_tokens"
REPLICA_ID = "headrace.replica.id"
WAIT_MS = "headrace.wait_ms"
WORK_MS = "headrace.work_ms"
ENERGY_J = "headrace.energy_j"

AttributeValue = str | bool | int | float | tuple[str, ...] | tuple[int, ...] | tuple[float, ...]

# Version ff is forbidden; a later version may append fields, version 00 may not.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LAST_SPANS_S = 1.5
_MAX_TRACEPARENT, _MAX_TRACESTATE = 512, 512

_provider: TracerProvider | None = None
_exporter: SpanExporter | None = None


def setup(service_name: str, *, environ: Mapping[str, str] | None = None, exporter: SpanExporter | None = None) -> bool:
    """Start exporting spans if the OTEL_ variables name an endpoint (or `exporter` is given); True if tracing is on.

    The exporter sends from a thread of its own; a collector that is down costs dropped spans, never a slow request.
    """
    global _provider, _exporter
    environ = os.environ if environ is None else environ
    if exporter is None and not _wanted(environ):
        return False
    shutdown()
    # Imported here: 0.1 s of start-up that a process without tracing need not pay.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    name = environ.get("OTEL_SERVICE_NAME") or service_name
    provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
    if exporter is None:
        exporter = OTLPSpanExporter()
        provider.add_span_processor(BatchSpanProcessor(exporter))
    else:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    _provider, _exporter = provider, exporter
    return True


def shutdown() -> None:
    """Send what is left, as far as the collector takes it at once, and stop exporting."""
    global _provider, _exporter
    provider, exporter, _provider, _exporter = _provider, _exporter, None, None
    if provider is None or exporter is None:
        return
    # The exporter would go on trying for ten seconds and more, and a process that ends has no time for that.
    last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    last.start()
    last.join(_LAST_SPANS_S)
    if last.is_alive():
        exporter.shutdown()  # ends the wait between two tries, and with it both threads
        last.join(_LAST_SPANS_S)


def _wanted(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return False
    return bool(
        environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "otlp"
    )


def extract(traceparent: str, tracestate: str = "") -> SpanContext | None:
    """Read a W3C context; None (so: a new trace) if it is absent or malformed in any way."""
    found = _TRACEPARENT.fullmatch(traceparent) if len(traceparent) <= _MAX_TRACEPARENT else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more):
        return None
    state = TraceState.from_header([tracestate]) if 0 < len(tracestate) <= _MAX_TRACESTATE else TraceState()
    context = SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16) & 1),
        trace_state=state,
    )
    return context if context.is_valid else None


def inject(span: Span | None = None) -> tuple[str, str]:
    """Return traceparent and tracestate of a span (of the current one); empty if it belongs to no trace."""
    context = (span or trace.get_current_span()).get_span_context()
    if not context.is_valid:
        return "", ""
    flags = int(context.trace_flags) & 1
    header = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"
    return header, context.trace_state.to_header() if context.trace_state else ""


def span(
    name: str,
    *,
    job: Job | None = None,
    parent: SpanContext | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
) -> AbstractContextManager[Span]:
    """Open a span under a job's context, a given parent, or whatever is current; an error inside marks it.

    Prompts and outputs never belong into attributes.
    """
    if job is not None:
        parent = extract(job.traceparent, job.tracestate)
    if _provider is None:
        return nullcontext(NonRecordingSpan(parent) if parent is not None else trace.INVALID_SPAN)
    return _recorded(_provider, name, parent, attributes, kind)


@contextmanager
def _recorded(
    provider: TracerProvider,
    name: str,
    parent: SpanContext | None,
    attributes: Mapping[str, AttributeValue] | None,
    kind: SpanKind,
) -> Iterator[Span]:
    context = trace.set_span_in_context(NonRecordingSpan(parent)) if parent is not None else None
    with provider.get_tracer("headrace").start_as_current_span(
        name,
        context=context,
        kind=kind,
        attributes=attributes,
        record_exception=False,  # a traceback may quote the prompt
        set_status_on_exception=False,
    ) as opened:
        try:
            yield opened
        except Exception as error:
            mark_error(opened, error)
            raise


def mark_error(opened: Span, error: BaseException) -> None:
    """Mark a span failed with the error's stable code, or its class for an error that is not ours."""
    opened.set_attribute(ERROR_TYPE, error.code if isinstance(error, HeadraceError) else type(error).__qualname__)
    opened.set_status(StatusCode.ERROR)
