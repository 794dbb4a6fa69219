"""Every architecture against transformers in float32: tiny random checkpoints, all logits of every position.

Prompts are longer than the sliding windows, and taken whole, in chunks, token by token, and three in one batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from model_svc.models.load import load_model
from model_svc.models.registry import MODELS
from model_svc.quant.dequantized import Dequantized
from model_svc.weights.stored.tensor import QuantizedTensor
from tests.model_svc.paged import ModelDriver, Tracked

VOCAB = 97
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # wide: attention must not be near uniform, or faults in it would not show
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 2.0}
ALPHA = {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0}
TEMPERED = {**YARN, "rope_theta": 10000.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5} | {
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * n for n in range(8)],
    "long_factor": [1.0 + 0.9 * n for n in range(8)],
    "rope_theta": 10000.0,
}
SLIDING = ["sliding_attention", "full_attention"] * 2
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
GROUPED = {
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
}
LATENTS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
}
STRETCHED = {**YARN, "rope_theta": 10000.0, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.9}
STATES = {
    "initializer_range": 0.2,  # a norm of what is read of a state widens what float32 rounds where that is little
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
}
MAMBA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "mamba_n_heads": 4,
    "mamba_d_state": 24,
    "shared_intermediate_size": 40,
    "num_local_experts": 5,
    "time_step_limit": [0.0, float("inf")],
    "dtype": "float32",
}
CONVS = {"layer_types": ["conv", "full_attention", "conv", "conv"], "dtype": "float32"}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_biases_untied": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True}),
    "llama_wide_heads": ("Llama", {"head_dim": 32}),
    "llama_rope_llama3": ("Llama", {"rope_scaling": {**LLAMA3, "rope_theta": 5000.0}}),
    "llama_rope_linear": ("Llama", {"rope_scaling": {**LINEAR, "rope_theta": 10000.0}}),
    "llama_rope_yarn": ("Llama", {"rope_scaling": {**YARN, "rope_theta": 10000.0}}),
    "mistral": ("Mistral", {"sliding_window": 8, "head_dim": 16}),
    "ministral": ("Ministral", {"head_dim": 16, "sliding_window": 8, "layer_types": SLIDING}),
    "ministral3": ("Ministral3", {"head_dim": 32, "rope_parameters": TEMPERED}),
    "mistral_no_window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2_windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma2": ("Gemma2", {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, "layer_types": SLIDING}),
    "gemma3": (
        "Gemma3Text",
        {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, "layer_types": SLIDING},
    ),
    "phi3": ("Phi3", {"sliding_window": 8}),
    "phi3_longrope": (
        "Phi3",
        {"sliding_window": None, "rope_scaling": LONG, "original_max_position_embeddings": 16},
    ),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": 8,
            "layer_types": SLIDING,
            "rope_parameters": {
                "full_attention": {**YARN, "rope_theta": 10000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "glm": ("Glm", {"head_dim": 32, "attention_bias": True}),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": True}),
    "glm4_moe": ("Glm4Moe", {**GROUPED, "head_dim": 32, "attention_bias": True, "use_qk_norm": True}),
    "glm4_moe_bare": (
        "Glm4Moe",
        {**GROUPED, "norm_topk_prob": False, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2},
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {**GROUPED, **LATENTS, "topk_method": "group_limited_greedy", "rope_parameters": STRETCHED},
    ),
    "deepseek_v2_lite": (
        "DeepseekV2",
        {**GROUPED, **LATENTS, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-3},
    ),
    "deepseek_v3": ("DeepseekV3", {**GROUPED, **LATENTS, "rope_parameters": STRETCHED, "num_mtp_layers": 0}),
    "deepseek_v3_bare": (
        "DeepseekV3",
        {
            **GROUPED,
            **LATENTS,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
        },
    ),
    "deepseek_v3_biases": ("DeepseekV3", {**GROUPED, **LATENTS, "attention_bias": True}),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        {**GROUPED, **LATENTS, "mlp_layer_types": ["dense", "sparse", "dense", "sparse"]},
    ),
    "youtu": ("Youtu", {**LATENTS, "embedding_initializer_range": 0.3}),
    "dots1": (
        "Dots1",
        {**GROUPED, "first_k_dense_replace": 1, "attention_bias": True, "sliding_window": 8, "layer_types": SLIDING},
    ),
    "minimax_m2": ("MiniMaxM2", {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 32, "rotary_dim": 16}),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 48,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
            "moe_num_shared_experts": 2,
        },
    ),
    "hunyuan_dense": ("HunYuanDenseV1", {"head_dim": 32, "attention_bias": True, "rope_parameters": ALPHA}),
    "starcoder2": ("Starcoder2", {"sliding_window": 8, "use_bias": True}),
    "nemotron": ("Nemotron", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    "arcee": ("Arcee", {}),
    "apertus": ("Apertus", {"head_dim": 16, "dtype": "float32"}),
    "seed_oss": ("SeedOss", {"head_dim": 32, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True}),
    "exaone4": ("Exaone4", {"head_dim": 32, "sliding_window": 8, "layer_types": SLIDING}),
    "exaone4_full": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "ernie4_5": ("Ernie4_5", {"head_dim": 32, "use_bias": True}),
    "granite": ("Granite", MULTIPLIERS),
    "granite_moe": ("GraniteMoe", {**MULTIPLIERS, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "granite_moe_hybrid": ("GraniteMoeHybrid", {**MULTIPLIERS, **MAMBA}),
    "granite_moe_hybrid_groups": (
        "GraniteMoeHybrid",
        {
            **MULTIPLIERS,
            **MAMBA,
            "mamba_n_groups": 2,
            "mamba_d_conv": 3,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 1, 1, 0]}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 8}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1], "head_dim": 32}),
    "qwen2_moe": (
        "Qwen2Moe",
        {**EXPERTS, "norm_topk_prob": False, "decoder_sparse_step": 2, "shared_expert_intermediate_size": 40},
    ),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False}),
    "gpt_oss": (
        "GptOss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "head_dim": 32,
            "rope_scaling": {**YARN, "truncate": False, "rope_theta": 150000.0},
        },
    ),
    "qwen3_next": ("Qwen3Next", {**STATES, **EXPERTS, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    "qwen3_next_alternating": (
        "Qwen3Next",
        {
            **STATES,
            **EXPERTS,
            "shared_expert_intermediate_size": 40,
            "layer_types": ["full_attention", "linear_attention"] * 2,
            "linear_conv_kernel_dim": 2,
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
            "partial_rotary_factor": 0.5,
        },
    ),
    "qwen3_5": ("Qwen3_5Text", STATES),
    "qwen3_5_moe": ("Qwen3_5MoeText", {**STATES, **EXPERTS, "shared_expert_intermediate_size": 40}),
    "lfm2": ("Lfm2", {**CONVS, "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.3}),
    "lfm2_biased": ("Lfm2", {**CONVS, "conv_bias": True, "conv_L_cache": 5, "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": ("Lfm2Moe", {**CONVS, **EXPERTS, "num_dense_layers": 1, "routed_scaling_factor": 1.7}),
    "lfm2_moe_bare": ("Lfm2Moe", {**CONVS, **EXPERTS, "use_expert_bias": False, "norm_topk_prob": False}),
    "cohere2": ("Cohere2", {"sliding_window": 8, "logit_scale": 0.25, "layer_types": SLIDING}),
}


def oracle_model(case: str, **sizes: Any) -> Any:
    family, changes = CASES[case]
    config_class = getattr(transformers, f"{family}Config")
    model_class = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")
    torch.manual_seed(11)
    model = model_class._from_config(config_class(**(BASE | changes | sizes)), attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if (
            "norm" in name or name.endswith(("bias", ".D", "A_log")) or "alpha" in name
        ):  # fresh models have ones and zeros there, which hide mix-ups
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    for name, buffer in model.named_buffers():
        if name.endswith(("correction_bias", "expert_bias")):
            buffer.add_(torch.randn_like(buffer) * 0.2)
    return model


@pytest.fixture(params=sorted(CASES), scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = oracle_model(request.param)
    directory = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(directory)
    yield model, directory
    torch.set_num_threads(num_threads)


def test_every_architecture_we_serve_has_a_case() -> None:
    families = {family.removesuffix("Text") for family, _ in CASES.values()}
    assert {f"{family}ForCausalLM" for family in families} == set(MODELS)


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


@torch.inference_mode()
def expected(model: Any, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)  # processors add in other orders


def test_logits_equal_those_of_transformers_however_the_tokens_are_cut_into_steps(pair: tuple[Any, Path]) -> None:
    oracle, directory = pair
    model = load_model(directory, dtype=torch.float32, device=torch.device("cpu"))
    driver = ModelDriver(model)
    ids = prompt(37, seed=1)
    theirs = expected(oracle, ids)
    assert theirs.std() > 0.05

    whole = Tracked(0, list(ids))
    close(driver.logits((whole, 37))[0], theirs)

    parts = Tracked(1, list(ids))
    steps = [driver.logits((parts, count))[0] for count in (13, 1, 16, 2, 1, 1, 1, 1, 1)]
    close(torch.cat(steps), theirs)


def test_sequences_in_one_batch_do_not_touch_one_another(pair: tuple[Any, Path]) -> None:
    oracle, directory = pair
    driver = ModelDriver(load_model(directory, dtype=torch.float32, device=torch.device("cpu")))
    sequences = [Tracked(slot, prompt(length, seed=slot)) for slot, length in ((0, 30), (3, 21), (7, 26))]
    theirs = [expected(oracle, seq.ids) for seq in sequences]
    got: list[list[torch.Tensor]] = [[], [], []]
    # A prefill, then a chunk beside a decode, then all three at different depths.
    for counts in ((12, 0, 0), (1, 9, 0), (1, 1, 17), (9, 10, 1), (7, 1, 8)):
        live = [n for n, count in enumerate(counts) if count]
        for n, logits in zip(live, driver.logits(*((sequences[n], counts[n]) for n in live)), strict=True):
            got[n].append(logits)
    for parts, whole in zip(got, theirs, strict=True):
        close(torch.cat(parts), whole)


class LateMatrices(Dequantized):
    """What a start on a GPU does: matrices are handed out first and filled later."""

    def __init__(self) -> None:
        super().__init__(torch.float32, torch.device("cpu"))
        self.late: list[tuple[torch.Tensor, torch.Tensor]] = []

    def dense(self, tensor: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        assert isinstance(tensor, torch.Tensor)
        if tensor.dim() < 2 or any(tensor is out for out, _ in self.late):
            return super().dense(tensor)
        out = torch.empty(tensor.shape)
        self.fill(out, tensor)
        return out

    def fill(self, out: torch.Tensor, part: torch.Tensor | QuantizedTensor) -> None:
        assert isinstance(part, torch.Tensor)
        self.late.append((out.fill_(float("nan")), part))


def test_nothing_is_made_of_a_matrix_that_may_not_have_arrived(pair: tuple[Any, Path]) -> None:
    _, directory = pair
    cpu, method, ids = torch.device("cpu"), LateMatrices(), prompt(9, seed=2)
    model = load_model(directory, dtype=torch.float32, device=cpu, method=method)
    for out, part in method.late:
        out.copy_(part)
    usual = load_model(directory, dtype=torch.float32, device=cpu)
    late, early = (ModelDriver(each).logits((Tracked(0, list(ids)), 9))[0] for each in (model, usual))
    torch.testing.assert_close(late, early, rtol=1e-5, atol=1e-5)  # a library's sums hang on where a matrix begins
    assert len(method.late) > 8


@pytest.mark.gpu
def test_compiled_kernels_give_the_logits_of_transformers(pair: tuple[Any, Path]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    oracle, directory = pair
    driver = ModelDriver(load_model(directory, dtype=torch.float32, device=torch.device("cuda")))
    ids = prompt(37, seed=1)
    theirs = expected(oracle, ids)
    seq = Tracked(0, list(ids))
    ours = torch.cat([driver.logits((seq, count))[0].cpu() for count in (24, 1, 9, 1, 1, 1)])
    # A kernel's float32 products may run on tensor cores with shorter mantissas.
    assert float((ours - theirs).abs().max()) < 0.02 * float(theirs.abs().max())
