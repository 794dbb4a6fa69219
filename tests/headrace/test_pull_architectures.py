"""GGUF files of architectures that transformers cannot read: its model, converted, computes the same when pulled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from headrace.pull import pull
from model_svc.models.load import load_model
from tests.headrace.gguf_checkpoint import gguf_of, vocab_size
from tests.model_svc.models.test_parity import LONG, oracle_model, prompt
from tests.model_svc.models.test_parity import STRETCHED as LONG_STRETCH
from tests.model_svc.paged import ModelDriver, Tracked


class File(NamedTuple):
    """Llama.cpp's architecture, a case of test_parity, what the file says besides, what the case changes."""

    arch: str
    case: str
    says: dict[str, Any]
    changes: Mapping[str, Any] = MappingProxyType({})
    old_experts: bool = False
    split_latents: bool = False
    more: Mapping[str, np.ndarray] = MappingProxyType({})  # tensors that transformers has no weights for


MIXTRAL = {"expert_count": 5, "expert_used_count": 2}
WINDOWS = {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False] * 2}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
SCALES = {"embedding_scale": 3.0, "attention.scale": 0.2, "residual_scale": 0.4, "logit_scale": 2.0}
ROUTED = {
    "leading_dense_block_count": 1,
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 48,
    "expert_shared_count": 2,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "expert_weights_scale": 1.7,
    "expert_weights_norm": True,
}
OF_HEADS = {"rope.dimension_count": 8, "attention.key_length": 20, "attention.value_length": 10}
OF_CACHE = {
    "rope.dimension_count": 8,
    "attention.head_count_kv": 1,
    "attention.key_length": 32,
    "attention.value_length": 24,
    "attention.key_length_mla": 20,
    "attention.value_length_mla": 10,
}
STRETCHED = YARN | {"rope.scaling.factor": 40.0, "rope.scaling.yarn_log_multiplier": 0.09}
ALIKE = {"rope_parameters": {**LONG_STRETCH, "mscale": 0.9}}
COHERE = ["sliding_attention"] * 3 + ["full_attention"]
MAMBA = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 24,
    "ssm.group_count": 1,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 128,
    "expert_shared_feed_forward_length": 40,
}
DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 24,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "rope.dimension_count": 8,
}
BESIDE = {
    "expert_count": 7,
    "expert_used_count": 3,
    "expert_feed_forward_length": 48,
    "expert_shared_feed_forward_length": 40,
}
FILES = {
    "mixtral": File("llama", "mixtral", MIXTRAL, {"sliding_window": None}),
    "mixtral_of_early_2024": File("llama", "mixtral", MIXTRAL, {"sliding_window": None}, old_experts=True),
    "olmoe": File("olmoe", "olmoe", {"expert_count": 6, "expert_used_count": 3}),
    "qwen2moe": File("qwen2moe", "qwen2_moe", {"expert_count": 7, "expert_used_count": 3}, {"decoder_sparse_step": 1}),
    "glm": File("chatglm", "glm", {"rope.dimension_count": 16}),
    "glm4": File("glm4", "glm4", {"rope.dimension_count": 8}),
    "glm4moe": File(
        "glm4moe",
        "glm4_moe",
        ROUTED | {"block_count": 5, "nextn_predict_layers": 1, "rope.dimension_count": 16},
        more={
            f"blk.4.{name}.weight": np.zeros((1, 32), np.float32)
            for name in ("nextn.eh_proj", "attn_norm", "ffn_gate_exps")
        },
    ),
    "dots1": File("dots1", "dots1", WINDOWS | ROUTED | {"expert_weights_norm": False}, {"attention_bias": False}),
    "deepseek_v2_lite_of_2024": File(
        "deepseek2",
        "deepseek_v2_lite",
        ROUTED
        | OF_HEADS
        | {"attention.kv_lora_rank": 24, "expert_group_count": 1, "expert_group_used_count": 1}
        | {"expert_weights_norm": False},
    ),
    "deepseek_v2": File(
        "deepseek2",
        "deepseek_v2",
        ROUTED
        | OF_CACHE
        | STRETCHED
        | {"attention.kv_lora_rank": 24, "attention.q_lora_rank": 20, "expert_weights_norm": False},
        ALIKE,
        split_latents=True,
    ),
    "deepseek_v3": File(
        "deepseek2",
        "deepseek_v3",
        ROUTED
        | OF_CACHE
        | STRETCHED
        | {"attention.kv_lora_rank": 24, "attention.q_lora_rank": 20, "expert_gating_func": 2},
        ALIKE,
        split_latents=True,
    ),
    "minimax_m2": File(
        "minimax-m2", "minimax_m2", {"rope.dimension_count": 16, "expert_count": 6, "expert_used_count": 2}
    ),
    "ernie4_5_moe": File(
        "ernie4_5-moe",
        "ernie4_5_moe",
        {
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 48,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "interleave_moe_layer_step": 1,
        },
        {"moe_layer_end_index": -1},
    ),
    "ministral3": File(
        "mistral3",
        "ministral3",
        YARN
        | {
            "rope.scaling.original_context_length": 8,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.5,
        },
    ),
    "hunyuan_dense": File("hunyuan-dense", "hunyuan_dense", {"rope.freq_base": 10000.0 * 50.0 ** (32 / 30)}),
    "phi3": File("phi3", "phi3", {"attention.sliding_window": 8}),
    "phi3_longrope": File(
        "phi3",
        "phi3_longrope",
        {"rope.scaling.original_context_length": 16},
        more={
            f"rope_factors_{kind}.weight": np.array(LONG[f"{kind}_factor"], dtype=np.float32)
            for kind in ("long", "short")
        },
    ),
    "cohere2": File(
        "cohere2", "cohere2", {"attention.sliding_window": 8, "logit_scale": 0.25}, {"layer_types": COHERE}
    ),
    "starcoder2": File("starcoder2", "starcoder2", {"attention.sliding_window": 8}),
    "nemotron": File("nemotron", "nemotron", {"rope.dimension_count": 16}),
    "arcee": File("arcee", "arcee", {}),
    "seed_oss": File("seed_oss", "seed_oss", {}, {"attention_out_bias": False, "mlp_bias": False}),
    "ernie4_5": File("ernie4_5", "ernie4_5", {}, {"use_bias": False}),
    "exaone4": File("exaone4", "exaone4", WINDOWS),
    "exaone4_full": File("exaone4", "exaone4_full", {}),
    "olmo2": File("olmo2", "olmo2", {}),
    "olmo3": File("olmo2", "olmo3", WINDOWS | YARN),
    "smollm3": File("smollm3", "smollm3", {}),
    "granite": File("granite", "granite", SCALES),
    "lfm2": File("lfm2", "lfm2", {"shortconv.l_cache": 3}),
    "lfm2moe": File(
        "lfm2moe",
        "lfm2_moe",
        {
            "shortconv.l_cache": 3,
            "expert_count": 7,
            "expert_used_count": 3,
            "expert_feed_forward_length": 48,
            "leading_dense_block_count": 1,
        },
        {"routed_scaling_factor": 1.0},
    ),
    "qwen3next": File(
        "qwen3next",
        "qwen3_next",
        DELTA | BESIDE,
        {"mlp_only_layers": []},
    ),
    "qwen35": File(
        "qwen35",
        "qwen3_5",
        DELTA | {"block_count": 5, "nextn_predict_layers": 1},
        more={f"blk.4.{name}.weight": np.zeros((1, 32), np.float32) for name in ("nextn.eh_proj", "attn_norm")},
    ),
    "qwen35moe": File("qwen35moe", "qwen3_5_moe", DELTA | BESIDE),
    "granitehybrid": File("granitehybrid", "granite_moe_hybrid", SCALES | MAMBA | MIXTRAL),
    "granitehybrid_dense": File(
        "granitehybrid",
        "granite_moe_hybrid_groups",
        SCALES | MAMBA | {"ssm.group_count": 2, "ssm.conv_kernel": 3, "rope.scaling.finetuned": True},
    ),
    "granitemoe": File("granitemoe", "granite_moe", SCALES | {"expert_count": 5, "expert_used_count": 2}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_pulled_file_computes_what_the_checkpoint_computes_that_it_was_made_of(tmp_path: Path, name: str) -> None:
    file = FILES[name]
    oracle = oracle_model(file.case, vocab_size=vocab_size(), **file.changes)
    options: dict[str, Any] = {"old_experts": file.old_experts, "split_latents": file.split_latents}
    path = gguf_of(oracle, tmp_path / "tiny.gguf", file.arch, file.says, file.more, **options)
    model = load_model(pull(str(path), tmp_path / "models"), dtype=torch.float32, device=torch.device("cpu"))
    ids = prompt(24, seed=1)
    with torch.inference_mode():
        expected = oracle(torch.tensor([ids])).logits[0]
    assert expected.std() > 0.05
    torch.testing.assert_close(
        ModelDriver(model).logits((Tracked(0, ids), len(ids)))[0], expected, rtol=1e-3, atol=1e-3
    )
