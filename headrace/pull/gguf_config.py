"""config.json and generation_config.json, rebuilt from the metadata of a GGUF file, in Hugging Face names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from headrace.pull.errors import PullError
from headrace.pull.gguf_families import FAMILIES, experts, floats
from headrace.pull.gguf_states import STATE_FAMILIES
from headrace.pull.gguf_tokenizer import end_of_answer_ids, token_id_of
from model_svc.weights.gguf_header import GgufHeader

# How the makers advise to sample: the converters write it from generation_config.json, and llama.cpp heeds it.
_ADVICE = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def config_json(header: GgufHeader) -> dict[str, Any]:
    """Build the content of config.json. Raises PullError for an architecture that we do not serve from GGUF."""
    arch = header.value("general.architecture", str)
    if arch not in _SPECIAL:
        raise PullError(
            f"{header.path}: GGUF files of architecture {arch!r} are not supported; known are {', '.join(_SPECIAL)}"
        )
    config = _shared(header, arch)
    _SPECIAL[arch](header, config)
    return config


def generation_config(header: GgufHeader) -> dict[str, Any]:
    """Build the content of generation_config.json: every id that ends an answer, and how to sample."""
    ends = end_of_answer_ids(header)
    config: dict[str, Any] = {"eos_token_id": ends[0] if len(ends) == 1 else ends}
    for ours, theirs in (("bos", "bos"), ("pad", "padding")):
        token_id = token_id_of(header, theirs)
        if token_id is not None:
            config[f"{ours}_token_id"] = token_id
    for name, key in _ADVICE.items():
        advice = header.metadata.get(f"general.sampling.{key}")
        if isinstance(advice, (int, float)) and not isinstance(advice, bool) and math.isfinite(advice):
            config[name] = _short(advice) if isinstance(advice, float) else advice
    return config


def _shared(header: GgufHeader, arch: str) -> dict[str, Any]:
    def integer(key: str, default: int | None = None) -> int:
        return int(header.value(f"{arch}.{key}", int, default))

    hidden, heads = integer("embedding_length"), integer("attention.head_count")
    head_dim = integer("attention.key_length", hidden // max(heads, 1))
    of_latents = f"{arch}.attention.kv_lora_rank" in header.metadata
    if not of_latents and integer("attention.value_length", head_dim) != head_dim:
        raise PullError(f"{header.path}: keys and values of different length are not supported")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise PullError(f"{header.path}: the file holds no token_embd.weight, so it is no whole model")
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": integer("feed_forward_length", integer("expert_feed_forward_length", 0) or None),
        "num_hidden_layers": integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.largest(f"{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": integer("context_length"),
        "rms_norm_eps": _short(_eps(header, arch)),
        "rope_theta": _short(header.value(f"{arch}.rope.freq_base", float, 10000.0)),
        "rope_scaling": _rope_scaling(header, arch),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": token_id_of(header, "bos"),
        "eos_token_id": token_id_of(header, "eos"),
        "dtype": "float32",
    }


def _eps(header: GgufHeader, arch: str) -> float:
    """Return what keeps norms from dividing by nothing; layer norms have a key of their own."""
    plain = header.metadata.get(f"{arch}.attention.layer_norm_epsilon")
    return float(header.value(f"{arch}.attention.layer_norm_rms_epsilon", float, plain))


def _short(value: float) -> float:
    """Undo float32 storage: 9.999999747378752e-06 was written as 1e-5."""
    return float(f"{value:.7g}")


def _rope_scaling(header: GgufHeader, arch: str) -> dict[str, Any] | None:
    if "rope_freqs.weight" in header.tensors:
        return _llama3_scaling(header)
    kind = header.value(f"{arch}.rope.scaling.type", str, "none")
    factor = header.value(f"{arch}.rope.scaling.factor", float, 1.0)
    if kind == "none" or factor == 1.0:
        return None
    if kind not in ("linear", "yarn"):
        raise PullError(f"{header.path}: rope scaling of kind {kind!r} is not supported in GGUF files")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": _short(factor)}
    original = header.metadata.get(f"{arch}.rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    for name in ("beta_fast", "beta_slow"):
        if f"{arch}.rope.scaling.yarn_{name}" in header.metadata:
            scaling[name] = _short(header.value(f"{arch}.rope.scaling.yarn_{name}", float))
    return scaling


def _llama3_scaling(header: GgufHeader) -> dict[str, Any]:
    """Find the Llama 3 parameters that give the file's table of frequency divisors.

    GGUF stores the result (`rope_freqs.weight`), config.json the parameters. All released models share low 1, high 4
    and 8,192; the factor is the largest divisor. The table is checked against what these give.
    """
    stored = floats(header, "rope_freqs.weight")
    base = header.value(f"{header.value('general.architecture', str)}.rope.freq_base", float, 10000.0)
    factor, original = round(max(stored), 4), 8192
    for n, value in enumerate(stored):
        wavelength = 2 * math.pi * base ** (n / len(stored))
        smooth = min(max((original / wavelength - 1) / 3, 0.0), 1.0)
        expected = 1 / ((1 - smooth) / factor + smooth)
        if abs(value - expected) > 1e-3 * expected:
            raise PullError(f"{header.path}: rope_freqs.weight is not the table of Llama 3 models; not supported")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def _llama(header: GgufHeader, config: dict[str, Any]) -> None:
    config.update(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu")
    if header.value("llama.expert_count", int, 0):
        config.update(
            architectures=["MixtralForCausalLM"], model_type="mixtral", **experts(header, "num_local_experts")
        )


def _rows(header: GgufHeader, name: str, key: str) -> int:
    """Return an inner size that old files do not name: it is the rows of the first layer's tensor `name`."""
    tensor = header.tensors.get(f"blk.0.{name}.weight")
    arch = header.value("general.architecture", str)
    return int(header.value(f"{arch}.{key}", int, tensor.shape[-2] if tensor and len(tensor.shape) > 1 else None))


def _qwen2(_header: GgufHeader, config: dict[str, Any]) -> None:
    config.update(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_act="silu", use_sliding_window=False)


def _qwen3(_header: GgufHeader, config: dict[str, Any]) -> None:
    config.update(architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_act="silu", use_sliding_window=False)


def _qwen2moe(header: GgufHeader, config: dict[str, Any]) -> None:
    config.update(
        architectures=["Qwen2MoeForCausalLM"],
        model_type="qwen2_moe",
        hidden_act="silu",
        use_sliding_window=False,
        moe_intermediate_size=_rows(header, "ffn_gate_exps", "expert_feed_forward_length"),
        shared_expert_intermediate_size=_rows(header, "ffn_gate_shexp", "expert_shared_feed_forward_length"),
        norm_topk_prob=False,  # all released models; the file does not say
        **experts(header),
    )


def _qwen3moe(header: GgufHeader, config: dict[str, Any]) -> None:
    config.update(
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        hidden_act="silu",
        use_sliding_window=False,
        moe_intermediate_size=header.value("qwen3moe.expert_feed_forward_length", int),
        norm_topk_prob=True,  # all released models; the file does not say
        **experts(header),
    )


def _olmoe(header: GgufHeader, config: dict[str, Any]) -> None:
    config.update(
        architectures=["OlmoeForCausalLM"],
        model_type="olmoe",
        hidden_act="silu",
        norm_topk_prob=False,  # all released models; the file does not say
        **experts(header),
    )


def _gpt_oss(header: GgufHeader, config: dict[str, Any]) -> None:
    """What no file says is that of all released models: the gate's limit, and every second layer full."""
    config.update(
        architectures=["GptOssForCausalLM"],
        model_type="gpt_oss",
        hidden_act="silu",
        attention_bias=True,
        swiglu_limit=7.0,
        intermediate_size=header.value("gpt-oss.expert_feed_forward_length", int),
        **experts(header, "num_local_experts"),
        sliding_window=header.value("gpt-oss.attention.sliding_window", int),
        layer_types=["full_attention" if n % 2 else "sliding_attention" for n in range(config["num_hidden_layers"])],
    )
    if config["rope_scaling"]:
        config["rope_scaling"]["truncate"] = False


def _gemma2(header: GgufHeader, config: dict[str, Any]) -> None:
    config.update(
        architectures=["Gemma2ForCausalLM"],
        model_type="gemma2",
        attn_logit_softcapping=_short(header.value("gemma2.attn_logit_softcapping", float, 50.0)),
        final_logit_softcapping=_short(header.value("gemma2.final_logit_softcapping", float, 30.0)),
        **_gemma(header, config, period=2, largest=46),
    )


def _gemma3(header: GgufHeader, config: dict[str, Any]) -> None:
    config.update(
        architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text",
        rope_local_base_freq=10000.0,
        **_gemma(header, config, period=6, largest=62),
    )


def _gemma(header: GgufHeader, config: dict[str, Any], *, period: int, largest: int) -> dict[str, Any]:
    """Return what both Gemmas share; each `period`-th layer is full.

    GGUF does not store the score scale: it is that of the head size but for the 27B models, known by `largest` layers.
    """
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": header.value(
            f"{header.metadata['general.architecture']}.attention.sliding_window", int, 4096
        ),
        "query_pre_attn_scalar": config["hidden_size"] // heads if layers == largest else config["head_dim"],
        "layer_types": ["sliding_attention" if (n + 1) % period else "full_attention" for n in range(layers)],
    }


_SPECIAL: dict[str, Callable[[GgufHeader, dict[str, Any]], None]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen2moe": _qwen2moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "olmoe": _olmoe,
    "gpt-oss": _gpt_oss,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    **FAMILIES,
    **STATE_FAMILIES,
}

KNOWN = frozenset(_SPECIAL)
"""The architectures of GGUF files that we serve."""
