"""Settings of `headrace up`."""

from __future__ import annotations

from wire.settings import Settings, SettingsError


class UpSettings(Settings, frozen=True, kw_only=True):
    """What `up` starts: `replicas` model processes, and the light desks in one process or (`split`) each in its own.

    `prefill_replicas` more compute the prompts of the others. A replica computes on `tensor_parallel` cards.
    Several `edges` are processes of their own that share the port. With a `metrics_port` each process has the next one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    prefill_replicas: int = 0
    tensor_parallel: int = 1
    edges: int = 1
    split: bool = False
    ready_timeout_s: float = 180.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.port < 65536:
            raise SettingsError(f"port must lie between 1 and 65535, not {self.port}")
        for name in ("replicas", "tensor_parallel", "edges"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.prefill_replicas < 0:
            raise SettingsError(f"prefill_replicas must not be negative, not {self.prefill_replicas}")
