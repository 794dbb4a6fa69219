"""Shares the engine among tenants by tokens: start-time fair queueing (Goyal, Vin and Cheng, 1996).

Each sequence gets a start mark when it comes: the engine's virtual time, or where its tenant's earlier work ends, if
that is later. Work is counted in tokens: the prompt when it comes, the answer when it has ended. The smallest mark goes
first. So a tenant with long jobs moves its own marks into the future, not those of others; a tenant that was away
saves nothing up; with one tenant the order is that of arrival.
"""

from __future__ import annotations


class FairShare:
    """Virtual time, and where each tenant's work ends in it."""

    def __init__(self) -> None:
        self._now = 0
        self._ends: dict[str, int] = {}

    def mark(self, tenant: str, num_tokens: int) -> int:
        """Return the start mark of new work of a tenant."""
        start = max(self._now, self._ends.get(tenant, 0))
        self._ends[tenant] = start + num_tokens
        return start

    def start(self, mark: int) -> None:
        """Note that work of this mark has begun: time is there, and tenants whose work ended before are forgotten."""
        if mark > self._now:
            self._now = mark
            self._ends = {tenant: end for tenant, end in self._ends.items() if end > mark}

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Count tokens that nobody knew of when the work came."""
        self._ends[tenant] = max(self._now, self._ends.get(tenant, 0)) + num_tokens
