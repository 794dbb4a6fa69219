"""A model's context as a limit for prompts."""

from __future__ import annotations

from tokenizer_svc.encoder import Encoder
from wire.errors import ContextLengthExceededError


class ContextLimit:
    """Refuses prompts that leave no room for an answer in a context of `max_model_len` tokens."""

    def __init__(self, max_model_len: int, encoder: Encoder) -> None:
        self.max_model_len = max_model_len
        self._encoder = encoder

    def check_text(self, text: str, *, param: str, contexts: int = 1) -> None:
        """Raise ContextLengthExceededError for a text that is sure to be longer than so many contexts, unencoded."""
        least = self._encoder.at_least(text)
        if least > self.max_model_len * contexts:
            raise self._too_long(f"at least {least}", param)

    def room_behind(self, num_tokens: int, *, param: str) -> int:
        """Return how many tokens fit behind a prompt. Raises ContextLengthExceededError where none does."""
        left = self.max_model_len - num_tokens
        if left < 1:
            raise self._too_long(str(num_tokens), param)
        return left

    def _too_long(self, num_tokens: str, param: str) -> ContextLengthExceededError:
        return ContextLengthExceededError(
            f"the model's context is {self.max_model_len} tokens and needs one for the answer; "
            f"the prompt has {num_tokens} tokens",
            param=param,
        )
