"""Settings of the prefix desk."""

from __future__ import annotations

from wire.settings import Settings


class PrefixSettings(Settings, frozen=True, kw_only=True):
    """`prefix_max_blocks` bounds the index of each model (about 250 bytes a block and replica)."""

    prefix_max_blocks: int = 2_000_000
    prefix_concurrency: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range("prefix_max_blocks", "prefix_concurrency", least=1)
