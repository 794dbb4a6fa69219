"""Which class serves which architecture. Modules are imported when first needed: start-up pays for one of them."""

from __future__ import annotations

import importlib

from model_svc.models.config import ModelConfig
from model_svc.models.decoder import Decoder
from model_svc.weights.errors import CheckpointError

# config.json's `architectures[0]` -> (module of this package, class)
MODELS: dict[str, tuple[str, str]] = {
    "LlamaForCausalLM": ("llama", "Llama"),
    "ApertusForCausalLM": ("apertus", "Apertus"),
    "ArceeForCausalLM": ("nemotron", "Arcee"),
    "Cohere2ForCausalLM": ("cohere2", "Cohere2"),
    "DeepseekV2ForCausalLM": ("deepseek", "DeepseekV2"),
    "DeepseekV3ForCausalLM": ("deepseek", "DeepseekV3"),
    "Dots1ForCausalLM": ("dots1", "Dots1"),
    "Ernie4_5ForCausalLM": ("ernie4_5", "Ernie4_5"),
    "Ernie4_5_MoeForCausalLM": ("ernie4_5_moe", "Ernie4_5Moe"),
    "Exaone4ForCausalLM": ("exaone4", "Exaone4"),
    "Gemma2ForCausalLM": ("gemma2", "Gemma2"),
    "Gemma3ForCausalLM": ("gemma3", "Gemma3"),
    "GlmForCausalLM": ("glm", "Glm"),
    "Glm4ForCausalLM": ("glm4", "Glm4"),
    "Glm4MoeForCausalLM": ("glm4_moe", "Glm4Moe"),
    "Glm4MoeLiteForCausalLM": ("deepseek", "Glm4MoeLite"),
    "GptOssForCausalLM": ("gpt_oss", "GptOss"),
    "GraniteForCausalLM": ("granite", "Granite"),
    "GraniteMoeForCausalLM": ("granite_moe", "GraniteMoe"),
    "GraniteMoeHybridForCausalLM": ("granite_moe_hybrid", "GraniteMoeHybrid"),
    "HunYuanDenseV1ForCausalLM": ("hunyuan_dense", "HunYuanDense"),
    "Lfm2ForCausalLM": ("lfm2", "Lfm2"),
    "Lfm2MoeForCausalLM": ("lfm2", "Lfm2Moe"),
    "MiniMaxM2ForCausalLM": ("minimax_m2", "MiniMaxM2"),
    "MinistralForCausalLM": ("mistral", "Ministral"),
    "Ministral3ForCausalLM": ("ministral3", "Ministral3"),
    "MistralForCausalLM": ("mistral", "Mistral"),
    "MixtralForCausalLM": ("mixtral", "Mixtral"),
    "NemotronForCausalLM": ("nemotron", "Nemotron"),
    "Olmo2ForCausalLM": ("olmo2", "Olmo2"),
    "Olmo3ForCausalLM": ("olmo3", "Olmo3"),
    "OlmoeForCausalLM": ("olmoe", "Olmoe"),
    "Phi3ForCausalLM": ("phi3", "Phi3"),
    "Qwen2ForCausalLM": ("qwen2", "Qwen2"),
    "Qwen2MoeForCausalLM": ("qwen2_moe", "Qwen2Moe"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3Moe"),
    "Qwen3NextForCausalLM": ("qwen3_next", "Qwen3Next"),
    "Qwen3_5ForCausalLM": ("qwen3_next", "Qwen3Next"),
    "Qwen3_5MoeForCausalLM": ("qwen3_next", "Qwen3Next"),
    "SeedOssForCausalLM": ("seed_oss", "SeedOss"),
    "SmolLM3ForCausalLM": ("smollm3", "SmolLM3"),
    "Starcoder2ForCausalLM": ("starcoder2", "Starcoder2"),
    "YoutuForCausalLM": ("deepseek", "Youtu"),
}

# The part of texts of models of texts and images: (architecture, kind of the part of texts) -> its name.
TEXT_PARTS = {
    ("Gemma3ForConditionalGeneration", "gemma3_text"): "Gemma3ForCausalLM",
    ("Idefics3ForConditionalGeneration", "llama"): "LlamaForCausalLM",
    ("LlavaForConditionalGeneration", "llama"): "LlamaForCausalLM",
    ("LlavaForConditionalGeneration", "mistral"): "MistralForCausalLM",
    ("Mistral3ForConditionalGeneration", "mistral"): "MistralForCausalLM",
    ("Mistral3ForConditionalGeneration", "ministral3"): "Ministral3ForCausalLM",
    ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"): "Qwen2ForCausalLM",  # of 2025, whose config has one part
    ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text"): "Qwen2ForCausalLM",
    ("Qwen3_5ForConditionalGeneration", "qwen3_5_text"): "Qwen3_5ForCausalLM",
    ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"): "Qwen3_5MoeForCausalLM",
    ("Qwen3VLForConditionalGeneration", "qwen3_vl_text"): "Qwen3ForCausalLM",
    ("SmolVLMForConditionalGeneration", "llama"): "LlamaForCausalLM",
}


def model_class(config: ModelConfig) -> type[Decoder]:
    """Return the class of a model. Raises CheckpointError for an architecture that we do not know."""
    name = TEXT_PARTS.get((config.architecture, str(config.get("model_type"))), config.architecture)
    entry = MODELS.get(name)
    if entry is None:
        known = ", ".join((*MODELS, *dict.fromkeys(whole for whole, _ in TEXT_PARTS)))
        raise CheckpointError(config.path, f"architecture {config.architecture!r} is not supported; known are {known}")
    module, kind = entry
    found: type[Decoder] = getattr(importlib.import_module(f"model_svc.models.{module}"), kind)
    return found
