"""The checkpoint that starts are measured with is like those that people have: readable in place."""

from __future__ import annotations

from pathlib import Path

import torch

from loadtest.start import write_checkpoint
from model_svc.models.load import load_model
from model_svc.weights.safetensors_header import read_header

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


def test_its_tensors_lie_at_even_places_and_a_model_is_made_of_all(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPE)
    places = [place for shard in tmp_path.glob("*.safetensors") for place in read_header(shard).values()]
    assert len(places) == 3 * 9 + 3
    assert all(place.offset % 8 == 0 for place in places)
    model = load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
    assert model.weight_bytes == 4 * sum(place.num_bytes // 2 for place in places)
