"""The root span of a request, and trace headers that clients send."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.gateway.edge.asks import ASK, CHAT, lines_until, opened, streamed, whole
from tests.ring import Ring
from tests.script import Script, say
from wire import telemetry
from wire.errors import InternalError

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def root(spans: InMemorySpanExporter) -> ReadableSpan:
    (found,) = (span for span in spans.get_finished_spans() if span.name == "chat tiny")
    return found


async def test_the_root_span_has_genai_attributes_and_the_desks_are_below_it(
    spans: InMemorySpanExporter, ring: Ring
) -> None:
    ring.replica.play(*say("one ", "two "))
    await streamed(ring, temperature=0.5, max_tokens=9, seed=3)
    await ring.until_idle()
    top = root(spans)
    assert top.attributes is not None
    wanted = {
        telemetry.OPERATION_NAME: "chat",
        telemetry.REQUEST_MODEL: "tiny",
        telemetry.REQUEST_TEMPERATURE: 0.5,
        telemetry.REQUEST_MAX_TOKENS: 9,
        telemetry.REQUEST_SEED: 3,
        telemetry.REQUEST_STREAM: True,
        telemetry.USAGE_OUTPUT_TOKENS: 3,
        telemetry.RESPONSE_FINISH_REASONS: ("stop",),
    }
    assert {name: top.attributes[name] for name in wanted} == wanted
    below = {
        span.name for span in spans.get_finished_spans() if span.parent and span.parent.span_id == top.context.span_id
    }
    assert below == {"tokenizer tiny", "prefix tiny", "balancer tiny"}
    assert "hi" not in str([span.attributes for span in spans.get_finished_spans()]).split("'")


async def test_a_conversation_passes_the_history_desk_too(spans: InMemorySpanExporter, ring: Ring) -> None:
    ring.replica.play(*say("one "))
    body = {"model": "tiny", "input": "hello", "store": True}
    assert (await ring.http.post("/v1/responses", json=body)).status_code == 200
    await ring.until_idle()
    top = root(spans)
    assert top.context is not None
    below = {one.name for one in spans.get_finished_spans() if one.parent and one.parent.span_id == top.context.span_id}
    assert below >= {"history tiny", "tokenizer tiny", "prefix tiny", "balancer tiny"}


async def test_a_trace_of_the_caller_goes_on(spans: InMemorySpanExporter, ring: Ring) -> None:
    await ring.http.post(CHAT, json=ASK, headers={"traceparent": PARENT})
    await ring.until_idle()
    assert f"{root(spans).context.trace_id:032x}" == TRACE


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", "x")],
        [("traceparent", "")],
        [("traceparent", f"00-{'0' * 32}-{'0' * 16}-01")],
        [("traceparent", PARENT.upper())],
        [("traceparent", "ff" + PARENT[2:])],
        [("traceparent", PARENT + "a" * 60)],
        [("traceparent", PARENT), ("traceparent", PARENT)],
        [("traceparent", PARENT), ("tracestate", "a=" + "b" * 20_000)],
    ],
)
async def test_a_malformed_trace_header_starts_a_new_trace(
    spans: InMemorySpanExporter, ring: Ring, headers: list[tuple[str, str]]
) -> None:
    response = await ring.http.post(CHAT, json=ASK, headers=headers)
    assert response.status_code == 200
    assert "traceparent" not in response.headers
    await ring.until_idle()
    malformed = headers[-1][0] != "tracestate"
    assert (f"{root(spans).context.trace_id:032x}" != TRACE) == malformed


async def test_a_failed_request_is_marked_in_its_span(spans: InMemorySpanExporter, ring: Ring) -> None:
    ring.replica.script = Script(say("one "), error=InternalError("the engine failed"))
    await streamed(ring)
    await ring.until_idle()
    top = root(spans)
    assert top.attributes is not None
    assert top.attributes[telemetry.ERROR_TYPE] == "internal_error"
    assert not top.status.is_ok


async def test_a_broken_off_stream_has_its_usage_in_the_span(spans: InMemorySpanExporter, ring: Ring) -> None:
    ring.replica.play(*say("one ", "two "), finish=None)
    async with opened(ring) as response:
        await lines_until(response, "two ")
    await ring.replica.cancelled()
    await ring.until_idle()
    top = root(spans)
    assert top.attributes is not None
    assert top.attributes[telemetry.USAGE_OUTPUT_TOKENS] == 2


async def test_tracing_that_is_off_costs_no_header(ring: Ring) -> None:
    await whole(ring)
    assert ring.replica.requests[0].job.traceparent == ""
