"""What the config.json of a GGUF file says beside sizes, for families of models that keep states beside attention."""

from __future__ import annotations

from typing import Any

from headrace.pull.gguf_families import Family, experts, granite, rotated
from model_svc.weights.gguf_header import GgufHeader


def _lfm2(header: GgufHeader, config: dict[str, Any]) -> None:
    """Layers without KV heads are convolutions; the inner size is the adjusted one."""
    arch = header.value("general.architecture", str)
    kv_heads = header.value(f"{arch}.attention.head_count_kv", list)
    config.update(
        architectures=["Lfm2ForCausalLM"],
        model_type="lfm2",
        layer_types=["full_attention" if count else "conv" for count in kv_heads],
        conv_L_cache=header.value(f"{arch}.shortconv.l_cache", int),
        conv_bias=any(name.endswith("shortconv.conv.bias") for name in header.tensors),
        block_auto_adjust_ff_dim=False,
    )


def _lfm2moe(header: GgufHeader, config: dict[str, Any]) -> None:
    _lfm2(header, config)
    config.update(
        architectures=["Lfm2MoeForCausalLM"],
        model_type="lfm2_moe",
        num_dense_layers=header.value("lfm2moe.leading_dense_block_count", int, 0),
        moe_intermediate_size=header.value("lfm2moe.expert_feed_forward_length", int),
        use_expert_bias=any(name.endswith("exp_probs_b.bias") for name in header.tensors),
        norm_topk_prob=True,  # all released models; the file does not say
        **experts(header),
    )


def _delta_nets(header: GgufHeader, config: dict[str, Any]) -> None:
    """Fill in what models with gated delta nets share: heads with states, and which layers have none."""
    arch = header.value("general.architecture", str)

    def whole(key: str, default: int | None = None) -> int:
        return int(header.value(f"{arch}.{key}", int, default))

    heads = whole("ssm.time_step_rank")
    guessing = whole("nextn_predict_layers", 0)
    config.update(
        hidden_act="silu",
        num_hidden_layers=config["num_hidden_layers"] - guessing,
        num_nextn_predict_layers=guessing,
        partial_rotary_factor=rotated(header, config),
        full_attention_interval=whole("full_attention_interval", 4),
        linear_conv_kernel_dim=whole("ssm.conv_kernel"),
        linear_num_key_heads=whole("ssm.group_count"),
        linear_num_value_heads=heads,
        linear_key_head_dim=whole("ssm.state_size"),
        linear_value_head_dim=whole("ssm.inner_size") // max(heads, 1),
    )
    if f"{arch}.expert_count" in header.metadata:
        config.update(
            moe_intermediate_size=whole("expert_feed_forward_length"),
            shared_expert_intermediate_size=whole("expert_shared_feed_forward_length"),
            norm_topk_prob=True,  # all released models; the file does not say
            **experts(header),
        )


def _qwen3next(header: GgufHeader, config: dict[str, Any]) -> None:
    _delta_nets(header, config)
    config.update(architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next")


def _qwen35(header: GgufHeader, config: dict[str, Any]) -> None:
    """Value heads are in another order than in the checkpoint, so that key heads take turns."""
    _delta_nets(header, config)
    name, kind = ("Qwen3_5Moe", "qwen3_5_moe_text") if "num_experts" in config else ("Qwen3_5", "qwen3_5_text")
    config.update(architectures=[f"{name}ForCausalLM"], model_type=kind, linear_heads_in_turns=True)


def _granitehybrid(header: GgufHeader, config: dict[str, Any]) -> None:
    """Layers without KV heads are Mamba 2; without experts the block beside them is the only one."""

    def whole(key: str, default: int | None = None) -> int:
        return int(header.value(f"granitehybrid.{key}", int, default))

    granite(header, config)
    heads, inner = whole("ssm.time_step_rank"), whole("ssm.inner_size")
    num_experts = whole("expert_count", 0)
    config.update(
        architectures=["GraniteMoeHybridForCausalLM"],
        model_type="granitemoehybrid",
        layer_types=[
            "full_attention" if count else "linear_attention"
            for count in header.value("granitehybrid.attention.head_count_kv", list)
        ],
        position_embedding_type="rope" if header.value("granitehybrid.rope.scaling.finetuned", bool, False) else "nope",
        shared_intermediate_size=whole("expert_shared_feed_forward_length", config["intermediate_size"]),
        mamba_expand=inner // max(config["hidden_size"], 1),
        mamba_n_heads=heads,
        mamba_d_head=inner // max(heads, 1),
        mamba_d_state=whole("ssm.state_size"),
        mamba_n_groups=whole("ssm.group_count"),
        mamba_d_conv=whole("ssm.conv_kernel"),
        mamba_conv_bias=any(name.endswith("ssm_conv1d.bias") for name in header.tensors),
        mamba_proj_bias=any(name.endswith("ssm_in.bias") for name in header.tensors),
        **(experts(header, "num_local_experts") if num_experts else {"num_local_experts": 0}),
    )


STATE_FAMILIES: dict[str, Family] = {
    "lfm2": _lfm2,
    "lfm2moe": _lfm2moe,
    "qwen3next": _qwen3next,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35,
    "granitehybrid": _granitehybrid,
}
