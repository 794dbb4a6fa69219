"""Tracing: off unless asked, W3C contexts read with distrust, spans that say nothing of what was said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from wire import telemetry
from wire.errors import NotFoundError

GOOD = "00-" + "0123456789abcdef" * 2 + "-0123456789abcdef-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    assert telemetry.setup("test", exporter=exporter)
    yield exporter
    telemetry.shutdown()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_tracing_is_off_unless_the_standard_variables_ask_for_it(environ: dict[str, str]) -> None:
    assert not telemetry.setup("test", environ=environ)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_an_endpoint_turns_tracing_on_and_a_collector_that_is_down_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(telemetry, "_LAST_SPANS_S", 0.1)
    before = set(threading.enumerate())
    assert telemetry.setup("test")
    with telemetry.span("chat m"):
        pass
    threads = set(threading.enumerate()) - before
    assert threads
    telemetry.shutdown()
    for thread in threads | set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread.name


def test_a_collector_that_never_answers_slows_neither_spans_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    exporting, stopped = list[str](), list[str]()
    told_to_stop = threading.Event()

    def export(_self: OTLPSpanExporter, _spans: Any) -> SpanExportResult:
        exporting.append(threading.current_thread().name)
        told_to_stop.wait()
        return SpanExportResult.FAILURE

    def stop(_self: OTLPSpanExporter) -> None:
        stopped.append(threading.current_thread().name)
        told_to_stop.set()

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(telemetry, "_LAST_SPANS_S", 0.1)
    monkeypatch.setattr(OTLPSpanExporter, "export", export)
    monkeypatch.setattr(OTLPSpanExporter, "shutdown", stop)
    before = set(threading.enumerate())
    assert telemetry.setup("test")
    for _ in range(3_000):  # more than the queue takes: the rest is dropped
        with telemetry.span("chat m"):
            pass
    telemetry.shutdown()
    me = threading.current_thread().name
    assert me not in exporting
    assert stopped[0] == me  # by us, when the time for the last spans was over, and not when the exporter gave up
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


def test_spans_go_over_http_to_the_endpoint_of_the_standard_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[tuple[str, str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        collecting = threading.Thread(target=server.handle_request)
        collecting.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setattr(telemetry, "_LAST_SPANS_S", 60.0)
        assert telemetry.setup("headrace-edge")
        with telemetry.span("chat m"):
            pass
        telemetry.shutdown()
        collecting.join(60)
    [(path, kind, body)] = posts
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    assert b"headrace-edge" in body
    assert b"chat m" in body


def test_without_tracing_the_caller_s_context_passes_through_untouched(make_job: Any) -> None:
    with telemetry.span("history m", job=make_job(traceparent=GOOD, tracestate="a=b")) as span:
        assert not span.is_recording()
        assert telemetry.inject(span) == (GOOD, "a=b")
    with telemetry.span("history m", job=make_job()) as span:
        assert telemetry.inject(span) == ("", "")


def test_a_child_span_belongs_to_the_job_s_trace(spans: InMemorySpanExporter, make_job: Any) -> None:
    with telemetry.span("history m", job=make_job(traceparent=GOOD, tracestate="a=b")) as span:
        traceparent, tracestate = telemetry.inject(span)
        assert telemetry.inject() == (traceparent, tracestate)
    assert traceparent.split("-")[1] == GOOD.split("-")[1]
    assert traceparent.split("-")[2] != GOOD.split("-")[2]
    assert tracestate == "a=b"
    [finished] = spans.get_finished_spans()
    assert finished.parent is not None
    assert f"{finished.parent.span_id:016x}" == GOOD.split("-")[2]


def test_a_context_that_asks_not_to_be_sampled_is_not(spans: InMemorySpanExporter) -> None:
    with telemetry.span("history m", parent=telemetry.extract(GOOD[:-1] + "0")) as span:
        assert not span.is_recording()
        assert telemetry.inject(span)[0].endswith("-00")
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "x",
        GOOD.upper().replace("00-", "00-", 1),
        "00-" + "0" * 32 + "-0123456789abcdef-01",
        GOOD[:36] + "0" * 16 + "-01",
        "ff" + GOOD[2:],
        GOOD + "0" * 60,
        GOOD + "-" + "0" * 60,
        GOOD[:-1],
        GOOD + "\n",
        GOOD + "," + GOOD,
        GOOD.replace("a", "g"),
        GOOD.replace("a", "٣"),
        "01" + GOOD[2:] + "-" + "x" * 1_000,
    ],
)
def test_a_malformed_traceparent_means_a_new_trace(
    traceparent: str, spans: InMemorySpanExporter, make_job: Any
) -> None:
    assert telemetry.extract(traceparent) is None
    with telemetry.span("history m", job=make_job(traceparent=traceparent)) as span:
        fresh = telemetry.inject(span)[0]
    assert telemetry.extract(fresh) is not None
    assert fresh.split("-")[1] != GOOD.split("-")[1]
    [finished] = spans.get_finished_spans()
    assert finished.parent is None


def test_a_later_version_with_more_fields_is_read_by_its_known_part() -> None:
    context = telemetry.extract("01" + GOOD[2:] + "-more")
    assert context is not None
    assert f"{context.trace_id:032x}" == GOOD.split("-")[1]


@pytest.mark.parametrize("tracestate", ["x" * 20_000, "=,=,", "a=b" * 200, "ä=1"])
def test_a_bad_tracestate_is_dropped_and_the_trace_kept(tracestate: str) -> None:
    context = telemetry.extract(GOOD, tracestate)
    assert context is not None
    assert context.trace_state.to_header() == ""


@given(st.text(), st.text())
def test_no_header_at_all_can_raise(traceparent: str, tracestate: str) -> None:
    telemetry.extract(traceparent, tracestate)
    telemetry.extract(GOOD, tracestate)


def test_an_error_marks_the_span_by_code_or_class_without_its_message(spans: InMemorySpanExporter) -> None:
    for error in (NotFoundError("secret"), ZeroDivisionError("secret")):
        with pytest.raises(type(error)), telemetry.span("history m"):
            raise error
    codes = [(span.attributes or {})["error.type"] for span in spans.get_finished_spans()]
    assert codes == ["not_found", "ZeroDivisionError"]
    for span in spans.get_finished_spans():
        assert span.status.status_code is StatusCode.ERROR
        assert "secret" not in span.to_json()


def test_the_service_is_named_by_the_standard_variable_first() -> None:
    exporter = InMemorySpanExporter()
    telemetry.setup("headrace-edge", environ={"OTEL_SERVICE_NAME": "mine"}, exporter=exporter)
    with telemetry.span("chat m"):
        pass
    telemetry.shutdown()
    [span] = exporter.get_finished_spans()
    assert span.resource.attributes["service.name"] == "mine"


def test_the_buckets_are_those_of_the_conventions() -> None:
    assert telemetry.REQUEST_DURATION_BUCKETS_S[0] == 0.01
    assert telemetry.REQUEST_DURATION_BUCKETS_S[-1] == 81.92
    assert telemetry.TIME_TO_FIRST_TOKEN_BUCKETS_S[:4] == (0.001, 0.005, 0.01, 0.02)
    for buckets in (telemetry.TIME_TO_FIRST_TOKEN_BUCKETS_S, telemetry.TIME_PER_OUTPUT_TOKEN_BUCKETS_S):
        assert list(buckets) == sorted(buckets)
