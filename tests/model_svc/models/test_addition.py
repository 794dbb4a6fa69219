"""Products that end in the residual addition (many rows, kernels on a GPU) against products and additions apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model_svc.models.decoder import Decoder
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.tiny import VOCAB, tiny_llama

GRANITE = {"architectures": ["GraniteForCausalLM"], "residual_multiplier": 0.4, "logits_scaling": 2.0}
IDS = [(7 * n + n * n) % VOCAB for n in range(23)]


def logits(model: Decoder, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A prompt of 20 tokens, then three more one by one."""
    driver, seq = ModelDriver(model, dtype=dtype), Tracked(0, list(IDS))
    return torch.cat([driver.logits((seq, count))[0].float().cpu() for count in (20, 1, 1, 1)])


@pytest.mark.parametrize("changes", [{}, GRANITE], ids=["llama", "granite"])
@pytest.mark.parametrize(("device", "dtype"), [
    pytest.param("cpu", torch.float32, id="plain"),
    pytest.param("cuda", torch.float32, marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
])  # fmt: skip
def test_additions_in_the_products_change_nothing_but_rounding(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], device: str, dtype: torch.dtype
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    exact = logits(tiny_llama(**changes))
    monkeypatch.setattr("kernels.few_rows.MAX_ROWS", 0)  # the prompt is short
    calls = []
    add = torch.Tensor.addmm_

    def noted(*args: Any, **more: Any) -> torch.Tensor:
        calls.append(args)
        return add(*args, **more)

    monkeypatch.setattr(torch.Tensor, "addmm_", noted)
    model = tiny_llama(device, dtype, **changes)
    layers: list[Any] = list(model._layers)
    if device == "cpu":  # the layer's choice alone: its kernels stay those of the CPU
        monkeypatch.setattr("model_svc.layers.blocks.dispatch", SimpleNamespace(form=lambda _: "triton", fixed=bool))
    for layer in layers:
        layer._fused = None  # its kernels would take so few rows
    together = logits(model, dtype)
    assert calls, "the products did not add"
    for layer in layers:
        layer._adding = None
    num_calls = len(calls)
    apart = logits(model, dtype)
    assert len(calls) == num_calls
    allowed = 1e-5 if dtype == torch.float32 else 1.5 * float((apart - exact).norm() / exact.norm())
    assert (together - exact).norm() / exact.norm() <= allowed
