"""What an encoder reads: texts, or pairs of texts, whose beginning is kept once a query; and padding them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wire.messages import Prompt, Request, unpack_ids

_PADDING = 1.25  # how much longer than the shortest of a group the longest may be; the rest is computed for nothing
_SHORT = 8  # tokens that are padded without a thought


class Input(NamedTuple):
    """Token ids of a text, or of a pair: then `start` has those up to the second text, and `ids` the others.

    `dimensions` shortens its vector (None: as it is).
    """

    ids: Sequence[int]
    start: Sequence[int] = ()
    dimensions: int | None = None

    @property
    def num_tokens(self) -> int:
        """How many tokens are read."""
        return len(self.start) + len(self.ids)


class Padded(NamedTuple):
    """Inputs of like length, padded on the right: all [S, T], where `mask` is False is none.

    `kinds` (int64) is 1 for the tokens of second texts.
    """

    ids: Tensor
    mask: Tensor
    kinds: Tensor


def inputs_of(request: Request, prompt: Prompt) -> list[Input]:
    """Return the inputs of a request for vectors or scores."""
    ids, parts, at = unpack_ids(prompt.token_ids), [], 0
    for length in prompt.lengths:
        parts.append(ids[at : at + length])
        at += length
    if request.kind == "embedding":
        return [Input(part, dimensions=request.dimensions) for part in parts]
    num_queries = request.pairs.num_queries if request.pairs is not None else 1
    starts, ends = parts[:num_queries], parts[num_queries:]
    return [Input(end, starts[0 if num_queries == 1 else number]) for number, end in enumerate(ends)]


def read(inputs: Sequence[Input], device: torch.device, compute: Callable[[Padded], Tensor]) -> list[Tensor]:
    """Return, on the CPU, what `compute` makes of each input: [S, ...] of S inputs that are padded together."""
    made = [torch.empty(0)] * len(inputs)
    for group in groups([one.num_tokens for one in inputs]):
        rows = compute(pad([inputs[index] for index in group], device)).cpu()
        for index, row in zip(group, rows, strict=True):
            made[index] = row
    return made


def groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions of inputs that are padded together, so that little is computed for nothing."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and lengths[index] > lengths[group[0]] * _PADDING + _SHORT:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def pad(inputs: Sequence[Input], device: torch.device) -> Padded:
    """Put inputs into tensors on a device."""
    lengths = torch.tensor([one.num_tokens for one in inputs])
    longest = int(lengths.max())
    ids = torch.tensor([[*one.start, *one.ids, *[0] * (longest - one.num_tokens)] for one in inputs])
    seconds = torch.tensor([len(one.start) or longest for one in inputs])
    at = torch.arange(longest)
    mask, kinds = at < lengths[:, None], (at >= seconds[:, None]).long()
    return Padded(ids.to(device), mask.to(device), kinds.to(device))
