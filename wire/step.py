"""What a desk says of a job: where it goes next, and what is new about it; and how a job goes past desks.

A desk of this process that need not wait for anything does its part while the job is still a neighbour's. One that
needs nothing but the request may do it even before the job is on the bus: what is lost then was never admitted.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from wire.bus.neighbours import Neighbours
from wire.messages import RECORD_FIELDS, Job


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Where the job goes next, the record fields this desk adds, and the job itself if the desk changed it."""

    to: str
    fields: dict[str, Any] = {}
    job: Job | None = None


async def go_ahead(neighbours: Neighbours, job: Job, step: Step) -> tuple[Job, Step]:
    """Let the next desks do their part of a job that nobody has admitted yet; return how it comes in.

    The step's fields are all that is known of the job. Raises the HeadraceError that ends it.
    """
    do_ahead = neighbours.ahead(step.to)
    done: tuple[Job, Step] | None = await do_ahead(job, step.fields) if do_ahead is not None else None
    if done is None:
        return job, step
    job, further = done
    fields = step.fields | further.fields
    return go_past(neighbours, job, Step(to=further.to, fields=fields), fields, RECORD_FIELDS.keys())


def go_past(neighbours: Neighbours, job: Job, step: Step, record: dict[str, Any], names: Set[str]) -> tuple[Job, Step]:
    """Let the next desks do their part at once, as far as they can; return how the job goes on.

    `record`: what is known of the job; `names`: of which fields it is known, also that there are none.
    """
    record, names = record | step.fields, {*names, *step.fields}
    while (do_at_once := neighbours.past(step.to, names)) is not None:
        done: tuple[Job, Step] | None = do_at_once(job, record)
        if done is None:
            break
        job, further = done
        record |= further.fields
        names.update(further.fields)
        step = Step(to=further.to, fields=step.fields | further.fields)
    return job, step
