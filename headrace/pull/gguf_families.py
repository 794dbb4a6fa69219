"""What the config.json of a GGUF file says beside sizes, for families of models that differ from Llama in little."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from headrace.pull.errors import PullError
from model_svc.weights.gguf_header import GgufHeader

Family = Callable[[GgufHeader, dict[str, Any]], None]
_SIGMOID = 2  # of what makes scores of a router's logits


def windows(header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    """Return the window and the kinds of layers of a file that lists which of them are windowed; else nothing."""
    arch = header.value("general.architecture", str)
    window = header.value(f"{arch}.attention.sliding_window", int, 0)
    pattern = header.metadata.get(f"{arch}.attention.sliding_window_pattern")
    if not window or not isinstance(pattern, list) or len(pattern) != config["num_hidden_layers"]:
        return {"sliding_window": None}
    kinds = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
    return {"sliding_window": window, "layer_types": kinds}


def floats(header: GgufHeader, name: str) -> list[float]:
    """Return the numbers of a small tensor."""
    tensor = header.tensors[name]
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{tensor.shape[0]}f", file.read(4 * tensor.shape[0])))


def rotated(header: GgufHeader, config: dict[str, Any]) -> float:
    """Return what share of a head is rotated."""
    arch, head_dim = header.value("general.architecture", str), config["head_dim"]
    return float(header.value(f"{arch}.rope.dimension_count", int, head_dim) / head_dim)


def experts(header: GgufHeader, total: str = "num_experts", chosen: str = "num_experts_per_tok") -> dict[str, Any]:
    """Return how many experts there are and how many compute a token, by a family's names for these two.

    Raises CheckpointError where the file does not say: no other number is a guess that would be seen.
    """
    arch = header.value("general.architecture", str)
    return {
        total: header.value(f"{arch}.expert_count", int),
        chosen: header.value(f"{arch}.expert_used_count", int),
    }


def _plain(name: str, model_type: str, **settings: Any) -> Family:
    """Return a family of which sizes are all that differs between models, but for what q, k and v add."""

    def fill(header: GgufHeader, config: dict[str, Any]) -> None:
        config.update(
            architectures=[name],
            model_type=model_type,
            hidden_act="silu",
            attention_bias="blk.0.attn_q.bias" in header.tensors or "blk.0.attn_qkv.bias" in header.tensors,
            **settings,
        )

    return fill


def _glm(name: str, model_type: str) -> Family:
    plain = _plain(name, model_type)

    def fill(header: GgufHeader, config: dict[str, Any]) -> None:
        plain(header, config)
        config["partial_rotary_factor"] = rotated(header, config)

    return fill


def _windowed(name: str, model_type: str, **settings: Any) -> Family:
    plain = _plain(name, model_type, **settings)

    def fill(header: GgufHeader, config: dict[str, Any]) -> None:
        plain(header, config)
        config.update(windows(header, config))

    return fill


def _olmo2(header: GgufHeader, config: dict[str, Any]) -> None:
    """OLMo 3 goes by the name of OLMo 2, which has no windows."""
    third = "olmo2.attention.sliding_window" in header.metadata
    _windowed(f"Olmo{3 if third else 2}ForCausalLM", f"olmo{3 if third else 2}")(header, config)


def granite(header: GgufHeader, config: dict[str, Any]) -> None:
    """Fill in what all Granites have: four multipliers."""
    arch = header.value("general.architecture", str)
    _plain("GraniteForCausalLM", "granite")(header, config)
    for ours, theirs in {
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }.items():
        value = header.value(f"{arch}.{theirs}", float, 0.0)
        if value:
            config[ours] = float(f"{value:.7g}")


def _granitemoe(header: GgufHeader, config: dict[str, Any]) -> None:
    granite(header, config)
    config.update(
        architectures=["GraniteMoeForCausalLM"],
        model_type="granitemoe",
        **experts(header, "num_local_experts"),
    )


def _routed(header: GgufHeader, config: dict[str, Any]) -> None:
    """Fill in what routers of sigmoids with a bias and groups have, and blocks beside their experts."""
    arch = header.value("general.architecture", str)

    def whole(key: str, default: int | None = None) -> int:
        return int(header.value(f"{arch}.{key}", int, default))

    config.update(
        first_k_dense_replace=whole("leading_dense_block_count", 0),
        **experts(header, "n_routed_experts"),
        moe_intermediate_size=whole("expert_feed_forward_length"),
        n_shared_experts=whole("expert_shared_count", 0),
        n_group=whole("expert_group_count", 1),
        topk_group=whole("expert_group_used_count", 1),
        norm_topk_prob=header.value(f"{arch}.expert_weights_norm", bool, True),
        routed_scaling_factor=header.value(f"{arch}.expert_weights_scale", float, 1.0),
    )


def _glm4moe(header: GgufHeader, config: dict[str, Any]) -> None:
    _glm("Glm4MoeForCausalLM", "glm4_moe")(header, config)
    _routed(header, config)
    guessing = header.value("glm4moe.nextn_predict_layers", int, 0)
    config.update(
        num_hidden_layers=config["num_hidden_layers"] - guessing,
        num_nextn_predict_layers=guessing,
        use_qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
    )


def _dots1(header: GgufHeader, config: dict[str, Any]) -> None:
    _windowed("Dots1ForCausalLM", "dots1")(header, config)
    _routed(header, config)


def _deepseek2(header: GgufHeader, config: dict[str, Any]) -> None:
    """V2 and V3 go by one name; files of before 2025 have no lengths for heads beside those of the cache."""

    def whole(key: str, default: int | None = None) -> int:
        return int(header.value(f"deepseek2.{key}", int, default))

    if "deepseek2.attention.temperature_scale" in header.metadata:
        raise PullError(
            f"{header.path}: queries that grow with their position (Mistral Large 3) are not supported here"
        )
    version, rope_dim = 3 if whole("expert_gating_func", 1) == _SIGMOID else 2, whole("rope.dimension_count")
    _plain(f"DeepseekV{version}ForCausalLM", f"deepseek_v{version}")(header, config)
    _routed(header, config)
    config.update(
        num_key_value_heads=config["num_attention_heads"],
        head_dim=rope_dim,
        kv_lora_rank=whole("attention.kv_lora_rank"),
        q_lora_rank=whole("attention.q_lora_rank", 0) or None,
        qk_rope_head_dim=rope_dim,
        qk_nope_head_dim=whole("attention.key_length_mla", whole("attention.key_length")) - rope_dim,
        v_head_dim=whole("attention.value_length_mla", whole("attention.value_length")),
        norm_topk_prob=header.value("deepseek2.expert_weights_norm", bool, False),
        topk_method="group_limited_greedy" if config["n_group"] > 1 else "greedy",
    )
    if config["rope_scaling"] is not None:  # the file has a tenth of the weight, and none for the tables
        weight = float(f"{10 * header.value('deepseek2.rope.scaling.yarn_log_multiplier', float, 0.0):.7g}")
        config["rope_scaling"] = config["rope_scaling"] | {"attention_factor": 1.0, "mscale_all_dim": weight}


def _minimax_m2(header: GgufHeader, config: dict[str, Any]) -> None:
    _glm("MiniMaxM2ForCausalLM", "minimax_m2")(header, config)
    config.update(
        **experts(header, "num_local_experts"),
        intermediate_size=header.value("minimax-m2.expert_feed_forward_length", int, config["intermediate_size"]),
    )


def _ernie_moe(header: GgufHeader, config: dict[str, Any]) -> None:
    _plain("Ernie4_5_MoeForCausalLM", "ernie4_5_moe")(header, config)
    config.update(experts(header, "moe_num_experts", "moe_k"))
    for ours, theirs, default in (
        ("moe_intermediate_size", "expert_feed_forward_length", None),
        ("moe_num_shared_experts", "expert_shared_count", 0),
        ("moe_layer_start_index", "leading_dense_block_count", 0),
        ("moe_layer_interval", "interleave_moe_layer_step", 1),
    ):
        config[ours] = header.value(f"ernie4_5-moe.{theirs}", int, default)


def _mistral3(header: GgufHeader, config: dict[str, Any]) -> None:
    _plain("Ministral3ForCausalLM", "ministral3")(header, config)
    weight = header.value("mistral3.rope.scaling.yarn_log_multiplier", float, 0.0)
    beta = header.value("mistral3.attention.temperature_scale", float, 0.0)
    if config["rope_scaling"] is not None:
        stretch = {"mscale": weight, "mscale_all_dim": weight, "llama_4_scaling_beta": float(f"{beta:.7g}")}
        config["rope_scaling"] = config["rope_scaling"] | stretch


def _phi3(header: GgufHeader, config: dict[str, Any]) -> None:
    _glm("Phi3ForCausalLM", "phi3")(header, config)
    config["sliding_window"] = header.value("phi3.attention.sliding_window", int, 0) or None
    if "rope_factors_long.weight" in header.tensors:
        config["original_max_position_embeddings"] = header.value("phi3.rope.scaling.original_context_length", int)
        config["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": floats(header, "rope_factors_short.weight"),
            "long_factor": floats(header, "rope_factors_long.weight"),
        }


def _cohere2(header: GgufHeader, config: dict[str, Any]) -> None:
    _plain("Cohere2ForCausalLM", "cohere2")(header, config)
    config.update(
        sliding_window=header.value("cohere2.attention.sliding_window", int),
        sliding_window_pattern=4,  # all released models; the file does not say
        logit_scale=float(f"{header.value('cohere2.logit_scale', float, 1.0):.7g}"),
    )


def _starcoder2(header: GgufHeader, config: dict[str, Any]) -> None:
    _plain("Starcoder2ForCausalLM", "starcoder2")(header, config)
    config.update(
        hidden_act="gelu_pytorch_tanh",
        use_bias=config["attention_bias"],
        sliding_window=header.value("starcoder2.attention.sliding_window", int, 4096),  # all released models
    )


def _nemotron(header: GgufHeader, config: dict[str, Any]) -> None:
    _glm("NemotronForCausalLM", "nemotron")(header, config)
    config.update(hidden_act="relu2", mlp_bias="blk.0.ffn_up.bias" in header.tensors)


def _arcee(header: GgufHeader, config: dict[str, Any]) -> None:
    _plain("ArceeForCausalLM", "arcee")(header, config)
    config["hidden_act"] = "relu2"


FAMILIES: dict[str, Family] = {
    "chatglm": _glm("GlmForCausalLM", "glm"),
    "glm4": _glm("Glm4ForCausalLM", "glm4"),
    "glm4moe": _glm4moe,
    "deepseek2": _deepseek2,
    "dots1": _dots1,
    "minimax-m2": _minimax_m2,
    "ernie4_5-moe": _ernie_moe,
    "mistral3": _mistral3,
    "seed_oss": _plain("SeedOssForCausalLM", "seed_oss"),
    "ernie4_5": _plain("Ernie4_5ForCausalLM", "ernie4_5"),
    "smollm3": _plain("SmolLM3ForCausalLM", "smollm3"),
    "granite": granite,
    "granitemoe": _granitemoe,
    "olmo2": _olmo2,
    # Its alpha is in the base that the file says.
    "hunyuan-dense": _plain("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    "phi3": _phi3,
    "cohere2": _cohere2,
    "starcoder2": _starcoder2,
    "nemotron": _nemotron,
    "arcee": _arcee,
    "exaone4": _windowed("Exaone4ForCausalLM", "exaone4"),
}
