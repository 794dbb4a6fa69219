"""A model of some shape with random weights, an engine over it, and the floors that a card sets."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.float8_kv import DTYPE
from loadtest.step_floors import StepFloors
from model_svc.engine.engine import Engine
from model_svc.engine.plan import Runner
from model_svc.engine.request import EngineRequest
from model_svc.layers.group import ALONE, Group
from model_svc.models.config import parse_config
from model_svc.models.load import build_model
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.float8 import Float8
from model_svc.quant.grouped import Grouped
from model_svc.quant.kept import Kept
from model_svc.quant.method import QuantMethod
from model_svc.runner.load import make_runner
from model_svc.weights.random import RandomSource, float4, float8, four_bits
from model_svc.weights.stored.tensor import QuantizedTensor
from wire import block_hash
from wire.messages import Prompt, SamplingParams, pack_ids

MakeRunner = Callable[..., tuple[Runner, dict[str, float]]]
Stored = Callable[[Tensor], QuantizedTensor] | None
Method = Callable[[torch.dtype, torch.device], QuantMethod]


def kept(dtype: torch.dtype, device: torch.device) -> QuantMethod:
    """Return the method that keeps experts of MXFP4, all else being numbers."""
    return Kept(Dequantized(dtype, device))


WEIGHTS: dict[str, tuple[Stored, Method]] = {
    "bf16": (None, Dequantized),
    "fp8": (float8, Float8),
    "4bit": (four_bits, Grouped),
    "mxfp4": (float4, kept),
}
"""How a checkpoint stores the matrices of layers (None: as numbers), and what multiplies by them."""
_EXPERT_WEIGHT_BYTES = {"mxfp4": 17 / 32, "4bit": 17 / 32, "fp8": 1.0}  # of others: 2
KV_DTYPES: dict[str, torch.dtype | None] = {"bf16": None, "fp8": DTYPE}


def synchronize() -> None:
    """Wait for the card, if there is one: without, what is timed runs at once and only the harness is tried."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def random_runner(
    shape: dict[str, Any], on: str, group: Group = ALONE, *, weights: str = "bf16", **options: Any
) -> tuple[Runner, dict[str, float]]:
    """Return a runner of a model with random weights, one of `WEIGHTS`, and how long these and it took."""
    device = torch.device(on)
    stored, method = WEIGHTS[weights]
    source = RandomSource(tied=shape["tie_word_embeddings"], dtype=torch.bfloat16, device=device, stored=stored)
    began = time.perf_counter()
    config = parse_config(Path("random/config.json"), shape)
    model = build_model(config, source, method(torch.bfloat16, device), device=device, max_len=16384, group=group)
    synchronize()
    weights_at = time.perf_counter()
    defaults = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    runner = make_runner(model, dtype=torch.bfloat16, **(defaults | options))
    return runner, {"weights": weights_at - began, "runner": time.perf_counter() - weights_at}


class Bench:
    """A model of some shape with an engine over it."""

    def __init__(
        self,
        shape: dict[str, Any],
        ceiling: tuple[float, float],
        *,
        on: str = "cuda",
        make: MakeRunner = random_runner,
        **options: Any,
    ) -> None:
        self.shape = shape
        self.runner, self.seconds = make(shape, on, **options)
        self.info = self.runner.info
        self.floors = StepFloors(
            shape, self.info.weight_bytes, self.info.kv_bytes_per_token, ceiling[0] * 1e9, ceiling[1] * 1e12,
            _EXPERT_WEIGHT_BYTES.get(options.get("weights", ""), 2.0),
        )  # fmt: skip
        self._requests = 0
        self.engine = self.new_engine()

    def new_engine(self, **options: Any) -> Engine:
        """Return an engine without any prefix in its cache."""
        return Engine(self.runner, token_bytes=lambda _: b"x", **options)

    def request(self, prompt: Sequence[int], max_tokens: int, **sampling: Any) -> EngineRequest:
        """Return a greedy request that ends by length, with the block hashes that the tokenizer desk would send."""
        self._requests += 1
        root, block_size = b"r" * 16, self.info.block_size
        content = Prompt(
            token_ids=pack_ids(prompt), num_tokens=len(prompt), block_root=root, max_tokens=max_tokens,
            block_hashes=b"".join(block_hash.chain(root, prompt, block_size)), block_size=block_size,
        )  # fmt: skip
        params = SamplingParams(**({"temperature": 0.0, "ignore_eos": True} | sampling))
        return EngineRequest(request_id=f"r{self._requests}", prompt=content, sampling=params)

    def add(self, prompt: Sequence[int], max_tokens: int, **sampling: Any) -> str:
        """Queue such a request."""
        request = self.request(prompt, max_tokens, **sampling)
        self.engine.add(request)
        return request.request_id

    def prompt(self, length: int) -> list[int]:
        """Return ids that no other prompt begins with."""
        draw = random.Random(self._requests * 7919 + length)
        return [draw.randrange(self.shape["vocab_size"]) for _ in range(length)]

    def drain(self) -> None:
        """Step until nothing is left."""
        while self.engine.has_work:
            self.engine.step()
            self.engine.events()
