"""The second tier of the prefix cache, by name: which blocks are kept beside the device, and in which place there.

Pure bookkeeping: the bytes lie with the runner, in memory of the host or in a file, and each step's plan says what is
copied before it computes, first the saves and then the loads. A block is saved once, soon after it got its name, while
it is on the device anyway: when it has to go from there, nothing waits for a copy (docs/decisions/0007). A block that
has to go and is not kept is saved in the same plan.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from model_svc.engine.plan import BlockCopy, RunnerInfo

# So many blocks are saved together: a copy is a few launches a layer, for one block as for all.
SAVE_AT_ONCE = 16


class Kept(Protocol):
    """What a tier holds from before the start. It is believed only after it was looked at."""

    def names(self) -> Iterable[tuple[bytes, int]]:
        """Return the names that are said to be there, and their places."""
        ...

    def is_sound(self, place: int) -> bool:
        """Read what lies in a place; tells whether it is what was saved."""
        ...


@runtime_checkable
class HasKept(Protocol):
    """A runner whose tier may outlive it."""

    @property
    def kept(self) -> Kept | None:
        """What it found; None where nothing lasts."""
        ...


class KvTier:
    """The names of the blocks in `num_places` places; the one that was wanted longest ago goes first."""

    def __init__(
        self, info: RunnerInfo, on_device: Callable[[bytes], bool], gone: Callable[[bytes], None],
        kept: Kept | None = None,
    ) -> None:  # fmt: skip
        """`on_device` tells whether the pool has a block, too; `gone` hears of those that nobody has any more."""
        self.num_places = info.num_tier_blocks
        self.block_ms = info.tier_block_ms
        self.num_saved = self.num_loaded = 0
        self._on_device = on_device
        self._gone = gone
        self._kept = kept
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(self.num_places - 1, -1, -1))
        self._unsaved: dict[bytes, int] = {}  # named blocks on the device
        self._loads: list[BlockCopy] = []
        self._busy: set[int] = set()  # places that the plan in the making copies from or to
        self._due = False
        self._unproven: set[int] = set()
        if kept is not None:
            self._take_over(kept)

    @property
    def num_blocks(self) -> int:
        """How many blocks are kept."""
        return len(self._places)

    @property
    def has_unsaved(self) -> bool:
        """Whether there is something to copy even if nothing is to compute."""
        return bool(self._unsaved)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._places)

    # --- what the pool tells ---

    def note(self, name: bytes, block: int) -> None:
        """Hear that a block is named on the device: it is to be saved, unless it is kept already."""
        if name in self._places:
            self._places.move_to_end(name)
        else:
            self._unsaved[name] = block

    def lets_go(self, name: bytes, block: int) -> None:
        """Hear that the device gives a block up for the step that is being planned: then it is the newest here.

        If it is not kept, or not any more, for it was on the device longer than others here, it is saved in that plan.
        """
        if name in self._places:
            self._places.move_to_end(name)
        else:
            self._unsaved[name] = block
            self._due = True

    def forget(self, name: bytes) -> None:
        """Drop a block whose content is not to be trusted."""
        self._unsaved.pop(name, None)
        place = self._places.pop(name, None)
        if place is not None:
            self._free.append(place)
            self._unproven.discard(place)

    def drop_unsaved(self, blocks: Iterable[int]) -> None:
        """Hear that blocks are overwritten before the next plan; what of them was not saved is lost."""
        overwritten = set(blocks)
        for name in [name for name, block in self._unsaved.items() if block in overwritten]:
            self._give_up(name)

    # --- what the scheduler asks ---

    def has(self, name: bytes) -> bool:
        """Return whether a block can be loaded; what was there before the start is read to see."""
        place = self._places.get(name)
        if place is None:
            return False
        if place in self._unproven:
            assert self._kept is not None
            if not self._kept.is_sound(place):
                self.forget(name)
                self._lost(name)
                return False
            self._unproven.discard(place)
        return True

    def load(self, name: bytes, block: int) -> None:
        """Have a kept block copied to the device before the step that is being planned; the pool is to name it."""
        place = self._places[name]
        self._busy.add(place)
        self._loads.append(BlockCopy(block=block, place=place, name=name))
        self.num_loaded += 1

    def close_plan(self, *, idle: bool) -> tuple[tuple[BlockCopy, ...], tuple[BlockCopy, ...]]:
        """Return the saves and loads of the step that was planned. When `idle`, nothing is put off."""
        saves: list[BlockCopy] = []
        if self._due or idle or len(self._unsaved) >= SAVE_AT_ONCE:
            for name, block in tuple(self._unsaved.items()):
                place = self._place()
                if place is None:
                    self._give_up(name)
                    continue
                del self._unsaved[name]
                self._places[name] = place
                self._busy.add(place)
                saves.append(BlockCopy(block=block, place=place, name=name))
        loads, self._loads, self._due = self._loads, [], False
        self._busy.clear()
        self.num_saved += len(saves)
        return tuple(saves), tuple(loads)

    def check_invariants(self, named: dict[bytes, int]) -> None:
        """Assert that places are held once, and that unsaved blocks are on the device."""
        places = [*self._free, *self._places.values()]
        assert sorted(places) == list(range(self.num_places)), "a place leaked or is held twice"
        assert not self._busy and not self._loads, "copies outside of a plan"
        kept_on = all(named.get(name) == block for name, block in self._unsaved.items())
        assert self._due or kept_on, "an unsaved block is gone"
        assert not self._unsaved.keys() & self._places.keys(), "a kept block is to be saved"

    def _place(self) -> int | None:
        """Return a place to save to, if need be that of the oldest; None if this plan copies from or to all of them."""
        if self._free:
            return self._free.pop()
        if not self._places or next(iter(self._places.values())) in self._busy:
            return None
        name, place = self._places.popitem(last=False)
        self._unproven.discard(place)
        self._lost(name)
        return place

    def _give_up(self, name: bytes) -> None:
        del self._unsaved[name]
        self._lost(name)

    def _lost(self, name: bytes) -> None:
        if not self._on_device(name):
            self._gone(name)

    def _take_over(self, kept: Kept) -> None:
        for name, place in kept.names():
            if name not in self._places:
                self._places[name] = place
        self._unproven = set(self._places.values())
        self._free = [place for place in self._free if place not in self._unproven]
