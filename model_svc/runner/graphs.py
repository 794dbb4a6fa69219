"""Which steps are recorded: CUDA graphs by padded size, so that a decode step is two calls of the host, not 500.

A step of another size runs in the next larger graph; the rest of its rows are padding, which writes nowhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from model_svc.runner.packed_step import StepShape

# With more tokens the device is busy for longer than eager launches take.
_MIXED_TOKENS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512)
_WIDTHS = (8, 64)
_CHECKED_TOKENS = ((8, 16, 32, 64), (64, 128))  # by width
_FINE = 64  # decode steps of up to so many sequences get all their sizes at the start, larger ones each so-manieth
_CHECKED_QUERIES = 8  # tokens of a sequence: one tile of the decode kernel at four query heads a KV head


LONGEST_RECORDED = _MIXED_TOKENS[-1]


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Return the padded numbers of sequences: multiples of 16 are one variant of each kernel."""
    sizes = [1, 2, 4, 8, *range(16, 256, 16), *range(256, max_num_seqs + 1, 32)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def widths(max_num_seqs: int) -> list[int]:
    """Return the padded numbers of sequences of mixed steps: few, as each is another variant of the kernels."""
    return [width for width in _WIDTHS if width < max_num_seqs] + [max_num_seqs]


def recorded_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepShape]:
    """Return the shapes to record, the largest first, so that the others fit in the memory it leaves."""
    limit = max(max_num_batched_tokens, max_num_seqs)
    decodes = [StepShape(size, size, True) for size in decode_sizes(max_num_seqs)]
    sizes = widths(max_num_seqs)
    # A width that has room for a sequence in each token is the last one that is of use.
    mixed = [
        StepShape(T, S, False)
        for T in _MIXED_TOKENS
        for smaller, S in zip([0, *sizes], sizes, strict=False)
        if limit >= T > smaller
    ]
    short = [shape._replace(short=True) for shape in mixed if shape.num_sequences == sizes[0]]  # a chat's first turn
    return sorted(decodes + mixed + short, key=lambda shape: (shape.num_tokens, shape.num_sequences), reverse=True)


def first_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepShape]:
    """Return the shapes to record before the first request, the largest first.

    Few are worth a later start: decode steps, each of which would take 15 ms more, in sizes that do for a while; and of
    prompts, which run once, only the largest, in whose memory all later recordings fit.
    """
    shapes = recorded_shapes(max_num_seqs, max_num_batched_tokens)
    mixed = [shape for shape in shapes if not shape.decode][:1]
    sizes = {size for size in decode_sizes(max_num_seqs) if size <= _FINE or size % _FINE == 0} | {max_num_seqs}
    return mixed + [shape for shape in shapes if shape.decode and shape.num_sequences in sizes]


def later_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepShape]:
    """Return the shapes to record when there is time, those of few sequences first: one prompt is what comes first."""
    first = set(first_shapes(max_num_seqs, max_num_batched_tokens))
    shapes = [shape for shape in recorded_shapes(max_num_seqs, max_num_batched_tokens) if shape not in first]
    return sorted(shapes, key=lambda shape: (shape.num_sequences, not shape.short, shape.num_tokens))


def drawing_shapes(max_num_seqs: int) -> list[StepShape]:
    """Return the decode steps to record as one with their draws: those short enough that a start between shows."""
    return [StepShape(size, size, True, draws=True) for size in decode_sizes(max_num_seqs) if size <= _FINE]


def checking_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepShape]:
    """Return the shapes of steps that check guesses; more than 64 sequences have no use for them."""
    return [
        StepShape(T, width, False, _CHECKED_QUERIES)
        for width, tokens in zip(widths(max_num_seqs), _CHECKED_TOKENS, strict=False)
        for T in reversed(tokens)
        if max_num_batched_tokens >= T
    ]


def adapted_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> list[StepShape]:
    """Return the shapes to record of steps with adapters, decode steps first: each is one token."""
    shapes = recorded_shapes(max_num_seqs, max_num_batched_tokens)
    ordered = sorted(shapes, key=lambda shape: (not shape.decode, shape.num_tokens, shape.num_sequences))
    return [shape._replace(adapters=True) for shape in ordered]


class Shapes:
    """Finds the recorded shape that a step fits in."""

    def __init__(self, shapes: Iterable[StepShape], max_num_seqs: int, max_num_batched_tokens: int) -> None:
        shapes = list(shapes)
        self._widths = widths(max_num_seqs)
        self._limit = max_num_batched_tokens
        self._decode = sorted(shape for shape in shapes if shape.decode)
        mixed = [shape for shape in shapes if not shape.decode]
        self._mixed = sorted(mixed, key=lambda shape: (shape.num_tokens, shape.num_sequences, not shape.short))
        self._sizes = [shape.num_sequences for shape in self._decode]

    def fit_checks(self, step: StepShape, max_query_len: int) -> StepShape:
        """Return the smallest shape that holds a step with guesses; only steps of answers are recorded."""
        return self._fit_checks(step, max_query_len)._replace(adapters=step.adapters)

    def fit(self, step: StepShape) -> StepShape:
        """Return the smallest shape that holds a step; one that is not recorded is only rounded up."""
        return self._fit(step)._replace(adapters=step.adapters)

    def _fit_checks(self, step: StepShape, max_query_len: int) -> StepShape:
        for width, tokens in zip(self._widths, _CHECKED_TOKENS, strict=False):
            if max_query_len <= _CHECKED_QUERIES and step.num_sequences <= width:
                T = next((T for T in tokens if step.num_tokens <= T <= self._limit), None)
                if T is not None:
                    return StepShape(T, width, False, _CHECKED_QUERIES)
        shape = self.fit(step)
        return shape._replace(checks=shape.num_tokens)

    def _fit(self, step: StepShape) -> StepShape:
        if step.decode:
            at = bisect_left(self._sizes, step.num_sequences)
            if at < len(self._decode):
                return self._decode[at]
        for shape in self._mixed:
            fits = shape.num_tokens >= step.num_tokens and shape.num_sequences >= step.num_sequences
            if fits and (step.short or not shape.short):
                return shape
        width = next(width for width in self._widths if width >= step.num_sequences)
        return StepShape(min(-(-step.num_tokens // 16) * 16, self._limit), width, decode=False, short=step.short)
