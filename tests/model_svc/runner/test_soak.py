"""The short form of loadtest.soak: random requests and aborts over the runner of GPUs, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from loadtest.soak import Soak
from model_svc.models.decoder import Decoder
from model_svc.runner.load import make_runner


def _after(steps: Iterator[int]) -> bool:
    return next(steps) >= 150


def test_random_requests_and_aborts_leak_no_block_and_end_once(tiny_model: Decoder) -> None:
    sizes: dict[str, Any] = {"num_blocks": 60, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 48}
    soak = Soak(make_runner(tiny_model, packed=True, depth=1, **sizes), at_once=12, longest=80)
    for _ in range(3):
        soak.run(partial(_after, itertools.count()))
    assert soak.count.aborted > 5
    assert soak.count.preemptions > 5
    assert soak.count.tokens > 500
