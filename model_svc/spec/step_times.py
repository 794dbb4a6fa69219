"""What it costs on this machine to check guesses: measured step by step, never believed for ever.

A step that checks guesses is longer than a plain one, by rows that must be computed and, with steps in flight, by the
host's part that nothing hides. How much differs a hundredfold: on a GPU sixty rows cost little more than one, on a CPU
each costs its share. So the extra time is measured by how many sequences share the step and how many guesses it checks,
and where nothing has been measured yet, a first step may find out with few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise

_WEIGHT = 0.2  # of a new value in a running mean
_FIRST_SHARE = 0.25  # of a plain step, for a guess or two of each sequence, until it has been measured
_FIRST_ROWS = 4  # or one for each sequence: what a first step checks
_SEEN = 3  # measurements, of which the shortest counts: first steps of a kind compile, record and load
_STALE = 512  # checking steps; meanwhile contexts have grown and with them all steps
_STALE_ROUGH = 32  # the same for a plain time taken beside checking steps


class _Mean:
    """A running mean that begins with the least of some values; one that was held up counts as twice the usual."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1
        if self.count == 1:
            self.value = value
        elif self.count <= _SEEN:
            self.value = min(value, self.value)
        else:
            self.value += _WEIGHT * (min(value, 2 * self.value or value) - self.value)


class _Cell:
    """Steps of about as many guesses: how many, and what they took longer than plain ones."""

    __slots__ = ("extra_ms", "rows", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.rows = _Mean()
        self.extra_ms = _Mean()


class _Plain:
    """Steps without guesses of so many sequences."""

    __slots__ = ("checks_since", "ms", "rough")

    def __init__(self, *, rough: bool) -> None:
        self.ms = _Mean()
        self.rough = rough
        self.checks_since = 0


class StepTimes:
    """Times of plain steps by number of sequences, and what guesses add to them."""

    def __init__(self) -> None:
        self._plain: dict[int, _Plain] = {}
        self._cells: dict[int, dict[int, _Cell]] = {}  # by sequences, by guesses: both in powers of two

    def plain_ms(self, num_sequences: int) -> float:
        """Return what a step without guesses takes, 0 while unknown."""
        plain = self._plain.get(num_sequences)
        return plain.ms.value if plain is not None else 0.0

    def wants_plain(self, num_sequences: int) -> bool:
        """Whether a step without guesses must be measured before guesses can be judged."""
        plain = self._plain.get(num_sequences)
        if plain is None or plain.ms.count < _SEEN:
            return True
        return plain.checks_since >= (_STALE_ROUGH if plain.rough else _STALE)

    def note_plain(self, num_sequences: int, ms: float, *, rough: bool = False) -> None:
        """Note a step without guesses; a `rough` one did not run like those that follow one another."""
        plain = self._plain.get(num_sequences)
        if plain is None or (plain.rough and not rough):
            plain = self._plain[num_sequences] = _Plain(rough=rough)
        elif rough and not plain.rough:
            return
        plain.ms.add(ms)
        plain.checks_since = 0

    def note_check(self, num_sequences: int, num_guesses: int, ms: float) -> None:
        """Note a step with guesses."""
        plain = self._plain.get(num_sequences)
        if plain is None:
            return
        plain.checks_since += 1
        cells = self._cells.setdefault(num_sequences.bit_length(), {})
        cell = cells.setdefault(num_guesses.bit_length(), _Cell())
        cell.seen += 1
        cell.rows.add(num_guesses)
        cell.extra_ms.add(max(0.0, ms - plain.ms.value))

    def reach(self, num_sequences: int) -> int:
        """Return how many guesses a step may check: twice what has been measured, so that none is a leap."""
        cells = self._cells.get(num_sequences.bit_length(), {})
        most = max((cell.rows.value for cell in cells.values()), default=0.0)
        return max(_FIRST_ROWS, num_sequences, int(2 * most))

    def extra(self, num_sequences: int) -> Callable[[int], float]:
        """Return a function of how many guesses are checked: what they add, in plain steps of so many sequences."""
        points = self._points(num_sequences)
        if not points:
            half = _FIRST_SHARE / 2
            return lambda rows: half * (1 + rows / num_sequences)
        plain_ms = self.plain_ms(num_sequences)
        return lambda rows: _at(points, rows) / plain_ms

    def hasty(self, num_sequences: int) -> bool:
        """Whether what is known of guesses beside so many sequences may be a hitch: dear, and hardly measured."""
        return any(self._hitch(cell, num_sequences) for cell in self._nearest_cells(num_sequences))

    def fade(self, num_sequences: int) -> None:
        """Doubt what guesses cost beside so many sequences: it holds them off, and was measured long ago or once."""
        for cell in self._nearest_cells(num_sequences):
            cell.extra_ms.value = 0.0 if self._hitch(cell, num_sequences) else cell.extra_ms.value / 2
            cell.extra_ms.count = 0  # the next measurement counts in full

    def _hitch(self, cell: _Cell, num_sequences: int) -> bool:
        return cell.seen < _SEEN and cell.extra_ms.value > self.plain_ms(num_sequences)

    def _points(self, num_sequences: int) -> list[tuple[float, float]]:
        return sorted((cell.rows.value, cell.extra_ms.value) for cell in self._nearest_cells(num_sequences))

    def _nearest_cells(self, num_sequences: int) -> Collection[_Cell]:
        """Return the cells for so many sequences, or those measured nearest to that."""
        wanted = num_sequences.bit_length()
        nearest = min(self._cells, key=lambda size: abs(size - wanted), default=wanted)
        return self._cells.get(nearest, {}).values()


def _at(points: list[tuple[float, float]], rows: int) -> float:
    """Return the time that `rows` guesses add: on the lines between what was measured, and further on them."""
    first_rows, first_ms = points[0]
    if rows <= first_rows or len(points) == 1:
        return first_ms * (1 + rows / first_rows) / 2  # half of it comes with any guess, for all that is known
    for (left_rows, left_ms), (right_rows, right_ms) in pairwise(points):
        slope = max(0.0, right_ms - left_ms) / max(1.0, right_rows - left_rows)
        if rows <= right_rows:
            break
    return left_ms + slope * (rows - left_rows)
