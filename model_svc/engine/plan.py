"""What passes between the pure engine and a runner: plain data, so that any number of ranks can take the same plan.

The engine decides which tokens of which sequences are computed in a step; the runner computes them and samples. Each
running sequence owns a *slot* (a row of the runner's per-sequence device state: sampling parameters, seeds, counts of
generated ids for penalties, last sampled token). A step may be planned before the previous one's tokens are known: then
`token_ids` is empty and `from_device` says that the runner feeds back what it sampled last for that slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any, Protocol, runtime_checkable

import msgspec

from model_svc.engine.kv_layout import KvLayout
from wire.messages import SamplingParams, TokenLogprob

RunnerOption = int | str | None | tuple[tuple[str, str], ...]  # an argument for the factory of a runner


class NewSequence(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """State that a runner sets up in a slot when a sequence starts, or starts again after preemption.

    `prompt_ids` are the ids before the first generated one and `generated_ids` those generated so far (both packed
    int32; penalties count them). `seed` is already derived per choice. `stop_token_ids` serve min_tokens.
    `sentence_ends` is a packed int32 mask over the vocabulary for sequences that land softly at depth > 0, else empty.
    `barred_ids` are never drawn. `adapter` is the name of the adapter that it wants, "" for the base model alone.
    """

    sampling: SamplingParams
    seed: int
    prompt_ids: bytes
    generated_ids: bytes = b""
    stop_token_ids: tuple[int, ...] = ()
    sentence_ends: bytes = b""
    barred_ids: tuple[int, ...] = ()
    adapter: str = ""


class DrawRules(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What one draw must keep to; the fields are those of SequenceStep."""

    allow_bitmask: bytes = b""
    landing_id: int = -1
    landing_bias: float = 0.0
    barred_ids: tuple[int, ...] = ()


class Picture(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A picture as a vision tower takes it: `num_tiles` tiles of `height` times `width` pixels, a byte for each colour.

    `num_features` is how many tokens it makes. Equal names mean equal pictures.
    """

    name: bytes
    tiles: bytes
    num_tiles: int
    height: int
    width: int
    num_features: int


class PictureRows(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Which tokens of a share (`rows`, packed int32) take features of a picture, from `first` on, and no embeddings."""

    name: bytes
    first: int
    rows: bytes


class SequenceStep(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One sequence's share of a step: compute positions start .. start + num_tokens - 1.

    `token_ids` are the ids at these positions (packed int32); with `from_device` the single id is the one last sampled
    in this slot. `new_blocks` are appended to the slot's block table (on `new` they replace it). `sample`: draw a token
    after the last position; `output_index` is how many tokens were generated before it (the counter of the random
    draw is (seed, output_index)). `forced_id` >= 0 overrides the draw. `allow_bitmask` is a packed int32 mask
    over the vocabulary or empty. `landing_bias` is added to the logit of `landing_id` >= 0; with `from_device` only if
    the token fed back is one of the slot's `sentence_ends`, which the host cannot know yet. `barred_ids` are not drawn
    in this step. `targets` are the ids (packed int32) that follow the first positions: their log-probabilities are
    wanted, and those of the `num_top` most likely tokens there. `mask_follows`: what may be drawn hangs on the token
    fed back, so `Runner.mask` brings the mask while the step is being computed.

    The last `num_drafts` of `token_ids` are guesses. A token is drawn at each of the last `num_drafts` + 1 positions,
    as if its forerunners had been drawn one by one, for as long as each draw equals the guess that was computed behind
    it: up to and with the first that does not. `later_rules` are what the draws after the first must keep to, one for
    each guess, or empty: nothing. What was computed of guesses that did not come true is written over later.

    Of a model with states a slot also holds the state behind the last position computed. A share that starts at 0
    begins with none, one with `restore` >= 0 with this snapshot; what is there behind the share goes to the snapshot
    `save` >= 0 too.

    `pictures` say which of its tokens stand for parts of pictures. `rope_shift` is what rotary positions are more than
    indices; where that is not one number for all tokens, `rope_axes` are their positions along three axes (packed int32
    [3, num_tokens]).
    """

    slot: int
    start: int
    num_tokens: int
    token_ids: bytes = b""
    from_device: bool = False
    new_blocks: tuple[int, ...] = ()
    new: NewSequence | None = None
    sample: bool = True
    output_index: int = 0
    forced_id: int = -1
    allow_bitmask: bytes = b""
    landing_id: int = -1
    landing_bias: float = 0.0
    barred_ids: tuple[int, ...] = ()
    targets: bytes = b""
    num_top: int = 0
    mask_follows: bool = False
    num_drafts: int = 0
    later_rules: tuple[DrawRules, ...] = ()
    restore: int = -1
    save: int = -1
    pictures: tuple[PictureRows, ...] = ()
    rope_shift: int = 0
    rope_axes: bytes = b""


class BlockCopy(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A copy of a whole block between the device's cache and a place of the tier that keeps blocks beside it."""

    block: int
    place: int
    name: bytes


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One step. `freed_slots` are those of sequences that have gone; a new one may take such a slot at once.

    Before anything is computed, `saves` go from the device to the tier, then `loads` from there to the device, in this
    order; a plan may hold nothing else. No place is twice in a plan, but for loads of what it did not save.

    The runner keeps the features of pictures by name: it forgets those of `forgotten`, then looks at `pictures`.
    """

    step: int
    sequences: tuple[SequenceStep, ...]
    freed_slots: tuple[int, ...] = ()
    saves: tuple[BlockCopy, ...] = ()
    loads: tuple[BlockCopy, ...] = ()
    pictures: tuple[Picture, ...] = ()
    forgotten: tuple[bytes, ...] = ()


class SampledToken(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The token drawn in a slot; log probabilities only when asked for: top ids and values, best first."""

    slot: int
    token_id: int
    logprob: float = 0.0
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class TargetLogprobs(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The log-probabilities of a share's `targets`, in their order."""

    slot: int
    entries: tuple[TokenLogprob, ...]


class StepOutput(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a step produced, in the order of the plan's sampling sequences; several tokens where guesses came true.

    `failed_slots`: their logits were not finite, or their rules left no token. They may be missing from `tokens`.
    `targets`: of the sequences that asked, in the order of the plan.
    """

    step: int
    tokens: tuple[SampledToken, ...]
    failed_slots: tuple[int, ...] = ()
    compute_ms: float = 0.0
    targets: tuple[TargetLogprobs, ...] = ()


class RunnerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine must know of a runner: the size of the KV pool and the step limits, measured or configured.

    `max_drafts` guesses can be checked in one step, of all sequences together. Steps in flight are in different
    `stages` of the model: where there are several, answers take turns, so that each stage has some of them. `kv` is
    None where blocks cannot be exchanged with other replicas. `cards`: the UUIDs of the GPUs of all ranks.
    `adapters` are the names of those that a sequence can ask for from the start on; there is `adapter_room` for
    more. A model with states keeps `state_bytes` of each sequence beside its KV, and has room for `num_snapshots`
    of them. Beside the device `num_tier_blocks` are kept; to bring one back takes `tier_block_ms`. A model that
    sees has an `image_token_id`, which stands where a picture's features go, and room for `max_features` of them.
    `whole_pictures`: one step has to compute all tokens of a picture that are not yet. `feature_pixels`: a feature is
    of a square of so many pixels and has a row and a column for rotary positions; 0: all count on.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    depth: int = 0
    stages: int = 1
    device: str = "cpu"
    kv_bytes_per_token: int = 0
    weight_bytes: int = 0
    max_drafts: int = 0
    kv: KvLayout | None = None
    cards: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    adapter_room: int = 0
    state_bytes: int = 0
    num_snapshots: int = 0
    num_tier_blocks: int = 0
    tier_block_ms: float = 0.0
    image_token_id: int = -1
    max_features: int = 0
    whole_pictures: bool = False
    feature_pixels: int = 0

    @property
    def has_adapters(self) -> bool:
        """Whether a sequence may ask for one, now or later."""
        return bool(self.adapters or self.adapter_room)


class Runner(Protocol):
    """Executes plans in order. `depth` in RunnerInfo says how many submitted plans may be uncollected (0: none)."""

    @property
    def info(self) -> RunnerInfo:
        """The size of the KV pool and the step limits; the same for as long as the runner lives."""
        ...

    def submit(self, plan: StepPlan) -> Any:
        """Start a step; returns a handle for `collect`. Does not wait for the device."""
        ...

    def mask(self, handle: Any, masks: Mapping[int, bytes]) -> None:
        """Draw what `submit` left undrawn: bring the masks that were to follow, by slot, before the next `submit`.

        An empty one allows everything. Only with a depth above 0: otherwise the host knows all masks when it plans.
        """
        ...

    def collect(self, handle: Any) -> StepOutput:
        """Wait for a submitted step (in order of submission) and return what it sampled."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...


@runtime_checkable
class UsesIdleTime(Protocol):
    """A runner that has something to do that can wait: the rest of its start, or what steps to come will want."""

    def use_idle_time(self) -> bool:
        """Do a short part of it, while no step is in flight; tells whether more may be left until the next step."""
        ...


def slots(plan: StepPlan) -> Seq[int]:
    """Return the slots that a plan's output holds, in order."""
    return [item.slot for item in plan.sequences if item.sample]
