"""gpt-oss as a GGUF file: its config and its tensors are those of the model that transformers has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.pull.gguf_config import config_json
from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf import GgufSource
from model_svc.weights.gguf_header import read_header
from model_svc.weights.stored.block_tensor import BlockTensor
from tests.headrace.gguf_gpt_oss import gpt_oss_vocab, tiny_gpt_oss
from tests.headrace.gguf_vocab import byte_tensors, write


def test_the_config_is_that_of_the_model(tmp_path: Path) -> None:
    wanted = tiny_gpt_oss(tmp_path / "tiny.gguf").config.to_dict()
    found = config_json(read_header(tmp_path / "tiny.gguf"))
    assert found.pop("architectures") == ["GptOssForCausalLM"]
    assert found.pop("rope_scaling") | {"rope_theta": found.pop("rope_theta")} == wanted["rope_parameters"]
    for name in ("bos_token_id", "eos_token_id", "dtype"):
        del found[name]
    assert {name: wanted[name] for name in found} == found
    assert found.keys() >= {"num_local_experts", "num_experts_per_tok", "sliding_window", "layer_types", "swiglu_limit"}


def test_a_file_that_names_no_scaling_has_none(tmp_path: Path) -> None:
    tiny_gpt_oss(tmp_path / "tiny.gguf", yarn=False)
    assert config_json(read_header(tmp_path / "tiny.gguf"))["rope_scaling"] is None


@pytest.mark.parametrize("absent", ["expert_count", "expert_feed_forward_length", "attention.sliding_window"])
def test_what_the_model_cannot_do_without_is_missed_by_name(tmp_path: Path, absent: str) -> None:
    tiny_gpt_oss(tmp_path / "tiny.gguf")
    metadata = read_header(tmp_path / "tiny.gguf").metadata
    del metadata[f"gpt-oss.{absent}"]
    path = write(tmp_path / "less.gguf", metadata, byte_tensors(gpt_oss_vocab()))
    with pytest.raises(CheckpointError, match=f"'gpt-oss.{absent}' is missing"):
        config_json(read_header(path))


def test_tensors_have_the_names_and_numbers_of_the_model(tmp_path: Path) -> None:
    state = tiny_gpt_oss(tmp_path / "tiny.gguf").state_dict()
    source = GgufSource(tmp_path / "tiny.gguf")
    for name, wanted in state.items():
        if ".experts." not in name:
            assert torch.equal(source.get(name, tuple(wanted.shape)), wanted)
            continue
        prefix, _, stack = name.rpartition(".")
        parts = ("gate_proj", "up_proj") if stack.startswith("gate_up") else ("down_proj",)
        kind = "bias" if stack.endswith("_bias") else "weight"
        for expert, numbers in enumerate(wanted if kind == "bias" else wanted.transpose(1, 2)):
            for turn, part in enumerate(parts):
                each = numbers[turn :: len(parts)]
                path = f"{prefix}.{expert}.{part}.{kind}"
                assert torch.equal(source.get(path, tuple(each.shape)), each)
                assert isinstance(source.read(path), BlockTensor) is (kind == "weight")
    assert not source.unused()
