"""Makes the second tier of the prefix cache that the settings ask for: how many blocks it holds, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from model_svc.disagg.weights_digest import weights_digest
from model_svc.engine.plan import RunnerInfo
from model_svc.models.decoder import Decoder
from model_svc.runner import start_times
from model_svc.runner.block_file import BlockFile, places_in
from model_svc.runner.host_memory import available_bytes
from model_svc.runner.kept_blocks import HostMemory, Store
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.kv_transfer import layout_of
from model_svc.runner.precision import RunnerConfigError
from model_svc.runner.tier_copies import buffer_bytes, bytes_of_block

_GIB = 1 << 30


@dataclass(frozen=True)
class TierOptions:
    """Bytes in the host's memory, or in a file below `disk_dir`; of which model and adapters, in which type."""

    ram_bytes: int = 0
    disk_bytes: int = 0
    disk_dir: str = ""
    directories: tuple[Path, ...] = ()
    dtype: str = ""

    def buffer_bytes(self, info: RunnerInfo) -> int:
        """Return how much of a card's memory the copies need."""
        return buffer_bytes(info.kv_bytes_per_token * info.block_size) if self.ram_bytes else 0


NO_TIER = TierOptions()


def make_store(options: TierOptions, cache: KvCache, model: Decoder) -> Store | None:
    """Return where the tier's blocks lie; None if none is asked for.

    Each rank keeps its part of every block, in the places that the plans of all name. Raises RunnerConfigError.
    """
    if model.keeps_state(model.config) and (options.ram_bytes or options.disk_bytes):
        raise RunnerConfigError("kv_ram_gib and kv_disk_gib are of no use to a model with states; set 0")
    block_bytes, group = bytes_of_block(cache), model.group
    with start_times.part("second tier"):
        if options.disk_bytes:
            if model.device.type != "cpu" or max(group.size, group.stages) > 1:
                raise RunnerConfigError("kv_disk_gib is for one process on a CPU; set kv_ram_gib elsewhere")
            places = _enough(places_in(options.disk_bytes, block_bytes), block_bytes, "kv_disk_gib")
            layout = msgspec.structs.replace(layout_of(cache), weights=weights_digest(*options.directories))
            whose = f"{layout.digest} {options.dtype}"
            return BlockFile(Path(options.disk_dir), places, block_bytes, whose)
        if options.ram_bytes:
            # Of the sum: stages and ranks of one host have about equal parts of each block.
            own_bytes = options.ram_bytes // max(group.size, group.stages)
            if own_bytes > available_bytes():
                raise RunnerConfigError(
                    f"kv_ram_gib: {own_bytes / _GIB:.1f} GiB are asked for, {available_bytes() / _GIB:.1f} are free"
                )
            places = group.least(_enough(own_bytes // block_bytes, block_bytes, "kv_ram_gib"))
            return HostMemory(places, block_bytes, pinned=model.device.type == "cuda")
    return None


def _enough(num_places: int, block_bytes: int, setting: str) -> int:
    if num_places < 1:
        raise RunnerConfigError(f"{setting} has no room for one block of {block_bytes} bytes")
    return num_places
