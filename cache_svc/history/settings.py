"""Settings of the history desk."""

from __future__ import annotations

from wire.settings import Settings


class HistorySettings(Settings, frozen=True, kw_only=True):
    """How long conversations are kept and how long a request waits for the turn before it.

    A conversation or response expires `history_ttl_days` after the last write to it. A request that continues a turn
    which is admitted but not stored yet waits up to `history_turn_wait_s`. Deletions make the server rewrite its
    append-only file, at most once in `history_rewrite_s` seconds. A request is given `history_image_bytes` of
    pictures of earlier turns at most; beyond, it is refused.
    """

    history_ttl_days: float = 30.0
    history_turn_wait_s: float = 2.0
    history_rewrite_s: float = 600.0
    history_concurrency: int = 64
    history_image_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range("history_ttl_days", above=0, most=36_500)
        self._check_range("history_turn_wait_s", "history_rewrite_s", "history_image_bytes", least=0)
        self._check_range("history_concurrency", least=2)  # one may wait for a turn, the other stores it
