"""How prompts share the tokens that a step has for them: so that none waits for a huge one before it.

Those of better rank first. Of one rank the first in order gets half, so that it is never held up by how many come
behind it; the other half goes to those with the least left to compute, the first one among them. Prompts of one length
are thus computed one after another, which is the best for their mean, and a short one passes a long one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def split(budget: int, ranks: Sequence[int], rests: Sequence[int]) -> list[int]:
    """Return how many of its `rests` tokens each prompt gets, in the given order."""
    shares = [0] * len(rests)
    for _, group in groupby(range(len(rests)), key=lambda at: ranks[at]):
        members = list(group)
        first = members[0]
        shares[first] = min(rests[first], floor(budget))
        budget -= shares[first]
        for at in sorted(members, key=lambda at: rests[at]):
            more = min(rests[at] - shares[at], budget)
            shares[at] += more
            budget -= more
    return shares


def floor(budget: int) -> int:
    """Return what of a step's tokens is certain for the first prompt."""
    return -(-budget // 2)
