"""Quantized checkpoints against transformers on the numbers that they stand for: all formats, prefill and decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from kernels import dispatch
from kernels.native.library import built
from kernels.quantized_linear import rounded, values
from model_svc.layers.group import Group, Ranks
from model_svc.models.decoder import Decoder
from model_svc.models.load import load_model
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.grouped import Grouped
from model_svc.quant.native import Native
from model_svc.weights.open import open_weights
from model_svc.weights.source import Shard
from model_svc.weights.stored.grouped_tensor import GroupedTensor
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.weights.quantized_models import CASES, write_quantized

CPU = torch.device("cpu")
IDS = [4, 9, 33, 71, 2, 9, 50, 18, 61, 5, 90, 44]
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 192,  # one and a half groups of 128
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}


def made(directory: Path, name: str, **changes: Any) -> Any:
    """Write a checkpoint of a model with biases on q, k and v, and return the model of the same numbers."""
    torch.manual_seed(3)
    config = transformers.Qwen2Config(**(SIZES | changes))
    model = transformers.Qwen2ForCausalLM._from_config(config, attn_implementation="eager").eval()
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            parameter.data.normal_(std=0.3)
    with torch.no_grad():
        write_quantized(directory, model, CASES[name])
    return model


@torch.inference_mode()
def expected(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([IDS])).logits[0]
    return logits


def stepwise(model: Decoder) -> torch.Tensor:
    driver, seq = ModelDriver(model), Tracked(0, list(IDS))
    return torch.cat([driver.logits((seq, count))[0] for count in (7, 1, 2, 1, 1)])


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_numbers_that_the_checkpoint_stands_for(name: str, tmp_path: Path) -> None:
    oracle = made(tmp_path, name)
    model = load_model(tmp_path, dtype=torch.float32, device=CPU)
    torch.testing.assert_close(stepwise(model), expected(oracle), rtol=2e-4, atol=2e-4)


@pytest.mark.skipif(not built(), reason="native kernels are not built")
@pytest.mark.parametrize("name", CASES)
def test_native_kernels_keep_what_they_can_packed(name: str, tmp_path: Path) -> None:
    oracle = made(tmp_path, name)
    model = load_model(tmp_path, dtype=torch.float32, device=CPU, method=Native())
    wanted = expected(oracle)
    error = (stepwise(model) - wanted).pow(2).mean().sqrt() / wanted.std()
    assert error < 0.08  # of activations, rounded to 8 bits: random weights this wide magnify it
    dense = load_model(tmp_path, dtype=torch.float32, device=CPU)
    tables = 4 * 2 * SIZES["vocab_size"] * SIZES["hidden_size"]
    share = (model.weight_bytes - tables) / (dense.weight_bytes - tables)
    assert (share < 0.35) is CASES[name].packed


@pytest.mark.skipif(not built(), reason="native kernels are not built")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.packed])
def test_a_packed_product_rounds_activations_and_nothing_else(name: str, tmp_path: Path) -> None:
    weights = made(tmp_path, name).state_dict()
    source = open_weights(tmp_path, {"quantization_config": CASES[name].config})
    for part in ("self_attn.q_proj", "mlp.down_proj"):
        key = f"model.layers.0.{part}.weight"
        wanted, x = weights[key], torch.randn(5, weights[key].shape[1])
        stored = source.get_shard(key, tuple(wanted.shape))
        assert isinstance(stored, GroupedTensor)
        found, blocks = Native().linear([stored], None)(x), stored.as_blocks()
        if stored.order is not None:
            x, wanted = x[:, stored.order], wanted[:, stored.order]
        exact = functional.linear(values(rounded(x)).double(), wanted.double())
        error = float((found - exact).abs().max() / exact.abs().max())
        assert blocks is not None
        assert error < (1e-3 if blocks.type.name == "Q4_1" else 1e-5)  # its minima are rounded to float16


@pytest.mark.parametrize("name", CASES)
def test_weights_that_stay_packed_on_a_gpu_give_the_same_logits(name: str, tmp_path: Path) -> None:
    oracle = made(tmp_path, name)
    model = load_model(tmp_path, dtype=torch.float32, device=CPU, method=Grouped(torch.float32, CPU))
    with dispatch.forced("reference"):
        torch.testing.assert_close(stepwise(model), expected(oracle), rtol=2e-4, atol=2e-4)
    dense = load_model(tmp_path, dtype=torch.float32, device=CPU)
    tables = 4 * 2 * SIZES["vocab_size"] * SIZES["hidden_size"]
    assert model.weight_bytes - tables < 0.4 * (dense.weight_bytes - tables)


@pytest.mark.parametrize("name", ["gptq_4_activation_order", "fp8_small_blocks"])
def test_its_kernels_read_what_the_checkpoint_holds(name: str, tmp_path: Path) -> None:
    key = "model.layers.0.self_attn.k_proj.weight"
    wanted = made(tmp_path, name).state_dict()[key]
    source = open_weights(tmp_path, {"quantization_config": CASES[name].config})
    op = Grouped(torch.float32, CPU).linear([source.get_shard(key, tuple(wanted.shape))], None)
    for rows in (1, 3):
        x = torch.randn(rows, wanted.shape[1])
        with dispatch.forced("triton"):
            torch.testing.assert_close(op(x), functional.linear(x, wanted), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_compiled_kernels_give_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    card = torch.device("cuda")
    wanted = expected(made(tmp_path, name))
    for method in (Grouped(torch.float32, card), Dequantized(torch.float32, card)):
        found = stepwise(load_model(tmp_path, dtype=torch.float32, device=card, method=method)).cpu()
        # A kernel's float32 products may run on tensor cores with shorter mantissas.
        assert float((found - wanted).abs().max()) < 0.02 * float(wanted.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_ranks_share_a_quantized_weight_by_rows_and_by_columns(name: str, tmp_path: Path) -> None:
    oracle = made(tmp_path, name).state_dict()
    config = {"quantization_config": CASES[name].config}
    for weight, dim in (("self_attn.q_proj", 0), ("self_attn.o_proj", 1), ("mlp.down_proj", 1)):
        whole = oracle[f"model.layers.1.{weight}.weight"]
        for rank in range(2):
            source = open_weights(tmp_path, config)
            stored = source.get_shard(f"model.layers.1.{weight}.weight", tuple(whole.shape), Shard(dim, rank, 2))
            torch.testing.assert_close(stored.dequantize(), whole.chunk(2, dim)[rank], rtol=1e-6, atol=1e-7)


def test_every_rank_loads_its_part(tmp_path: Path) -> None:
    made(tmp_path, "gptq_4_activation_order")
    whole = load_model(tmp_path, dtype=torch.float32, device=CPU)
    group: Group = Ranks(1, 2, None, None)
    part = load_model(tmp_path, dtype=torch.float32, device=CPU, group=group)
    assert part.weight_bytes < whole.weight_bytes


@pytest.mark.parametrize("name", ["fp8_blocks", "fp8_small_blocks", "compressed_int8"])
def test_attention_over_latents_takes_quantized_matrices(name: str, tmp_path: Path) -> None:
    sizes = SIZES | {
        "num_key_value_heads": 4, "kv_lora_rank": 40, "q_lora_rank": 48, "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 8, "v_head_dim": 24, "first_k_dense_replace": 2,
    }  # fmt: skip
    torch.manual_seed(3)
    oracle = transformers.DeepseekV3ForCausalLM._from_config(
        transformers.DeepseekV3Config(**sizes), attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        write_quantized(tmp_path, oracle, CASES[name])
    for method in (None, Grouped(torch.float32, CPU)):
        model = load_model(tmp_path, dtype=torch.float32, device=CPU, method=method)
        with dispatch.forced("reference"):
            torch.testing.assert_close(stepwise(model), expected(oracle), rtol=2e-4, atol=2e-4)
