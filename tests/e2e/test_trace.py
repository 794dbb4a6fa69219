"""One request, one trace: a collector of the OTLP protocol sees the whole tree, whichever process a desk runs in."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.house import headrace_up, wait_for

MODEL = "smollm2-135m-instruct"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """What arrived at /v1/traces."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.url = ""

    def of_trace(self, trace_id: str) -> dict[str, Span]:
        """Return the spans of one trace by name."""
        return {span.name: span for span in self.spans if span.trace_id.hex() == trace_id}


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                raw = gzip.decompress(raw)
            request = ExportTraceServiceRequest.FromString(raw)
            found.spans += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Stay silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_every_desk_hangs_under_the_requests_span(collector: Collector, tmp_path: Path, smollm2_path: Path) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with (
        headrace_up(tmp_path, f"--model-dir={smollm2_path.parent}", environ=environ) as house,
        house.client() as client,
    ):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3}
        headers = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
        assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        desks = {f"{desk} {MODEL}" for desk in ("tokenizer", "prefix", "balancer", "model")}
        expected = desks | {f"chat {MODEL}"}
        wait_for(lambda: expected <= collector.of_trace(TRACE_ID).keys(), timeout_s=60, what=f"spans {expected}")
    spans = collector.of_trace(TRACE_ID)
    root = spans[f"chat {MODEL}"]
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    assert {name for name, span in spans.items() if span.parent_span_id == root.span_id} == desks
    attributes = {item.key: item.value for item in spans[f"model {MODEL}"].attributes}
    assert attributes["gen_ai.usage.output_tokens"].int_value == 3
    assert attributes["headrace.prefill_ms"].double_value > 0
    assert all(root.start_time_unix_nano <= spans[desk].start_time_unix_nano for desk in desks)
