"""Settings of the history desk."""

from __future__ import annotations

from wire.settings import Settings, SettingsError


class HistorySettings(Settings, frozen=True, kw_only=True):
    """How long conversations are kept and how long a request waits for the turn before it.

    A conversation or response expires `history_ttl_days` after the last write to it. A request that continues a turn
    which is admitted but not stored yet waits up to `history_turn_wait_s`. Deletions make the server rewrite its
    append-only file, at most once in `history_rewrite_s` seconds.
    """

    history_ttl_days: float = 30.0
    history_turn_wait_s: float = 2.0
    history_rewrite_s: float = 600.0
    history_concurrency: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.history_ttl_days < 36_500:
            raise SettingsError(f"history_ttl_days must be positive, not {self.history_ttl_days}")
        if self.history_turn_wait_s < 0 or self.history_rewrite_s < 0:
            raise SettingsError("history_turn_wait_s and history_rewrite_s must not be negative")
        if self.history_concurrency < 2:
            raise SettingsError(f"history_concurrency must be at least 2, not {self.history_concurrency}")
