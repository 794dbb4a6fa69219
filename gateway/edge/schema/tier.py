"""service_tier -> the priority of a request; lower goes first where the replicas schedule by priority.

A key's own rank bounds it: who has one can put a request back, never before others'.
"""

from __future__ import annotations

from gateway.edge.schema.sampling import fail

PRIORITIES = {
    "auto": 0,
    "default": 0,
    "standard_only": 0,
    "flex": 10,
    "scale": -10,
    "priority": -10,
    "fast": -10,
    "ultrafast": -10,
}
MAX_PRIORITY = 1_000


def priority_of(tier: str | None, priority: int | None = None) -> int:
    """Return the priority that a tier or vLLM's `priority` means. Raises InvalidRequestError naming the field."""
    if priority is not None:
        if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise fail("priority", f"must lie between -{MAX_PRIORITY} and {MAX_PRIORITY}, not {priority}.")
        return priority
    if tier is not None and tier not in PRIORITIES:
        raise fail("service_tier", f"must be one of {', '.join(PRIORITIES)}, not {tier[:40]!r}.")
    return PRIORITIES.get(tier or "auto", 0)
