"""A runner without a model, and a strict reader of plans: a verified fake.

Its KV cache holds, per cell, a hash of all tokens up to there, so it notices a block that was reused too early, a
position left out or computed with the wrong token, a hit on something that was never written. What it draws is a
function of the whole context as read from that cache: a wrong schedule cannot give the right answer. With states
(`state_bytes`) each slot and snapshot holds such a hash, too, which nothing but the tokens taken in can have made.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from model_svc.engine.plan import (
    DrawRules,
    NewSequence,
    RunnerInfo,
    SampledToken,
    SequenceStep,
    StepOutput,
    StepPlan,
    TargetLogprobs,
)
from wire.messages import TokenLogprob, unpack_ids

# (context, output index, seed) -> the id drawn; None: logits that are not finite
Reply = Callable[[Sequence[int], int, int], int | None]


def hashed_reply(vocab_size: int) -> Reply:
    """Return a reply that depends on every id of the context, the output index and the seed."""

    def draw(context: Sequence[int], output_index: int, seed: int) -> int:
        return zlib.crc32(repr((list(context), output_index, seed)).encode()) % vocab_size

    return draw


def scripted_reply(*pieces: int | None) -> Reply:
    """Return a reply that says the given ids by output index, whatever the context; the last one for ever."""
    return lambda _context, output_index, _seed: pieces[min(output_index, len(pieces) - 1)]


LANDING_STRENGTH = 15.0  # a bias from which on the script gives way

_SIZES = {
    "num_blocks": 64,
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 256,
    "vocab_size": 300,
    "max_drafts": 64,
}


class _Slot:
    """What a runner knows of one slot."""

    def __init__(self, new: NewSequence) -> None:
        self.new = new
        self.prompt = unpack_ids(new.prompt_ids)
        self.tokens = [*self.prompt, *unpack_ids(new.generated_ids)]
        self.table: list[int] = []
        self.next_position = -1
        self.drawn: int | None = None


class ScriptedRunner:
    """Runs plans at once, hands their outputs over at `collect`, in order."""

    def __init__(self, reply: Reply, **sizes: Any) -> None:
        """`sizes` are fields of RunnerInfo; those not given are small."""
        self._info = RunnerInfo(device="scripted", **{**_SIZES, **sizes})
        self.plans: list[StepPlan] = []
        self.closed = False
        self._reply = reply
        self._cells: list[int | None] = [None] * (self._info.num_blocks * self._info.block_size)
        self._slots: dict[int, _Slot] = {}
        self._states: dict[int, int] = {}
        self._snapshots: dict[int, int] = {}
        self._seen: set[bytes] = set()
        self.tier: dict[int, tuple[bytes, list[int | None]]] = {}
        self._uncollected: deque[StepOutput] = deque()
        self._undrawn: StepPlan | None = None

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def submit(self, plan: StepPlan) -> int:
        assert self._undrawn is None, "a step without the masks that were to follow"
        assert len(self._uncollected) <= self._info.depth, "more steps in flight than the depth allows"
        assert plan.step == len(self.plans), "steps out of order"
        assert plan.sequences or plan.saves or plan.loads, "an empty step"
        if self._info.stages > 1:
            self._check_turns(plan)
        self.plans.append(plan)
        for slot in plan.freed_slots:
            assert self._slots.pop(slot, None) is not None, "a slot freed twice"
        self._copy(plan)
        self._look(plan)
        assert len({item.slot for item in plan.sequences}) == len(plan.sequences), "a slot twice in one step"
        assert sum(item.num_tokens for item in plan.sequences) <= self._info.max_num_batched_tokens
        assert sum(item.num_drafts for item in plan.sequences) <= self._info.max_drafts
        if any(item.mask_follows for item in plan.sequences):
            self._undrawn = plan
        else:
            self._execute(plan)
        return plan.step

    def _copy(self, plan: StepPlan) -> None:
        size = self._info.block_size
        places = [copy.place for copy in plan.saves]
        assert len(set(places)) == len(places), "a place saved to twice"
        assert not set(places) & {copy.place for copy in plan.loads}, "a load of what is overwritten before"
        assert len({copy.block for copy in plan.loads}) == len(plan.loads), "a block loaded twice"
        for copy in plan.saves:
            assert 0 <= copy.place < self._info.num_tier_blocks, "outside the tier"
            cells = self._cells[copy.block * size : (copy.block + 1) * size]
            assert None not in cells, "a block saved that was never written"
            self.tier[copy.place] = (copy.name, cells)
        for copy in plan.loads:
            name, cells = self.tier[copy.place]
            assert name == copy.name, "a place that holds something else"
            self._cells[copy.block * size : (copy.block + 1) * size] = cells

    def _look(self, plan: StepPlan) -> None:
        assert self._seen.issuperset(plan.forgotten), "a picture forgotten that is not there"
        self._seen.difference_update(plan.forgotten)
        assert self._seen.isdisjoint([picture.name for picture in plan.pictures]), "a picture looked at twice"
        self._seen.update([picture.name for picture in plan.pictures])
        for item in plan.sequences:
            for part in item.pictures:
                assert part.name in self._seen, "features of a picture that was not looked at"
                ids = unpack_ids(item.token_ids)
                assert {ids[row] for row in unpack_ids(part.rows)} == {self._info.image_token_id}

    def _check_turns(self, plan: StepPlan) -> None:
        """Assert that a plan hangs on nothing that is still drawn: a slot comes again only with another sequence."""
        in_flight = self.plans[len(self.plans) - len(self._uncollected) :]
        newest = {item.slot: n for n, other in enumerate(in_flight) for item in other.sequences if item.new is not None}
        drawing = {
            item.slot
            for n, other in enumerate(in_flight)
            for item in other.sequences
            if item.sample and n >= newest.get(item.slot, 0)  # else of one who has left the slot
        }
        for item in plan.sequences:
            assert not item.from_device, "an id that the first stage cannot know"
            assert item.new is not None or item.slot not in drawing, "an answer whose draw is in flight"

    def mask(self, handle: int, masks: Mapping[int, bytes]) -> None:
        plan, self._undrawn = self._undrawn, None
        assert plan is not None and plan.step == handle, "masks of another step"
        late = {item.slot for item in plan.sequences if item.mask_follows}
        assert set(masks) == late, "masks of other slots"
        assert all(item.from_device for item in plan.sequences if item.mask_follows), (
            "a mask that could have been known"
        )
        assert not self._uncollected, "masks before the tokens that they hang on"
        sequences = [
            msgspec.structs.replace(item, allow_bitmask=masks[item.slot]) if item.mask_follows else item
            for item in plan.sequences
        ]
        self._execute(msgspec.structs.replace(plan, sequences=tuple(sequences)))

    def _execute(self, plan: StepPlan) -> None:
        begun, kept = ([number for number in numbers if number >= 0] for numbers in (
            [item.restore for item in plan.sequences], [item.save for item in plan.sequences]
        ))  # fmt: skip
        assert len({*kept, *begun}) == len(kept) + len(set(begun)), "a snapshot written twice, or while it is read"
        assert all(number < self._info.num_snapshots for number in begun + kept)
        drawn = [self._run(item) for item in plan.sequences]
        targets = tuple(self._score(item) for item in plan.sequences if item.targets)
        failed = tuple(tokens[0].slot for tokens in drawn if any(token.token_id < 0 for token in tokens))
        tokens = tuple(token for tokens in drawn for token in tokens if token.slot not in failed)
        self._uncollected.append(
            StepOutput(step=plan.step, tokens=tokens, failed_slots=failed, compute_ms=1.0, targets=targets)
        )

    def collect(self, handle: int) -> StepOutput:
        output = self._uncollected.popleft()
        assert output.step == handle, "collected out of order"
        return output

    def close(self) -> None:
        self.closed = True

    def _run(self, item: SequenceStep) -> list[SampledToken]:
        slot = self._set_up(item)
        guesses = self._take_inputs(slot, item)
        known = item.start + item.num_tokens - len(guesses)
        chain = self._verified_prefix(slot, item.start)
        if self._info.state_bytes:
            assert not guesses, "a state that cannot be rolled back"
            state = self._snapshots[item.restore] if item.restore >= 0 else self._states[item.slot] if item.start else 0
            assert state == chain, "a state that has taken in something else"
        for position, token_id in enumerate([*slot.tokens[item.start : known], *guesses], item.start):
            chain = _extend(chain, token_id)
            self._cells[self._cell(slot, position)] = chain
        self._states[item.slot] = chain
        if item.save >= 0:
            self._snapshots[item.save] = chain
        slot.next_position = known
        if not item.sample:
            assert not guesses, "guesses without a draw"
            return []
        assert known == len(slot.tokens), "a draw that is not after the last token"
        assert item.output_index == known - len(slot.prompt), "output index does not count the generated tokens"
        return self._check_guesses(slot, item, guesses)

    def _check_guesses(self, slot: _Slot, item: SequenceStep, guesses: list[int]) -> list[SampledToken]:
        """Draw behind the last token, and behind each guess for as long as they come true."""
        assert not item.later_rules or len(item.later_rules) == len(guesses), "rules for other guesses"
        drawn = [self._draw(slot, item)]
        for n, guess in enumerate(guesses):
            if drawn[-1].token_id != guess:
                break
            slot.tokens.append(guess)
            slot.next_position += 1
            rules = item.later_rules[n] if item.later_rules else DrawRules()
            fields = {name: getattr(rules, name) for name in rules.__struct_fields__}
            drawn.append(
                self._draw(slot, msgspec.structs.replace(item, output_index=item.output_index + n + 1, **fields))
            )
        return drawn

    def _score(self, item: SequenceStep) -> TargetLogprobs:
        """Log-probabilities that tell position and id, for targets that are what follows."""
        ids = unpack_ids(item.targets)
        assert len(ids) <= item.num_tokens
        assert ids == self._slots[item.slot].prompt[item.start + 1 : item.start + 1 + len(ids)], "not what follows"
        entries = (
            TokenLogprob(-(item.start + n) - token / 1000, tuple(range(item.num_top)), (0.0,) * item.num_top)
            for n, token in enumerate(ids)
        )
        return TargetLogprobs(slot=item.slot, entries=tuple(entries))

    def _set_up(self, item: SequenceStep) -> _Slot:
        if item.new is not None:
            slot = self._slots[item.slot] = _Slot(item.new)
        else:
            slot = self._slots[item.slot]
            assert item.start == slot.next_position, "a position left out or computed twice"
        slot.table += item.new_blocks
        assert len(set(slot.table)) == len(slot.table), "a block twice in one table"
        return slot

    def _take_inputs(self, slot: _Slot, item: SequenceStep) -> list[int]:
        """Bring the input ids into the slot's tokens, checking them against all that is known; return the guesses."""
        if item.from_device:
            assert item.num_tokens == 1 and not item.token_ids and slot.drawn is not None
            ids = [slot.drawn]
        else:
            ids = unpack_ids(item.token_ids)
        assert len(ids) == item.num_tokens > item.num_drafts >= 0
        num_known = len(ids) - item.num_drafts
        for position, token_id in enumerate(ids[:num_known], item.start):
            if position < len(slot.tokens):
                assert slot.tokens[position] == token_id, "a wrong input id"
            else:
                assert position == len(slot.tokens) and token_id == slot.drawn, "an input that was not drawn"
                slot.tokens.append(token_id)
        return ids[num_known:]

    def _verified_prefix(self, slot: _Slot, start: int) -> int:
        chain = 0
        for position in range(start):
            chain = _extend(chain, slot.tokens[position])
            assert self._cells[self._cell(slot, position)] == chain, "read a cell that holds something else"
        return chain

    def _cell(self, slot: _Slot, position: int) -> int:
        block_size = self._info.block_size
        return slot.table[position // block_size] * block_size + position % block_size

    def _is_barred(self, token: int, item: SequenceStep, slot: _Slot) -> bool:
        """Whether anything forbids this id here."""
        mask = item.allow_bitmask
        if mask and not mask[token >> 3] >> (token & 7) & 1:
            return True
        allowed = slot.new.sampling.allowed_token_ids
        if token in (*slot.new.barred_ids, *item.barred_ids) or (allowed is not None and token not in allowed):
            return True
        return item.output_index < slot.new.sampling.min_tokens and token in slot.new.stop_token_ids

    @staticmethod
    def _yields(item: SequenceStep, slot: _Slot) -> bool:
        """Whether the bias of a soft landing is strong enough, as an honest runner would apply it."""
        if item.landing_id < 0 or item.landing_bias < LANDING_STRENGTH:
            return False
        if not item.from_device:
            return True
        mask, token = int.from_bytes(slot.new.sentence_ends, "little"), slot.tokens[-1]
        return bool(mask >> token & 1)

    def _draw(self, slot: _Slot, item: SequenceStep) -> SampledToken:
        sampling = slot.new.sampling
        token = self._reply(slot.tokens, item.output_index, slot.new.seed)
        if token is None:
            return SampledToken(slot=item.slot, token_id=-1)
        for _ in range(self._info.vocab_size):  # where nothing is allowed a runner draws something all the same
            if not self._is_barred(token, item, slot):
                break
            token = (token + 1) % self._info.vocab_size
        if self._yields(item, slot):
            token = item.landing_id
        slot.drawn = token
        if sampling.logprobs is None:
            return SampledToken(slot=item.slot, token_id=token)
        return SampledToken(
            slot=item.slot, token_id=token, logprob=-token / 100, top_ids=(token,), top_logprobs=(-token / 100,)
        )


def _extend(chain: int, token_id: int) -> int:
    return zlib.crc32(token_id.to_bytes(4, "little"), chain) + 1


class Script(msgspec.Struct, kw_only=True):
    """`script.json` in a model directory: what a scripted replica says and how big it is.

    `pieces`: ids by output index; empty for a hash of the context. At `crash_at_step` the runner raises, at
    `hang_at_step` it never returns. A prompt with the id `dies_of` kills the process in the step that `dies_after` of
    its tokens come before.
    """

    pieces: list[int | None] = []
    num_blocks: int = 64
    max_model_len: int = 256
    vocab_size: int = 300
    depth: int = 0
    crash_at_step: int = -1
    hang_at_step: int = -1
    dies_of: int = -1
    dies_after: int = 0


class _ProcessRunner(ScriptedRunner):
    """The scripted runner of a replica in a process of its own."""

    def __init__(self, script: Script, reply: Reply, **sizes: int) -> None:
        super().__init__(reply, **sizes)
        self._script = script
        self._deadly: dict[int, int] = {}  # slots, and how many draws are left to them

    def submit(self, plan: StepPlan) -> int:
        if plan.step == self._script.crash_at_step:
            raise RuntimeError("the script says crash")
        while plan.step == self._script.hang_at_step:
            time.sleep(60)
        if any(map(self._kills, plan.sequences)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().submit(plan)

    def _kills(self, item: SequenceStep) -> bool:
        if item.new is not None and self._script.dies_of in unpack_ids(item.new.prompt_ids):
            self._deadly[item.slot] = self._script.dies_after
        if item.slot not in self._deadly:
            return False
        self._deadly[item.slot] -= item.sample
        return self._deadly[item.slot] < 0


def load_runner(model_path: Path, *, max_num_seqs: int, block_size: int, **_: object) -> ScriptedRunner:
    """Build a runner from `script.json`, as `model_svc.runner.load.load_runner` builds a real one."""
    script = msgspec.json.decode((Path(model_path) / "script.json").read_bytes(), type=Script)
    reply = scripted_reply(*script.pieces) if script.pieces else hashed_reply(script.vocab_size)
    return _ProcessRunner(
        script,
        reply,
        num_blocks=script.num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_model_len=script.max_model_len,
        vocab_size=script.vocab_size,
        depth=script.depth,
    )
