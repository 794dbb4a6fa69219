"""Names of every key and stream. All keys of a partition carry its hash tag, so a hand-off touches one cluster slot."""

from __future__ import annotations

PREFIX = "hr"


def _tag(partition: int) -> str:
    return f"{PREFIX}:{{p{partition}}}"


def job_record(partition: int, request_id: str) -> str:
    """The hash that holds everything that grows about a request."""
    return f"{_tag(partition)}:job:{request_id}"


def events(partition: int, response_id: str) -> str:
    """The events of a response that is made in the background, so that any edge can send them again."""
    return f"{_tag(partition)}:events:{response_id}"


def background(partition: int) -> str:
    """Which responses are made in the background, each with the time until which its edge has promised to live."""
    return f"{_tag(partition)}:background"


def history(partition: int) -> str:
    """Jobs, turns and calls for the history desk."""
    return f"{_tag(partition)}:history"


def tokenizer(partition: int, model: str) -> str:
    """Jobs for the tokenizer desk of a model."""
    return f"{_tag(partition)}:tokenizer:{model}"


def prefix(partition: int, model: str) -> str:
    """Jobs for the prefix desk of a model."""
    return f"{_tag(partition)}:prefix:{model}"


def balancer(partition: int, model: str) -> str:
    """Jobs for the balancer of a model."""
    return f"{_tag(partition)}:balancer:{model}"


def replica(partition: int, replica_id: str) -> str:
    """Jobs placed on a replica; an entry stays until its request ends, so the stream is the replica's open work."""
    return f"{_tag(partition)}:replica:{replica_id}"


def dead_letter(partition: int) -> str:
    """Jobs that failed three times."""
    return f"{_tag(partition)}:dead"


def control(replica_id: str) -> str:
    """Cancel, EndReasoning, Resubscribe and ReportBlocks for one replica. Own slot: never part of a hand-off."""
    return f"{PREFIX}:control:{replica_id}"


def edge(edge_id: str) -> str:
    """The inbox of one edge process: TokenBatch, Failure, HistoryReply."""
    return f"{PREFIX}:edge:{edge_id}"


def balancer_inbox(name: str) -> str:
    """What edges answer one balancer process: TokenReport."""
    return f"{PREFIX}:balancer:{name}"


def status(model: str) -> str:
    """Heartbeats of a model's replicas."""
    return f"{PREFIX}:status:{model}"


def kv_events(model: str) -> str:
    """BlocksStored and BlocksEvicted of a model's replicas."""
    return f"{PREFIX}:kv:{model}"


def adapters(model: str) -> str:
    """Which adapters of a model are wanted at run time (`wire.adapter_record`)."""
    return f"{PREFIX}:{{adapters:{model}}}:record"


def adapter_news(model: str) -> str:
    """AdaptersChanged, whenever that changes."""
    return f"{PREFIX}:{{adapters:{model}}}:news"


def safety_audit() -> str:
    """What safety rules did: SafetyEvent, bounded, the oldest fall out."""
    return f"{PREFIX}:safety"


def secret(name: str) -> str:
    """A random secret shared by the deployment."""
    return f"{PREFIX}:secret:{name}"


def partition_of(stream: str) -> int | None:
    """The partition whose hash tag a key carries, or None for keys beside the ring."""
    start = f"{PREFIX}:{{p"
    if not stream.startswith(start):
        return None
    number = stream[len(start) : stream.find("}", len(start))]
    return int(number) if number.isdecimal() else None


def is_replica(stream: str) -> bool:
    """Whether a stream holds the open work of a replica (never claimed, see `replica`)."""
    return partition_of(stream) is not None and stream.split("}", 1)[1].startswith(":replica:")
