"""Settings of a model replica."""

from __future__ import annotations

import re

from model_svc.engine.policy import POLICIES
from model_svc.spec.ngram import PROPOSERS
from wire.settings import Settings, SettingsError

ROLES = ("both", "prefill", "decode")
KV_DTYPES = ("auto", "fp8")
DTYPES = ("auto", "int8", "packed", "fp8", "float32", "bfloat16", "float16")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_UNSET_OR_ABOVE_0 = ("num_blocks", "kv_memory_bytes", "max_model_len", "threads", "stream_interval")


class ModelSettings(Settings, frozen=True, kw_only=True):
    """What a replica serves, on what, and how it schedules.

    `model` is one of `models` (the first if empty); `replica_name` tells replicas of a model apart in logs. `runner` is
    the factory `module:function` of the runner. The KV cache keeps `kv_dtype` (fp8: 8 bits) and has `num_blocks`
    blocks, or as many as `kv_memory_bytes` hold, or what fits. `tensor_parallel` cards (on a CPU: processes) share the
    model, from `device` on; or `pipeline_parallel` cards or processes do, each with some of its layers, without
    guesses. `inter_token_ms` is the objective of the scheduling policy `dynamic_chunk`. After `patience_s` behind
    higher priorities a request goes first, one at a time. `speculate` says who guesses at most `num_draft_tokens`
    tokens ahead: ngram, off, or auto (ngram on a CPU). What `stream_interval` steps say is sent together; None: see
    `model_svc.departures`. A replica whose engine says nothing for `stall_s` while it has work ends itself, so that
    others take over. Beside the KV cache a second tier keeps blocks longer, in `kv_ram_gib` of the host's memory or,
    on a CPU and over restarts, in a file of `kv_disk_gib` below the state directory; 0: none. KV blocks are given to
    other replicas and fetched from them (`kv_sharing`) over a unix socket below the state directory, or TCP at
    `kv_host` (an address, or auto: this machine's own) and `kv_port` (0: a free one); a fetch that takes longer than
    `fetch_timeout_s`, and than computing would, is broken off and the rest computed. `role`: prefill computes prompts
    and hands them on, decode goes on from there, both does all. `energy`: bills have what a request used of it, where
    cards or processors tell. With an `adapter_dir` there is room for `max_adapters` that come at run time, of rank
    `max_adapter_rank` at most.
    """

    model: str = ""
    replica_name: str = ""
    device: str = "cpu"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    runner: str = "model_svc.runner.load:load_runner"
    num_blocks: int | None = None
    kv_memory_bytes: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    threads: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    scheduling_policy: str = "fair"
    inter_token_ms: float = 50.0
    patience_s: float = 30.0
    speculate: str = "auto"
    num_draft_tokens: int = 7
    stream_interval: int | None = None
    heartbeat_s: float = 0.5
    stall_s: float = 120.0
    kv_ram_gib: float = 0.0
    kv_disk_gib: float = 0.0
    kv_sharing: bool = True
    kv_host: str = ""
    kv_port: int = 0
    fetch_timeout_s: float = 5.0
    role: str = "both"
    energy: bool = True
    max_adapters: int = 4
    max_adapter_rank: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model and self.model not in self.models:
            raise SettingsError(f"model must be one of models ({', '.join(self.models)}), not {self.model!r}")
        speculate = ("auto", "off", *PROPOSERS)
        for name, known in (
            ("scheduling_policy", POLICIES),
            ("speculate", speculate),
            ("role", ROLES),
            ("dtype", DTYPES),
            ("kv_dtype", KV_DTYPES),
        ):
            if getattr(self, name) not in known:
                raise SettingsError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        if not _DEVICE.fullmatch(self.device):
            raise SettingsError(f"device must be cpu, cuda or a card like cuda:1, not {self.device!r}")
        if self.runner.count(":") != 1:
            raise SettingsError(f"runner must read module:function, not {self.runner!r}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        given = [name for name in _UNSET_OR_ABOVE_0 if getattr(self, name) is not None]
        self._check_range(*given, "max_num_seqs", "max_num_batched_tokens", least=1)
        self._check_range("tensor_parallel", "pipeline_parallel", least=1)
        self._check_range("num_draft_tokens", least=0)
        self._check_range("max_adapters", least=1, most=1024)
        self._check_range("max_adapter_rank", least=1, most=512)
        self._check_range("kv_port", least=0, most=65_535)
        self._check_range("kv_ram_gib", "kv_disk_gib", least=0, most=1 << 20)
        self._check_range("heartbeat_s", "stall_s", "patience_s", "fetch_timeout_s", "inter_token_ms", above=0)
        self._check_stages()
        self._check_tier()

    def _check_stages(self) -> None:
        if self.pipeline_parallel > 1 and self.tensor_parallel > 1:
            raise SettingsError("pipeline_parallel and tensor_parallel do not go together; set one of them to 1")
        if self.pipeline_parallel > 1 and self.speculate not in ("auto", "off"):
            raise SettingsError(f"pipeline_parallel and speculate {self.speculate} do not go together")
        if self.pipeline_parallel > 1 and self.role != "both":
            raise SettingsError(f"pipeline_parallel and role {self.role} do not go together: stages share no KV blocks")

    def _check_tier(self) -> None:
        if self.kv_disk_gib and self.kv_ram_gib:
            raise SettingsError("kv_disk_gib and kv_ram_gib do not go together; set one of them to 0")
        if self.kv_disk_gib and (self.device != "cpu" or max(self.tensor_parallel, self.pipeline_parallel) > 1):
            raise SettingsError("kv_disk_gib is for one process on a CPU; set kv_ram_gib instead")

    @property
    def proposer(self) -> str:
        """Who guesses, "" for nobody."""
        if self.speculate == "off" or self.num_draft_tokens == 0:
            return ""
        if self.speculate == "auto":
            return "ngram" if self.device == "cpu" and self.pipeline_parallel == 1 else ""
        return self.speculate

    @property
    def served_model(self) -> str:
        """The name of the model this replica serves."""
        return self.model or self.models[0]
