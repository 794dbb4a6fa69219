"""How the phases of a chunk's tokens are told to the edge."""

from __future__ import annotations

from collections.abc import Sequence

from wire.messages import ANSWER, PhaseMark

Runs = tuple[tuple[int, int], ...]  # (offset in the token, phase from there on), the first at offset 0


def phase_marks(tokens: Sequence[Runs]) -> tuple[int, tuple[PhaseMark, ...]]:
    """Return the phase of a chunk's first byte and the marks where it changes."""
    first = phase = tokens[0][0][1] if tokens else ANSWER
    marks: list[PhaseMark] = []
    for index, runs in enumerate(tokens):
        if len(runs) == 1 and runs[0][1] == phase:
            continue
        for offset, run in runs:
            if run != phase:
                marks.append(PhaseMark(index, offset, run))
                phase = run
    return first, tuple(marks)
