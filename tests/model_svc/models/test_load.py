"""Loading a checkpoint: tied and untied heads, leftovers, and configs that cannot be served."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from model_svc.models.config import load_config, parse_config
from model_svc.models.decoder import Decoder
from model_svc.models.load import build_model, load_model
from model_svc.quant.dequantized import Dequantized
from model_svc.weights.errors import CheckpointError
from model_svc.weights.random import RandomSource
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.weights.gguf_files import tiny_llama, write_llama

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CPU = torch.device("cpu")
IDS = [4, 9, 33, 71, 2, 9]


def load(directory: Path) -> Decoder:
    return load_model(directory, dtype=torch.float32, device=CPU)


def logits(model: Decoder) -> torch.Tensor:
    return ModelDriver(model).logits((Tracked(0, list(IDS)), len(IDS)))[0]


@pytest.fixture(scope="module")
def untied() -> Any:
    return tiny_llama()


@pytest.fixture
def checkpoint(tmp_path: Path, untied: Any) -> Path:
    untied.save_pretrained(tmp_path)
    return tmp_path


def rewrite(directory: Path, *, tie: bool | None, **tensors: torch.Tensor | None) -> None:
    """Change `tie_word_embeddings` (None: leave it out) and replace or drop tensors."""
    config = json.loads((directory / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    if tie is not None:
        config["tie_word_embeddings"] = tie
    (directory / "config.json").write_text(json.dumps(config))
    stored = load_file(directory / "model.safetensors")
    for name, tensor in {EMBED: stored[EMBED], **tensors}.items():
        if tensor is None:
            stored.pop(name)
        else:
            stored[name] = tensor.clone()
    save_file(stored, directory / "model.safetensors")


@torch.inference_mode()
def expected(model: Any, head: torch.Tensor) -> torch.Tensor:
    hidden: torch.Tensor = model.model(torch.tensor([IDS])).last_hidden_state[0]
    return hidden @ head.T


def test_an_untied_head_is_used(checkpoint: Path, untied: Any) -> None:
    weights = untied.state_dict()
    assert not torch.equal(weights[EMBED], weights[HEAD])
    torch.testing.assert_close(logits(load(checkpoint)), expected(untied, weights[HEAD]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [EMBED, HEAD])
def test_an_untied_model_without_one_of_its_tables_is_refused(checkpoint: Path, name: str) -> None:
    rewrite(checkpoint, tie=False, **{name: None})
    with pytest.raises(CheckpointError, match=f"'{name}' is missing"):
        load(checkpoint)


@pytest.mark.parametrize("kept", ["embed only", "head only", "both"])
def test_a_tied_model_needs_one_of_its_tables(
    checkpoint: Path, untied: Any, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = untied.state_dict()[EMBED]
    changes = {"embed only": {HEAD: None}, "head only": {EMBED: None, HEAD: table}, "both": {HEAD: table}}[kept]
    rewrite(checkpoint, tie=True, **changes)
    torch.testing.assert_close(logits(load(checkpoint)), expected(untied, table), rtol=1e-4, atol=1e-4)
    assert not caplog.records


def test_tied_tables_that_differ_are_reported(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    rewrite(checkpoint, tie=True)
    with caplog.at_level(logging.WARNING):
        load(checkpoint)
    assert "differ" in caplog.text


def test_a_tied_quantized_table_serves_as_embedding_and_as_head(tmp_path: Path) -> None:
    model = tiny_llama(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_llama(tmp_path / "model.gguf", model, "Q8_0")
    for parameter in model.parameters():
        if parameter.dim() == 2:
            packed = gguf.quants.quantize(parameter.detach().numpy(), gguf.GGMLQuantizationType.Q8_0)
            parameter.data = torch.from_numpy(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))
    reference = expected(model, model.state_dict()[EMBED])
    torch.testing.assert_close(logits(load(tmp_path)), reference, rtol=1e-4, atol=1e-4)


def test_a_tensor_that_finds_no_use_stops_the_load(checkpoint: Path) -> None:
    rewrite(checkpoint, tie=False, **{"model.layers.0.self_attn.q_norm.weight": torch.ones(16)})
    with pytest.raises(CheckpointError, match=r"no use for 1 tensors: model\.layers\.0\.self_attn\.q_norm\.weight"):
        load(checkpoint)


@pytest.mark.parametrize(
    "part", ["qweight", "qzeros", "scales", "g_idx", "weight_scale", "input_scale", "k_scale", "v_scale"]
)
def test_a_checkpoint_quantized_in_a_way_we_do_not_know_is_refused_and_never_half_read(
    checkpoint: Path, part: str
) -> None:
    rewrite(checkpoint, tie=False, **{f"model.layers.0.self_attn.q_proj.{part}": torch.ones(1)})
    with pytest.raises(CheckpointError, match=f"no use for 1 tensors: .*{part}"):
        load(checkpoint)
    rewrite(checkpoint, tie=False, **{"model.layers.0.self_attn.q_proj.weight": None})
    with pytest.raises(CheckpointError, match="q_proj"):
        load(checkpoint)


def test_what_old_checkpoints_saved_beside_the_weights_is_ignored(checkpoint: Path) -> None:
    rewrite(checkpoint, tie=False, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    load(checkpoint)


def test_weights_in_bfloat16_load_into_the_exact_mode(checkpoint: Path) -> None:
    stored = {name: tensor.bfloat16() for name, tensor in load_file(checkpoint / "model.safetensors").items()}
    save_file(stored, checkpoint / "model.safetensors")
    assert logits(load(checkpoint)).dtype == torch.float32


GOOD = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not supported; known are"),
        ({"architectures": None}, "architectures must name"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, not 'many'"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"hidden_act": "swoosh"}, "'swoosh' is not supported"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks 'low_freq_factor'"),
        ({"rope_theta": -5.0}, "rope_theta"),
        ({"head_dim": 5}, "5 dimensions"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_served_names_its_field(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointError, match=fault):
        build_model(
            parse_config(Path("x/config.json"), GOOD | changes),
            RandomSource(tied=False),
            Dequantized(torch.float32, CPU),
            device=CPU,
        )


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_malformed_config_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_config(tmp_path)


def test_a_missing_config_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="headrace pull"):
        load_config(tmp_path)


def test_the_served_context_may_be_shorter_but_never_longer_than_the_model_s(checkpoint: Path) -> None:
    assert load_model(checkpoint, dtype=torch.float32, device=CPU, max_len=50).max_len == 50
    assert load_model(checkpoint, dtype=torch.float32, device=CPU, max_len=5000).max_len == 128


@pytest.mark.parametrize(
    ("family", "changes", "fault"),
    [
        ("Arcee", {"hidden_act": "swoosh"}, "'swoosh' is not supported here"),
        ("Apertus", {"hidden_act": "silu"}, "'silu' is not supported; Apertus has xielu"),
        ("Ministral3", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "original_max_position_embeddings must be"),
        ("Llama", {"rope_scaling": [1]}, r"rope_scaling must be an object, not \[1\]"),
        ("Llama", {"rope_parameters": "x"}, "rope_parameters must be an object, not 'x'"),
        ("Llama", {"rope_theta": "x"}, "rope_theta must be a number, not 'x'"),
        ("Llama", {"partial_rotary_factor": 4.0}, "a rotated part of 32 dimensions make no sense"),
        ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": "x"}}, "rope scaling of type 'linear' makes no"),
        ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope scaling of type 'linear' makes no"),
        ("Mistral", {"sliding_window": "x"}, "sliding_window must be a whole number, not 'x'"),
        ("Qwen2", {"layer_types": ["sliding_attention"] * 2, "sliding_window": -1}, "sliding_window must be a whole"),
        ("Qwen2", {"sliding_window_pattern": []}, r"sliding_window_pattern must be a whole number, not \[\]"),
        ("Granite", {"attention_multiplier": [1]}, r"attention_multiplier must be a number, not \[1\]"),
        ("Granite", {"attention_multiplier": 0}, "scores cannot be multiplied with 0.0"),
        ("Granite", {"logits_scaling": math.nan}, "logits_scaling must be a number, not nan"),
        ("SmolLM3", {"no_rope_layers": [1, 0]}, r"no_rope_layers must list all layers, not \[1, 0\]"),
    ],
    ids=str,
)
def test_what_an_architecture_says_of_itself_is_refused_by_name(
    family: str, changes: dict[str, Any], fault: str
) -> None:
    config = parse_config(Path("x/config.json"), GOOD | {"architectures": [f"{family}ForCausalLM"]} | changes)
    with pytest.raises(CheckpointError, match=rf"x/config\.json: .*{fault}"):
        build_model(config, RandomSource(tied=False), Dequantized(torch.float32, CPU), device=CPU)


def test_random_weights_are_the_same_for_a_seed_and_serve_any_model() -> None:
    def first(seed: int) -> torch.Tensor:
        source = RandomSource(tied=True, seed=seed, spread=0.2)
        config = parse_config(Path("x/config.json"), GOOD | {"tie_word_embeddings": True, "vocab_size": 96})
        return logits(build_model(config, source, Dequantized(torch.float32, CPU), device=CPU))

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
    assert first(1).isfinite().all()


def test_bfloat16_stays_near_the_exact_mode(checkpoint: Path) -> None:
    exact = logits(load(checkpoint))
    rough = logits(load_model(checkpoint, dtype=torch.bfloat16, device=CPU))
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    assert float((rough - exact).abs().max()) < 0.05 * float(exact.abs().max())
