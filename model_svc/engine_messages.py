"""What the service and its engine process say to one another, over the pipe (`pipe.py`)."""

from __future__ import annotations

import msgspec

from model_svc.disagg.orders import BlocksDone, ReadBlocks, WriteBlocks
from model_svc.engine.kv_events import KvEvent
from model_svc.engine.load import EngineLoad
from model_svc.engine.plan import RunnerInfo, RunnerOption
from model_svc.engine.request import EngineRequest
from wire.messages import TokenChunk


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Service -> engine, first: what to load, with which arguments for the runner's factory, and how to schedule.

    `staging_fd` is the descriptor of the memory by which blocks are exchanged (see `model_svc.disagg`). For `awake_s`
    behind its work the engine looks for more instead of sleeping. `metered`: requests are told what they use of energy,
    where it can be read.
    """

    model_path: str
    runner: str
    runner_options: dict[str, RunnerOption]
    policy: str = "fcfs"
    inter_token_ms: float = 0.0
    proposer: str = ""
    num_draft_tokens: int = 0
    patience_s: float = 30.0
    stream_interval: int | None = None
    staging_fd: int = -1
    awake_s: float = 0.0
    metered: bool = False


class CancelSequences(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Service -> engine: end a request, or one choice of it."""

    request_id: str
    choice: int | None = None


class CloseThinking(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Service -> engine: close the open think block."""

    request_id: str


class ReportNames(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Service -> engine: log the names of all cached blocks anew."""


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Service -> engine: read an adapter and make room for it; its files must be of this `digest` unless that is ""."""

    revision: str
    name: str
    directory: str
    digest: str = ""


class DropAdapter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Service -> engine: take no more requests for an adapter (named with its digest)."""

    name: str


class AdapterDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Engine -> service: what came of a load: the digest of the adapter's files, or what is wrong with them."""

    revision: str
    digest: str = ""
    fault: str = ""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Engine -> service: the model is loaded. `seconds` tells what the start of the process took, by part."""

    info: RunnerInfo
    seconds: dict[str, float] = {}


class Broken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Engine -> service, last: why the engine cannot go on, in one sentence."""

    message: str


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Engine -> service: a request that can never work; the error's code, message and field."""

    request_id: str
    attempt: int
    code: str
    message: str
    param: str | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Engine -> service: what a step produced. `load` comes now and then, and always when the engine falls idle."""

    step: int
    chunks: tuple[TokenChunk, ...] = ()
    events: tuple[KvEvent, ...] = ()
    load: EngineLoad | None = None


Command = CancelSequences | CloseThinking | ReportNames | LoadAdapter | DropAdapter | ReadBlocks | WriteBlocks
ToEngine = EngineConfig | EngineRequest | Command
ToService = Ready | Broken | Refused | Progress | BlocksDone | AdapterDone
