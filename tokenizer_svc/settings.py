"""Settings of the tokenizer desk."""

from __future__ import annotations

from wire.settings import Settings, SettingsError


class TokenizerSettings(Settings, frozen=True, kw_only=True):
    """`tokenizer_threads` work at a time; a chat template may render for `template_timeout_s`."""

    tokenizer_threads: int = 4
    template_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer_threads < 1:
            raise SettingsError(f"tokenizer_threads must be at least 1, not {self.tokenizer_threads}")
        if not 0 < self.template_timeout_s <= 60:
            raise SettingsError(f"template_timeout_s must lie in 0 .. 60, not {self.template_timeout_s}")
