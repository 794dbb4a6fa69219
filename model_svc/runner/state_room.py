"""How many sequences' states, and how many snapshots of some, a runner has room for beside the KV cache."""

from __future__ import annotations

import logging

import msgspec

from model_svc.engine.plan import RunnerInfo
from model_svc.layers.group import Group
from model_svc.runner.precision import RunnerConfigError

_log = logging.getLogger(__name__)
_SHARE = 0.5  # of the memory for keys, values and states; the rest is for what grows with tokens


def with_states(info: RunnerInfo, memory: int | None) -> RunnerInfo:
    """Return `info` with a snapshot for each sequence that runs at once, and no more of these than memory allows.

    `memory` None: so many as are asked for. Raises RunnerConfigError where not even one fits.
    """
    if not info.state_bytes:
        return info
    fitting = info.max_num_seqs
    if memory is not None:
        fitting = (int(memory * _SHARE) // info.state_bytes - 1) // 2  # a row is nobody's
    if fitting < 1:
        mib = info.state_bytes / (1 << 20)
        raise RunnerConfigError(
            f"no room for states: one sequence's takes {mib:.1f} MiB, and with a snapshot and a spare one states may "
            "have half of kv_memory_bytes; raise it"
        )
    if fitting < info.max_num_seqs:
        _log.warning(
            "states of %d sequences fit, not of max_num_seqs %d; raise kv_memory_bytes for more", fitting,
            info.max_num_seqs,
        )  # fmt: skip
    most = min(fitting, info.max_num_seqs)
    return msgspec.structs.replace(info, max_num_seqs=most, num_snapshots=most)


def as_least(info: RunnerInfo, group: Group) -> RunnerInfo:
    """Return `info` with as many states as the rank with least room has, for all take the same plans."""
    if not info.state_bytes:
        return info
    most, snapshots = group.least(info.max_num_seqs), group.least(info.num_snapshots)
    return msgspec.structs.replace(info, max_num_seqs=most, num_snapshots=snapshots)


def states_bytes(info: RunnerInfo) -> int:
    """Return what all states take, those of snapshots and a spare one among them."""
    return (info.max_num_seqs + info.num_snapshots + 1) * info.state_bytes if info.state_bytes else 0
