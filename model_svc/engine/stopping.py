"""When a sequence has ended: a stop id, or its last allowed token. Asked for each token, also in a run of several."""

from __future__ import annotations

from collections.abc import Iterable

from wire.messages import Prompt, SamplingParams


class StopRule:
    """What ends one sequence.

    The model's own end ids yield to `ignore_eos`, the client's never do. `min_tokens` tokens come before any stop id
    counts; the runner masks them out until then, so this is the second lock on the same door.
    """

    __slots__ = ("max_tokens", "min_tokens", "own_ids", "stop_ids")

    def __init__(self, sampling: SamplingParams, prompt: Prompt, eos_ids: Iterable[int], max_tokens: int) -> None:
        own = () if sampling.ignore_eos else (*eos_ids, *prompt.stop_token_ids)
        self.stop_ids = frozenset((*own, *sampling.stop_token_ids))
        self.own_ids = tuple(sorted(set(own).difference(sampling.stop_token_ids)))
        self.max_tokens = max_tokens
        self.min_tokens = sampling.min_tokens

    def is_stop(self, token_id: int, num_output_tokens: int) -> bool:
        """Whether this id, with `num_output_tokens` counting it, ends the sequence."""
        return token_id in self.stop_ids and num_output_tokens > self.min_tokens
