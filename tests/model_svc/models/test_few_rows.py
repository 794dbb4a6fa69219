"""Layers of many forms for steps of few tokens, where norms, additions and gates are parts of other ops, and as usual.

The ops are references here; each has tests of its own for its kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import dispatch, few_rows
from model_svc.layers.blocks import FewRows, PreNorm
from model_svc.models.decoder import Decoder
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.tiny import EXPERTS, VOCAB, tiny_llama

NORMED = {"architectures": ["Qwen3ForCausalLM"]}
PARTLY = {"architectures": ["GlmForCausalLM"], "partial_rotary_factor": 0.5, "attention_bias": True}
GLM = {
    "architectures": ["Glm4MoeForCausalLM"], "use_qk_norm": True, "attention_bias": True, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1,
}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7,
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "head_dim": 24},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": NORMED,
    "qwen3, wide heads": NORMED | {"head_dim": 24, "num_attention_heads": 8, "num_key_value_heads": 1},
    "a window": {"architectures": ["MistralForCausalLM"], "sliding_window": 5},
    "neighbours turn, and half of a head": PARTLY,
    "qwen3 with experts": EXPERTS,
    "experts without norms of heads": {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "experts, sinks and biases": GPT_OSS,
    "experts beside a shared block": GLM,
}
# Attention over a window or with sinks has one more where contexts are long.
KERNELS = {
    "llama": 5, "qwen3": 6, "qwen3 with experts": 8, "experts, sinks and biases": 8,
    "experts beside a shared block": 10,
}  # fmt: skip
IDS = [(7 * n + n * n) % VOCAB for n in range(40)]


def logits(model: Decoder) -> torch.Tensor:
    """A prompt of 20 tokens and one of 3; then two tokens of one, and of both together."""
    driver, first, second = ModelDriver(model), Tracked(0, list(IDS)), Tracked(1, list(IDS[5:]))
    steps: list[list[tuple[Tracked, int]]] = [
        [(first, 20)], [(second, 3)], [(first, 1)], [(first, 1)], [(first, 1), (second, 1)], [(second, 1), (first, 1)],
    ]  # fmt: skip
    return torch.cat([row for step in steps for row in driver.logits(*step)])


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_for_few_rows_computes_what_it_does_for_many(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(**FORMS[form])
    usual = logits(model)
    layers: list[Any] = list(model._layers)
    assert all(isinstance(layer, PreNorm) and layer._fused is not None for layer in layers)
    calls: list[FewRows] = []
    call = FewRows.__call__
    monkeypatch.setattr(FewRows, "__call__", lambda self, *args: calls.append(self) or call(self, *args))  # type: ignore[func-returns-value]
    monkeypatch.setattr(few_rows, "fits", lambda _, num_rows: num_rows <= few_rows.MAX_ROWS)
    found = logits(model)
    assert len(calls) == 6 * len(layers)
    assert (found - usual).norm() / usual.norm() < 1e-5


class Launches(TorchDispatchMode):
    """Counts what would be kernels of a card: launches of Triton, which are not done, and torch's own operations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []
        executor = "triton.runtime.interpreter.GridExecutor.__call__"
        monkeypatch.setattr(executor, lambda grid, *_, **__: self.names.append(grid.fn.__name__))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and "empty" not in func.name():
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def kernels_of_a_layer(form: str, launches: Launches) -> int:
    """Return how many kernels one layer more makes of a step of two rows."""
    counts = []
    for num_layers in (3, 4):
        driver = ModelDriver(tiny_llama(num_hidden_layers=num_layers, **FORMS[form]))
        sequences = [Tracked(n, list(IDS)) for n in range(2)]
        with torch.inference_mode(), dispatch.forced("triton"):
            driver.logits(*((seq, 1) for seq in sequences))  # makes counters
            launches.names.clear()
            with launches:
                driver.logits(*((seq, 1) for seq in sequences))
        counts.append(len(launches.names))
    return counts[1] - counts[0]


def test_a_layer_for_few_rows_has_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "fits", lambda _, rows: rows <= few_rows.MAX_ROWS)
    launches = Launches(monkeypatch)
    found = {form: kernels_of_a_layer(form, launches) for form in KERNELS}
    assert found == KERNELS
