"""`usage` of an answer while it grows: for clients that want it with every chunk."""

from __future__ import annotations

from gateway.edge.reply import ChoiceUpdate


class RunningUsage:
    """Token counts of an answer while it grows, over all its choices."""

    def __init__(self, *, choices_per_prompt: int) -> None:
        self._choices_per_prompt = choices_per_prompt
        self._prompts: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._choices: dict[int, int] = {}

    def note(self, update: ChoiceUpdate) -> None:
        """Take over a choice's counts."""
        prompt = update.choice // self._choices_per_prompt
        self._prompts[prompt] = update.num_prompt_tokens
        self._cached[prompt] = update.num_cached_tokens
        self._choices[update.choice] = update.num_tokens

    @property
    def cached_tokens(self) -> int:
        """Return how many prompt tokens came from the prefix cache."""
        return sum(self._cached.values())

    def totals(self) -> dict[str, int]:
        """Return `usage` so far."""
        prompt, completion = sum(self._prompts.values()), sum(self._choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
