"""What replicas report about themselves, beside the ring."""

from __future__ import annotations

import msgspec

from wire.messages.base import Message


class AdapterOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of loading an adapter: the digest of its files, or what is wrong with them."""

    digest: str = ""
    fault: str = ""


class ReplicaStatus(Message, frozen=True, kw_only=True):
    """A replica's heartbeat, twice a second and at every change of `state` (loading, ready, draining, gone).

    `kv_waste` is the share of held KV room that holds no token; `num_preemptions` (`preemptions`: by reason) and
    `num_prefilled_tokens` (of prompts) count since the replica's start, and so do runs of guesses, guesses, and those
    that came true. `died`: it is gone, but not on purpose. `role` is both, prefill or decode. Blocks can be fetched at
    `kv_address` by replicas of the same `kv_layout`; `prefill_token_ms` and `fetch_bytes_per_s` are what the replica
    measured, 0 before. Blocks fetched from others (and their bytes), fetches that failed and blocks given to others
    count since the start, too. Beside the KV cache there is room for `num_tier_blocks`, of which `num_kept_blocks` are
    there; copies to there (saved) and back (loaded) count since the start. `adapters` are those that it can compute;
    there is `adapter_room` for so many that come at run time, and what came of each wish stands under its revision.
    """

    replica_id: str
    model: str
    state: str
    sent_at: float
    block_size: int = 16
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 0
    interval_s: float = 0.5
    device: str = ""
    kv_waste: float = 0.0
    num_preemptions: int = 0
    num_prefilled_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_generated_tokens: int = 0
    preemptions: dict[str, int] = msgspec.field(default_factory=dict)
    died: bool = False
    role: str = "both"
    kv_address: str = ""
    kv_layout: str = ""
    kv_bytes_per_token: int = 0
    prefill_token_ms: float = 0.0
    fetch_bytes_per_s: float = 0.0
    num_fetched_blocks: int = 0
    num_fetched_bytes: int = 0
    num_failed_fetches: int = 0
    num_given_blocks: int = 0
    num_tier_blocks: int = 0
    num_kept_blocks: int = 0
    num_saved_blocks: int = 0
    num_loaded_blocks: int = 0
    adapters: tuple[str, ...] = ()
    adapter_room: int = 0
    adapter_outcomes: dict[str, AdapterOutcome] = msgspec.field(default_factory=dict)


class AdaptersChanged(Message, frozen=True, kw_only=True):
    """The record of adapters that are wanted of a model may have changed: read it again."""

    model: str


class BlocksStored(Message, frozen=True, kw_only=True):
    """These blocks (16-byte names, concatenated) are in the replica's cache, in whichever of its tiers.

    `reset`: forget all earlier ones first.
    """

    replica_id: str
    sequence: int
    hashes: bytes
    reset: bool = False


class BlocksEvicted(Message, frozen=True, kw_only=True):
    """These blocks left the replica's cache, the last of its tiers."""

    replica_id: str
    sequence: int
    hashes: bytes


class ReportBlocks(Message, frozen=True, kw_only=True):
    """Prefix desk -> replica: a gap in your events was seen (or I am new); send a full `BlocksStored(reset=True)`."""

    replica_id: str
