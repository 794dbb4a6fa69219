"""What a job's record and the entries of streams look like on the wire: names and encoded values in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wire import codec, topics
from wire.messages import RECORD_FIELDS, Job


def record_of(job: Job) -> str:
    """Return the key of a job's record."""
    return topics.job_record(job.partition, job.request_id)


def flat(fields: Mapping[str, Any]) -> list[bytes | str]:
    """Encode record fields as field, value, field, value."""
    words: list[bytes | str] = []
    for name, value in fields.items():
        if not isinstance(value, RECORD_FIELDS.get(name, ())):
            raise TypeError(f"{type(value).__name__} is no value for record field {name!r}")
        words += (name, codec.encode(value))
    return words


def decoded(names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, Any]:
    """Decode record fields; missing ones are absent."""
    pairs = zip(names, values, strict=True)
    return {name: codec.decode(raw, RECORD_FIELDS[name]) for name, raw in pairs if raw is not None}


def fields_of(entry: list[bytes]) -> dict[bytes, bytes]:
    """Undo the flat form of a stream entry; a field without a value is dropped."""
    return dict(zip(entry[::2], entry[1::2], strict=False))
