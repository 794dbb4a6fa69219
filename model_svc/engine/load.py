"""How busy an engine is: what the balancer, the metrics and predicted waits are based on."""

from __future__ import annotations

import msgspec

from model_svc.engine.scheduler import Scheduler


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How busy the engine is. `waste` is the share of held KV room without a token; `preemptions` are by reason.

    `num_kept_blocks` are in the second tier now; copies there (saved) and back (loaded) count since the start.
    """

    num_free_blocks: int
    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_preemptions: int = 0
    waste: float = 0.0
    num_prefilled_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_drafts: int = 0
    preemptions: dict[str, int] = {}
    prefill_token_ms: float = 0.0
    num_kept_blocks: int = 0
    num_saved_blocks: int = 0
    num_loaded_blocks: int = 0


def load_of(scheduler: Scheduler) -> EngineLoad:
    """Return how busy an engine is now."""
    roster, pool, drafter = scheduler.roster, scheduler.roster.pool, scheduler.drafter
    tier = pool.tier
    running = roster.prefilling + roster.decoding
    held = pool.num_blocks - pool.num_free
    unfilled = sum(len(seq.block_table) * pool.block_size - seq.num_tokens for seq in running)
    return EngineLoad(
        num_free_blocks=pool.num_free,
        num_running=len(running),
        num_waiting=len(roster.waiting),
        num_waiting_tokens=roster.num_waiting_tokens(),
        num_preemptions=roster.num_preemptions,
        waste=max(0, unfilled) / (held * pool.block_size) if held else 0.0,
        num_prefilled_tokens=scheduler.num_prefilled_tokens,
        num_draft_tokens=drafter.num_drafted if drafter is not None else 0,
        num_accepted_tokens=drafter.num_accepted if drafter is not None else 0,
        num_drafts=drafter.num_draws if drafter is not None else 0,
        preemptions=dict(roster.preemptions),
        prefill_token_ms=scheduler.costs.prefill_token_ms,
        num_kept_blocks=tier.num_blocks if tier is not None else 0,
        num_saved_blocks=tier.num_saved if tier is not None else 0,
        num_loaded_blocks=tier.num_loaded if tier is not None else 0,
    )
