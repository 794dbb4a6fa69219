"""What rank 0 tells the other ranks: how to begin, then each plan that it takes itself, in the same order.

Of ranks that share layers nothing comes back: what a rank has to say, the devices exchange. Of stages the last one
answers each plan with its output, by a socket of its own.
"""

from __future__ import annotations

import msgspec

from model_svc.engine.plan import RunnerOption, StepPlan


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First: who the rank is, where all meet (`place`, a file), its device, and how to make its runner.

    `staged`: ranks are stages, each with its layers.
    """

    rank: int
    size: int
    place: str
    patience_s: float
    device: str
    factory: str
    staged: bool
    model_path: str
    options: dict[str, RunnerOption]


class Step(msgspec.Struct, frozen=True, tag=True):
    """Submit a plan."""

    plan: StepPlan


class Masks(msgspec.Struct, frozen=True, tag=True):
    """Bring the masks that the last plan waits for, by slot."""

    masks: dict[int, bytes]


class UseIdleTime(msgspec.Struct, frozen=True, tag=True):
    """Do one part of what can wait."""


class BeginAdapter(msgspec.Struct, frozen=True, tag=True):
    """Begin to read an adapter."""

    name: str
    directory: str


class AdvanceAdapter(msgspec.Struct, frozen=True, tag=True):
    """Do a part of that, and tell all how far you are."""


class LeaveAdapter(msgspec.Struct, frozen=True, tag=True):
    """Give up the place of an adapter."""

    name: str


AdapterOrder = BeginAdapter | AdvanceAdapter | LeaveAdapter
Order = Begin | Step | Masks | UseIdleTime | AdapterOrder
