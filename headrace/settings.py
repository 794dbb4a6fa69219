"""Settings of `headrace up`."""

from __future__ import annotations

from wire.settings import Settings, SettingsError


class UpSettings(Settings, frozen=True, kw_only=True):
    """What `up` starts: `replicas` model processes, and the light desks in one process or (`split`) each in its own.

    `prefill_replicas` more compute the prompts of the others. A replica computes on `tensor_parallel` cards, or in
    `pipeline_parallel` stages, each with some of the layers,
    and keeps keys and values in `kv_dtype`.
    Several `edges` are processes of their own that share the port. With a `metrics_port` each process has the next one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    prefill_replicas: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_dtype: str = "auto"
    edges: int = 1
    split: bool = False
    ready_timeout_s: float = 180.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range("port", least=1, most=65_535)
        self._check_host("host")
        self._check_range("replicas", "tensor_parallel", "pipeline_parallel", "edges", least=1)
        self._check_range("prefill_replicas", least=0)
        self._check_range("ready_timeout_s", above=0)
        if self.prefill_replicas and self.pipeline_parallel > 1:
            raise SettingsError("prefill_replicas and pipeline_parallel do not go together: stages share no KV blocks")
