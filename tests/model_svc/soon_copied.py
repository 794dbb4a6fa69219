"""Copies from the second tier that always pay: else a trial decides, and with it whoever else computes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from model_svc.runner.tier_copies import TierCopies


@pytest.fixture(autouse=True, scope="module")
def soon_copied() -> Iterator[Callable[[TierCopies], float]]:
    """Make the trial of copies, and say that they take next to no time; returns what says what they took."""
    measure = TierCopies.time_ms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TierCopies, "time_ms", lambda copies: min(measure(copies), 1e-9))
        yield measure
