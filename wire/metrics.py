"""Prometheus metrics of a process's desks: how long jobs wait and take, how they leave, what waits on the streams.

One registry for the process, whatever desks it runs. Stream lengths are asked of the bus when somebody looks, so a
process that nobody scrapes pays for the counters alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple, TypeVar

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from redis.exceptions import ResponseError

from wire import topics
from wire.bus import Bus
from wire.bus.route import PASSING
from wire.errors import HeadraceError

M = TypeVar("M", Counter, Histogram)

REGISTRY = CollectorRegistry()

HANDED_ON, FINISHED, LOST, RETRIED, DEAD_LETTER = "handed_on", "finished", "lost", "retried", "dead_letter"
"""How a job leaves a desk; a job that fails leaves by the code of its error."""

_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_LABELS = ("desk", "model")
_LOOK_S = 2.0  # for all streams; a scraper waits for ten seconds, and must get what is known here

_wait = Histogram("headrace_desk_wait_seconds", "From publish to read.", _LABELS, buckets=_BUCKETS_S, registry=REGISTRY)
_work = Histogram("headrace_desk_work_seconds", "From read to left.", _LABELS, buckets=_BUCKETS_S, registry=REGISTRY)
_jobs = Counter("headrace_desk_jobs", "Jobs by how they left the desk.", (*_LABELS, "outcome"), registry=REGISTRY)
_moved = Counter("headrace_moved_requests", "Requests moved from lost replicas.", ("model",), registry=REGISTRY)
_kept = Counter(
    "headrace_moved_tokens",
    "Tokens that moved requests had already, so nobody made them again.",
    ("model",),
    registry=REGISTRY,
)
_trials = Counter(
    "headrace_trials", "Requests computed apart, since replicas that had them died.", ("model",), registry=REGISTRY
)
_process = Gauge("headrace_process", "1 for the process that answers, by its name.", ("name",), registry=REGISTRY)
_length = Gauge("headrace_stream_length", "Entries on a stream, read or not.", ("stream",), registry=REGISTRY)
_pending = Gauge("headrace_stream_pending", "Entries read and not yet left.", ("stream",), registry=REGISTRY)
_oldest = Gauge("headrace_stream_oldest_seconds", "Age of the oldest entry.", ("stream",), registry=REGISTRY)
_dead = Gauge("headrace_dead_letters", "Dead letters kept.", ("partition",), registry=REGISTRY)
_troubles = Gauge(
    "headrace_bus_troubles",
    "Entries lost, malformed or set aside, failures dropped, since the start.",
    ("kind",),
    registry=REGISTRY,
)


class _Followed(NamedTuple):
    bus: Bus
    stream: str
    group: str


class _Look(NamedTuple):
    """What one look at a stream has found; `partition` None of one beside the ring, which has no dead letters."""

    stream: str
    length: int
    num_pending: int
    oldest_s: float
    partition: int | None
    num_dead: int


_followed: list[_Followed] = []
_shown: list[CollectorRegistry] = []


def note_left(desk: str, model: str, outcome: str, *, wait_s: float = 0.0, work_s: float = 0.0) -> None:
    """Count a job that left a desk (or, RETRIED, went back to its stream)."""
    _labelled(_jobs, desk, model, outcome).inc()
    if outcome not in (RETRIED, DEAD_LETTER, LOST):
        _labelled(_wait, desk, model).observe(wait_s)
        _labelled(_work, desk, model).observe(work_s)


@cache
def _labelled(metric: M, *labels: str) -> M:
    """Remember what `labels` looks up under a lock each time."""
    return metric.labels(*labels)


def show_moves(model: str) -> None:
    """Begin with zeros: a rate needs them."""
    _moved.labels(model)
    _kept.labels(model)


def note_moved(model: str, num_tokens: int) -> None:
    """Count a request that was moved from a lost replica with the tokens that it had."""
    _moved.labels(model).inc()
    _kept.labels(model).inc(num_tokens)


def show_trials(model: str) -> None:
    """Begin with zero: a rate needs it."""
    _trials.labels(model)


def note_trial(model: str) -> None:
    """Count a request that a replica tries apart from others."""
    _trials.labels(model).inc()


def note_process(name: str) -> None:
    """Say what this process is called."""
    _process.labels(name).set(1)


@contextmanager
def follows(bus: Bus, stream: str, group: str) -> Iterator[None]:
    """Show the length of a stream while the block reads it."""
    entry = _Followed(bus, stream, group)
    _followed.append(entry)
    try:
        yield
    finally:
        _followed.remove(entry)


@contextmanager
def shows(registry: CollectorRegistry) -> Iterator[None]:
    """Show a service's own registry besides, while the block runs."""
    _shown.append(registry)
    try:
        yield
    finally:
        _shown.remove(registry)


async def render() -> bytes:
    """Return all metrics of this process; those of streams are absent while the bus is away, or silent."""
    looks: list[_Look] = []
    with anyio.move_on_after(_LOOK_S):
        for one in tuple(_followed):
            try:
                looks.append(await _look(one))
            except (*PASSING, HeadraceError, ResponseError):
                continue
    _show(looks)  # nobody waits from here on: of two scrapers at a time each would get half
    return b"".join(generate_latest(registry) for registry in (REGISTRY, *_shown))


async def _look(one: _Followed) -> _Look:
    """Asked once each: whoever scrapes comes again, and must not wait for a bus that is away."""
    stream, ask = one.stream, one.bus.route.once
    length = await ask(stream, "XLEN", stream)
    pending = await ask(stream, "XPENDING", stream, one.group)
    oldest = await ask(stream, "XRANGE", stream, "-", "+", "COUNT", 1)
    age_s = time.time() - int(oldest[0][0].partition(b"-")[0]) / 1e3 if oldest else 0.0
    partition, num_dead = topics.partition_of(stream), 0
    if partition is not None:
        dead = topics.dead_letter(partition)
        num_dead = await ask(dead, "XLEN", dead)
    return _Look(stream, length, pending[0], max(age_s, 0.0), partition, num_dead)


def _show(looks: Iterable[_Look]) -> None:
    for gauge in (_length, _pending, _oldest, _dead, _troubles):
        gauge.clear()
    for look in looks:
        _length.labels(look.stream).set(look.length)
        _pending.labels(look.stream).set(look.num_pending)
        _oldest.labels(look.stream).set(look.oldest_s)
        if look.partition is not None:
            _dead.labels(str(look.partition)).set(look.num_dead)
    counts = [bus.counts for bus in {id(one.bus): one.bus for one in _followed}.values()]
    for kind in ("lost", "malformed", "dead_letters", "failures_dropped"):
        _troubles.labels(kind).set(sum(getattr(count, f"num_{kind}") for count in counts))
