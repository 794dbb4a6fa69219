"""Of models of texts and images the part of texts is served: its logits are those of the whole model for a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from model_svc.models.config import load_config
from model_svc.models.load import load_model
from model_svc.weights.errors import CheckpointError
from tests.model_svc.models.test_parity import EXPERTS, SLIDING, STATES, prompt
from tests.model_svc.paged import ModelDriver, Tracked
from wire.model_card import ModelCard

TEXT: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.3,
    "sliding_window": 8,
}
IMAGES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SEES = {"depth": 1, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 16}
PIXTRAL = {"model_type": "pixtral", "head_dim": 16}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {
    "gemma3": ("Gemma3", {"layer_types": SLIDING}, {}, True),
    "llava": ("Llava", {"model_type": "mistral"}, {"model_type": "clip_vision_model"}, False),
    "mistral3": ("Mistral3", {"model_type": "mistral"}, PIXTRAL, False),
    "ministral3": ("Mistral3", {"model_type": "ministral3"}, PIXTRAL, True),
    "qwen3_5": ("Qwen3_5", STATES, SEES, False),
    "qwen3_5_moe": ("Qwen3_5Moe", {**STATES, **EXPERTS, "shared_expert_intermediate_size": 40}, SEES, False),
}


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    family, text, images, tied = CASES[request.param]
    config_class = getattr(transformers, f"{family}Config")
    fields = {"mm_tokens_per_image": 4} if family == "Gemma3" else {}
    config = config_class(text_config=TEXT | text, vision_config=IMAGES | images, tie_word_embeddings=tied, **fields)
    torch.manual_seed(5)
    model_class = getattr(transformers, f"{family}ForConditionalGeneration")
    model = model_class._from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    return model, tmp_path


def close(pair: tuple[Any, Path]) -> None:
    oracle, directory = pair
    ids = prompt(21, seed=1)
    with torch.inference_mode():
        wanted = oracle(torch.tensor([ids])).logits[0]
    model = load_model(directory, dtype=torch.float32, device=torch.device("cpu"))
    assert wanted.std() > 0.05
    found = ModelDriver(model).logits((Tracked(0, ids), len(ids)))[0]
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("pair", CASES, indirect=True)
def test_a_text_gets_the_logits_of_the_whole_model(pair: tuple[Any, Path]) -> None:
    close(pair)


@pytest.mark.parametrize("pair", ["qwen3_5_moe"], indirect=True)
def test_experts_may_lie_in_one_tensor_and_layers_that_guess_ahead_are_left(pair: tuple[Any, Path]) -> None:
    path = pair[1] / "model.safetensors"
    stored = load_file(path)
    for layer in range(4):
        place = f"model.language_model.layers.{layer}.mlp.experts."
        parts = {
            name: torch.stack([stored.pop(f"{place}{n}.{name}.weight") for n in range(7)])
            for name in ("gate_proj", "up_proj", "down_proj")
        }
        stored[f"{place}gate_up_proj"] = torch.cat((parts["gate_proj"], parts["up_proj"]), 1)
        stored[f"{place}down_proj"] = parts["down_proj"]
    stored["mtp.fc.weight"] = torch.ones(64, 128)
    stored["mtp.layers.0.mlp.experts.gate_up_proj"] = torch.ones(7, 96, 64)
    save_file(stored, path)
    close(pair)


@pytest.mark.parametrize("pair", ["gemma3"], indirect=True)
def test_newer_names_mean_the_same_and_a_name_may_not_come_twice(pair: tuple[Any, Path]) -> None:
    path = pair[1] / "model.safetensors"
    stored = load_file(path)
    newer = {name.replace("language_model.model.", "model.language_model."): values for name, values in stored.items()}
    assert newer.keys() != stored.keys()
    save_file(newer, path)
    close(pair)
    save_file(newer | {"language_model.model.norm.weight": torch.ones(64)}, path)
    with pytest.raises(CheckpointError, match=r"are both 'model\.norm\.weight'"):
        close(pair)


def test_gemma_3_may_leave_out_what_is_as_usual(tmp_path: Path) -> None:
    short: dict[str, Any] = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
    }
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": short}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    usual: Any = transformers.Gemma3TextConfig(**short)
    found = load_config(tmp_path)
    for ours, theirs in (
        (found.vocab_size, usual.vocab_size),
        (found.num_heads, usual.num_attention_heads),
        (found.num_kv_heads, usual.num_key_value_heads),
        (found.head_dim, usual.head_dim),
        (found.max_position, usual.max_position_embeddings),
        (found.norm_eps, usual.rms_norm_eps),
        (found.act, usual.hidden_activation),
        (found.sliding_window, usual.sliding_window),
        (found.number("query_pre_attn_scalar"), usual.query_pre_attn_scalar),
        (found.rope().theta, usual.rope_parameters["full_attention"]["rope_theta"]),
        (found.number("rope_local_base_freq"), usual.rope_parameters["sliding_attention"]["rope_theta"]),
    ):
        assert ours == theirs
    card = ModelCard.load(tmp_path)
    assert (card.vocab_size, card.max_model_len) == (usual.vocab_size, usual.max_position_embeddings)
