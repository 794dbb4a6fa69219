"""What configs of single architectures say, and what old ones leave out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from model_svc.models.config import parse_config
from model_svc.models.decoder import Decoder
from model_svc.models.deepseek import DeepseekV2
from model_svc.models.load import build_model
from model_svc.models.registry import model_class
from model_svc.quant.dequantized import Dequantized
from model_svc.weights.errors import CheckpointError
from model_svc.weights.random import RandomSource
from tests.model_svc.models.test_load import CPU, GOOD, load, logits
from tests.model_svc.models.test_parity import oracle_model
from tests.model_svc.tiny import LATENTS as TINY_LATENTS


def test_layers_that_guess_ahead_behind_the_model_s_own_are_left_out(tmp_path: Path) -> None:
    oracle_model("glm4_moe", num_nextn_predict_layers=0).save_pretrained(tmp_path)
    wanted = logits(load(tmp_path))
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    save_file(stored | {"model.layers.4.eh_proj.weight": torch.ones(2, 3)}, path)
    with pytest.raises(CheckpointError, match=r"no use for 1 tensors: model\.layers\.4\.eh_proj"):
        load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits(load(tmp_path)), wanted)


def test_olmo_3_stretches_full_layers_alone_also_where_an_old_config_says_it_once() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    old = {"rope_theta": 5000.0, "rope_scaling": yarn}
    new = {
        "full_attention": {**yarn, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }

    def tables(changes: dict[str, Any]) -> list[torch.Tensor]:
        raw = GOOD | {"architectures": ["Olmo3ForCausalLM"], "vocab_size": 96, "rms_norm_eps": 1e-5} | changes
        config = parse_config(Path("x/config.json"), raw)
        model = build_model(config, RandomSource(tied=False), Dequantized(torch.float32, CPU), device=CPU)
        return [model.rope(kind).cos for kind in ("full_attention", "sliding_attention")]

    full, windowed = tables(old)
    assert not torch.allclose(full, windowed)
    for ours, wanted in zip((full, windowed), tables({"rope_parameters": new}), strict=True):
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize(
    ("architecture", "changes", "pairs"),
    [("Glm", {}, 4), ("Glm4", {"partial_rotary_factor": 0.25}, 2), ("MiniMaxM2", {"rotary_dim": 6}, 3)],
)
def test_a_part_of_a_head_is_rotated_by_default_or_as_the_config_says(
    architecture: str, changes: dict[str, Any], pairs: int
) -> None:
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    raw = GOOD | experts | {"architectures": [f"{architecture}ForCausalLM"], "vocab_size": 96, "head_dim": 16} | changes
    config = parse_config(Path("x/config.json"), raw)
    model = build_model(config, RandomSource(tied=False), Dequantized(torch.float32, CPU), device=CPU)
    assert model.rope().cos.shape[1] == pairs


@pytest.mark.parametrize(
    ("family", "module", "changes"),
    [
        ("Gemma2", "gemma2", {}),
        ("Gemma3Text", "gemma3", {}),
        ("Cohere2", "cohere2", {}),
        ("Olmo3", "olmo3", {}),
        ("Qwen2", "qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 5}),
        ("Qwen2", "qwen2", {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 5}),
    ],
    ids=str,
)
def test_old_configs_without_a_list_of_layer_kinds_mean_what_transformers_makes_of_them(
    family: str, module: str, changes: dict[str, Any]
) -> None:
    wanted = getattr(transformers, f"{family}Config")(num_hidden_layers=14, **changes).layer_types
    architecture = f"{family.removesuffix('Text')}ForCausalLM"
    config = parse_config(Path("x/config.json"), GOOD | changes | {"architectures": [architecture]})
    pattern = model_class(config).window_pattern
    assert [config.layer_type(n, pattern) for n in range(14)] == wanted


def test_lfm2_configs_as_they_were_published_give_the_sizes_that_follow_from_them() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    whole = {"architectures": ["Lfm2ForCausalLM"], "vocab_size": 96, "norm_eps": 1e-5, "full_attn_idxs": [1], **sizes}
    old = {"block_ff_dim": 100, "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.0, "conv_L_cache": 3}

    def matrices(raw: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}

        class Noted(RandomSource):
            def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
                found[name] = shape
                return super().get(name, shape)

        config = parse_config(Path("x/config.json"), raw)
        model = build_model(config, Noted(tied=True), Dequantized(torch.float32, CPU), device=CPU)
        assert [shape is None for shape in model.state_shapes()] == [False, True, False]
        return found

    found = matrices(whole | old)
    assert found["model.layers.0.feed_forward.w1.weight"] == (80, 32)  # two thirds, and up to a multiple
    assert "model.layers.1.self_attn.out_proj.weight" in found
    assert "model.layers.2.conv.conv.weight" in found
    assert "lm_head.weight" not in found
    new = matrices(whole | {"intermediate_size": 80, "block_auto_adjust_ff_dim": False})
    assert new == found
    with pytest.raises(CheckpointError, match="conv_L_cache 1: a convolution must be over 2 tokens or more"):
        matrices(whole | old | {"conv_L_cache": 1})


def deepseek(**changes: Any) -> Decoder:
    """Build a model of a config as DeepSeek's own repositories have it."""
    raw = GOOD | TINY_LATENTS | {"architectures": ["DeepseekV2ForCausalLM"], "vocab_size": 96} | changes
    config = parse_config(Path("x/config.json"), raw)
    return build_model(config, RandomSource(tied=False), Dequantized(torch.float32, CPU), device=CPU)


def test_a_stretched_context_sharpens_deepseeks_scores_and_leaves_its_tables_alone() -> None:
    stretch = {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}
    model = deepseek(rope_scaling=stretch | {"original_max_position_embeddings": 16}, q_lora_rank=None)
    assert isinstance(model, DeepseekV2)
    sharper = (0.0707 * math.log(40) + 1) ** 2
    assert model.latents().scale == pytest.approx(20**-0.5 * sharper)
    assert model.rope().cos.shape[1] == 4
    assert torch.equal(model.rope().cos[0], torch.ones(4))
    plain = deepseek()
    assert isinstance(plain, DeepseekV2)
    assert plain.latents().scale == 20**-0.5


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"topk_method": "noaux_tc"},
            "topk_method 'noaux_tc' is not supported; known are greedy, group_limited_greedy",
        ),
        ({"kv_lora_rank": None}, "kv_lora_rank must be positive"),
        ({"v_head_dim": 0}, "v_head_dim must be positive"),
    ],
    ids=str,
)
def test_what_deepseeks_configs_cannot_mean_is_refused_by_name(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointError, match=fault):
        deepseek(first_k_dense_replace=0, **changes)
