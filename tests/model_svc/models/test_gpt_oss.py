"""gpt-oss with experts in MXFP4, as it is published and as GGUF files hold it, against transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from headrace.pull.gguf_config import config_json
from kernels.native.library import built
from model_svc.models.load import load_model
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.native import Native
from model_svc.weights.gguf_header import read_header
from tests.headrace.gguf_gpt_oss import tiny_gpt_oss
from tests.model_svc.models.test_parity import expected, oracle_model, prompt
from tests.model_svc.paged import ModelDriver, Tracked

CPU = torch.device("cpu")


def published(directory: Path) -> Any:
    """Write a checkpoint in the form of the released ones, and return transformers' model of the same numbers."""
    model = oracle_model("gpt_oss")
    model.save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    for n, layer in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(layer.mlp.experts, name)
            X, size, out = weight.shape
            codes = torch.randint(0, 256, (X, out, size // 32, 16), dtype=torch.uint8)
            scales = torch.randint(123, 126, (X, out, size // 32), dtype=torch.uint8)
            weight.data.copy_(convert_moe_packed_tensors(codes, scales, dtype=torch.float32))
            at = f"model.layers.{n}.mlp.experts.{name}"
            del tensors[at]
            tensors |= {f"{at}_blocks": codes, f"{at}_scales": scales}
    save_file(tensors, directory / "model.safetensors")
    path = directory / "config.json"
    config = json.loads(path.read_bytes()) | {"quantization_config": {"quant_method": "mxfp4"}}
    path.write_text(json.dumps(config))
    return model


def pulled(directory: Path) -> Any:
    """Write a GGUF file and the config that is made of it."""
    model = tiny_gpt_oss(directory / "tiny.gguf")
    (directory / "config.json").write_text(json.dumps(config_json(read_header(directory / "tiny.gguf"))))
    return model


@pytest.mark.parametrize("write", [published, pulled])
def test_logits_are_those_of_transformers_and_packed_products_come_near(
    tmp_path: Path, write: Callable[[Path], Any]
) -> None:
    oracle, ids = write(tmp_path), prompt(37, seed=1)
    theirs = expected(oracle, ids)
    exact = load_model(tmp_path, dtype=torch.float32, device=CPU, method=Dequantized(torch.float32, CPU))
    torch.testing.assert_close(ModelDriver(exact).logits((Tracked(0, list(ids)), 37))[0], theirs, rtol=2e-4, atol=2e-4)
    if built():
        packed = load_model(tmp_path, dtype=torch.float32, device=CPU, method=Native())
        assert packed.weight_bytes < 0.6 * exact.weight_bytes
        found = ModelDriver(packed).logits((Tracked(0, list(ids)), 37))[0]
        error = (found - theirs).pow(2).mean(1).sqrt() / theirs.std()
        assert float(error.median()) < 0.1
