"""Prometheus metrics of one edge, in a registry of its own: GenAI histograms, headrace_* counters and phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.edge.admission import Admission
from gateway.edge.generation import Generation
from gateway.edge.inflight import InFlight
from gateway.edge.readiness import Replicas
from gateway.edge.room import Room
from gateway.edge.state import State
from wire import telemetry
from wire.errors import HeadraceError

_LABELS = (
    "gen_ai_operation_name",
    "gen_ai_provider_name",
    "gen_ai_request_model",
    "gen_ai_response_model",
    "error_type",
)
_PHASE_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_PHASES = ("queue", "tokenize", "match", "fetch", "prefill", "decode")


class Metrics:
    """What /metrics shows."""

    def __init__(
        self, models: tuple[str, ...], admission: Admission, inflight: InFlight, replicas: Replicas, room: Room
    ) -> None:
        self.registry = CollectorRegistry()
        self._duration = self._histogram(telemetry.SERVER_REQUEST_DURATION, telemetry.REQUEST_DURATION_BUCKETS_S)
        self._first = self._histogram(telemetry.SERVER_TIME_TO_FIRST_TOKEN, telemetry.TIME_TO_FIRST_TOKEN_BUCKETS_S)
        self._per_token = self._histogram(
            telemetry.SERVER_TIME_PER_OUTPUT_TOKEN, telemetry.TIME_PER_OUTPUT_TOKEN_BUCKETS_S
        )
        counter = partial(Counter, registry=self.registry)
        phases = partial(Histogram, buckets=_PHASE_BUCKETS_S, registry=self.registry)
        self._phase = phases("headrace_phase_seconds", "Time of one phase of a request.", ("phase", "model"))
        self._tokens = counter("headrace_tokens", "Tokens by kind.", ("kind", "model"))
        self._energy = counter("headrace_energy_joules", "Energy that requests used, where it is metered.", ("model",))
        self._ended = counter("headrace_requests", "Requests by how they ended.", ("end", "model"))
        self._thinking = counter("headrace_reasoning_tokens", "Thinking tokens by effort.", ("effort", "model"))
        self._thinking_ended = counter(
            "headrace_reasoning_ended",
            "Requests that thought, by what ended it: the model, the budget, the client or the end of the answer.",
            ("ended_by", "effort", "model"),
        )
        self._cancelled = counter("headrace_cancels", "Cancels sent to the ring.")
        self._resubscribed = counter("headrace_resubscribes", "Gaps in tokens asked for again.")
        self._safety = counter("headrace_safety_hits", "What safety rules did.", ("action",))
        self._held = phases(
            "headrace_safety_held_seconds",
            "For each answer under safety rules, the longest time that text waited for them.",
            ("model",),
        )
        self._judges = counter("headrace_safety_judge_failures", "Texts that a safety rule's judge could not judge.")
        self._faults = Gauge(
            "headrace_safety_policy_faults", "Policy files that changed and could not be read.", registry=self.registry
        )
        self._ending = Gauge(
            "headrace_ending_requests",
            "Requests whose answer is over, whose bill and turn are being put away.",
            registry=self.registry,
        )
        for model in models:  # a rate needs a zero to begin with
            self._thinking.labels("default", model)
            self._thinking_ended.labels("model", "default", model)
            self._held.labels(model)
            self._energy.labels(model)
        for action in ("block", "redact", "flag"):
            self._safety.labels(action)
        self.registry.register(State(replicas.models, admission, inflight, replicas, room))

    def note_cancel(self) -> None:
        """Count a cancel."""
        self._cancelled.inc()

    def note_resubscribe(self) -> None:
        """Count a gap."""
        self._resubscribed.inc()

    def note_safety(self, action: str) -> None:
        """Count what a safety rule did."""
        self._safety.labels(action).inc()

    def note_judge_failure(self) -> None:
        """Count a text without a verdict."""
        self._judges.inc()

    def note_policy_faults(self, count: int) -> None:
        """Tell how many policy files are faulty now."""
        self._faults.set(count)

    def note_ending(self, count: int) -> None:
        """Tell how many requests are being put away now."""
        self._ending.set(count)

    def note_end(self, generation: Generation, operation: str) -> None:
        """Take over the numbers of a request that ended, however it ended."""
        model, bill = generation.request.model, generation.bill
        error = generation.error
        labels = (operation, "headrace", model, model, error.code if error else "")
        duration_s = time.perf_counter() - generation.started_at
        self._duration.labels(*labels).observe(duration_s)
        if generation.first_token_at is not None:
            self._first.labels(*labels).observe(bill.ttft_ms / 1e3)
            if bill.tokens_per_second:
                self._per_token.labels(*labels).observe(1 / bill.tokens_per_second)
            for phase in _PHASES:
                self._phase.labels(phase, model).observe(getattr(bill, f"{phase}_ms") / 1e3)
        answer = bill.completion_tokens - bill.reasoning_tokens
        counts = (bill.prompt_tokens, bill.cached_tokens, bill.fetched_tokens, bill.reasoning_tokens, answer)
        for kind, count in zip(("prompt", "cached", "fetched", "reasoning", "answer"), counts, strict=True):
            self._tokens.labels(kind, model).inc(count)
        if bill.energy_j is not None:
            self._energy.labels(model).inc(bill.energy_j)
        self._ended.labels(generation.outcome, model).inc()
        if bill.held_chars is not None:
            self._held.labels(model).observe(bill.held_ms / 1e3)
        if bill.reasoning_tokens or bill.reasoning_ended_by:
            effort = generation.request.effort or ("default" if generation.request.budget_tokens is None else "tokens")
            self._thinking.labels(effort, model).inc(bill.reasoning_tokens)
            self._thinking_ended.labels(bill.reasoning_ended_by or "client_gone", effort, model).inc()

    @contextmanager
    def time_embeddings(self, model: str, operation: str) -> Iterator[Callable[[int], None]]:
        """Count and time a request for vectors or scores; the block tells how many tokens it had, or fails."""
        started, tokens, end = time.perf_counter(), 0, "stop"

        def note(num_tokens: int) -> None:
            nonlocal tokens
            tokens = num_tokens

        try:
            yield note
        except HeadraceError as error:
            end = error.code
            raise
        except BaseException:
            end = "client_gone"
            raise
        finally:
            labels = (operation, "headrace", model, model, "" if end == "stop" else end)
            self._duration.labels(*labels).observe(time.perf_counter() - started)
            self._tokens.labels("prompt", model).inc(tokens)
            self._ended.labels(end, model).inc()

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        metric = name.replace(".", "_") + "_seconds"
        return Histogram(metric, f"OpenTelemetry's {name}.", _LABELS, buckets=buckets, registry=self.registry)
