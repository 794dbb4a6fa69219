"""gpt-oss as it is published, in MXFP4 safetensors and GGUF files, beside transformers on the numbers of the blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.pull.model_directory import from_gguf
from kernels.native.library import built
from model_svc.models.decoder import Decoder
from model_svc.models.load import load_model
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.kept import Kept
from model_svc.quant.native import Native
from tests.gpt_oss import write_published
from tests.headrace.gguf_gpt_oss import tiny_gpt_oss
from tests.model_svc.paged import ModelDriver, Tracked

CPU = torch.device("cpu")
IDS = [5, 80, 199, 3, 41, 260, 7, 7, 120, 66, 31, 12, 250, 90]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Path]]:
    """Return the model, and a directory of each form."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    model = tiny_gpt_oss(folder / "tiny.gguf")
    pulled = from_gguf(folder / "tiny.gguf", folder / "pulled")
    return model, {"gguf": pulled, "safetensors": write_published(folder / "published", model)}


def stepwise(model: Decoder, dtype: torch.dtype = torch.float32) -> Tensor:
    driver, seq = ModelDriver(model, dtype=dtype), Tracked(0, list(IDS))
    return torch.cat([driver.logits((seq, count))[0] for count in (9, 1, 2, 1, 1)])


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_logits_are_those_of_the_numbers_in_the_blocks(made: tuple[Any, dict[str, Path]], form: str) -> None:
    oracle, directories = made
    with torch.inference_mode():
        wanted = oracle(torch.tensor([IDS])).logits[0]
    model = load_model(directories[form], dtype=torch.float32, device=CPU)
    torch.testing.assert_close(stepwise(model), wanted, rtol=1e-3, atol=1e-3)
    kept = load_model(directories[form], dtype=torch.float32, device=CPU, method=Kept(Dequantized(torch.float32, CPU)))
    torch.testing.assert_close(stepwise(kept), stepwise(model), rtol=1e-5, atol=1e-5)
    assert kept.weight_bytes < model.weight_bytes
    if not built():
        return
    packed = load_model(directories[form], dtype=torch.float32, device=CPU, method=Native())
    error = (stepwise(packed) - wanted).pow(2).mean(1).sqrt() / wanted.std()
    assert float(error.median()) < 0.08  # of activations, rounded to 8 bits
    experts = sum(tensor.numel() for name, tensor in oracle.state_dict().items() if name.endswith("_proj"))
    saved = model.weight_bytes - packed.weight_bytes
    assert saved == experts * 4 - experts * 17 // 32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_a_card_computes_with_the_blocks_what_it_computes_with_their_numbers(
    made: tuple[Any, dict[str, Path]], form: str
) -> None:
    oracle, directories = made
    card, dtype = torch.device("cuda"), torch.bfloat16
    with torch.inference_mode():
        wanted = oracle(torch.tensor([IDS])).logits[0]
    errors = []
    for method in (Kept(Dequantized(dtype, card)), Dequantized(dtype, card)):
        found = stepwise(load_model(directories[form], dtype=dtype, device=card, method=method), dtype).cpu()
        errors.append(float(((found - wanted).pow(2).mean(1).sqrt() / wanted.std()).median()))
    assert errors[0] < 1.3 * errors[1] < 0.1  # of bfloat16 activations
