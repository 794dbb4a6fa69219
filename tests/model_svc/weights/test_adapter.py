"""Adapters' files: what is not computed, does not fit or is not whole is refused by file and field."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.errors import CheckpointError
from tests.lora import write_config
from tests.model_svc.tiny import tiny_llama

LAYER = "model.layers.0.self_attn.q_proj"
PEFT = f"base_model.model.{LAYER}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_config(tmp_path)
    _save(tmp_path, {f"{PEFT}.lora_A.weight": torch.ones(4, 32), f"{PEFT}.lora_B.weight": torch.ones(64, 4)})
    return tmp_path


def _save(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / "adapter_model.safetensors")


def _fault(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        AdapterCheckpoint("a", folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4.0),
        ({"lora_alpha": 1}, 0.25),
        ({"alpha_pattern": {"v_proj": 1, "q_proj": 12}}, 3.0),
        ({"alpha_pattern": {"proj": 1, f"^{LAYER}": 20.0}}, 5.0),
        ({"r": 8, "rank_pattern": {"layers.0.self_attn.q_proj": 4}}, 2.0),
        ({"r": 8, "rank_pattern": {"q_proj": 4, LAYER: 9}, "use_rslora": True}, 4.0),
    ],
)
def test_the_scale_is_pefts(folder: Path, fields: dict[str, Any], scale: float) -> None:
    write_config(folder, **fields)
    assert AdapterCheckpoint("a", folder).part(LAYER, 64, 32).scale == scale


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora true"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4'"),
        ({"r": 0}, "r must be"),
        ({"r": 1 << 40}, "r must be"),
        ({"r": "4"}, "r must be a number"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
        ({"alpha_pattern": {".*(q|v)_proj": 1}}, "alpha_pattern: '.*(q|v)_proj' is a regular expression"),
        ({"rank_pattern": {"q_proj": 2.5}}, "rank_pattern: 'q_proj' must be a whole number"),
        ({"rank_pattern": [4]}, "rank_pattern must be an object"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_field(folder: Path, fields: dict[str, Any], said: str) -> None:
    write_config(folder, **fields)
    fault = _fault(folder)
    assert fault.startswith(f"{folder / 'adapter_config.json'}: ")
    assert said in fault


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({f"{PEFT}.lora_magnitude_vector": (64,)}, "lora_magnitude_vector"),
        ({f"{PEFT}.lora_A.weight": (4, 32)}, "lacks lora_B"),
        ({f"{PEFT}.lora_A.weight": (4, 32), f"{PEFT}.lora_B.weight": (64,)}, "no matrices"),
        ({"base_model.model.lm_head.lora_A.weight": (4, 32)}, "'lm_head'"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": (4, 67)}, "lora_embedding_A"),
        ({f"{PEFT}.lora_A.weight": (4, 32), f"{LAYER}.lora_A.weight": (4, 32)}, "are of one layer"),
        ({}, "no layer is adapted"),
    ],
)
def test_tensors_that_are_no_pair_of_matrices_are_refused(
    folder: Path, tensors: dict[str, tuple[int, ...]], said: str
) -> None:
    _save(folder, {name: torch.zeros(shape) for name, shape in tensors.items()})
    fault = _fault(folder)
    assert fault.startswith(f"{folder / 'adapter_model.safetensors'}: ")
    assert said in fault


def _header(text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + data


def _entry(**changes: Any) -> bytes:
    return json.dumps({"x.lora_A.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changes}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 8,
        b"1234567",
        struct.pack("<Q", 1000) + b"{}",
        _header(b"[]"),
        _header(_entry(), b"123"),
        _header(_entry(), b"12345"),
        _header(_entry(shape=[1 << 62, 1 << 62]), b"1234"),
        _header(_entry(data_offsets=[4, 8]), b"12345678"),
        _header(b'{"x":' * 200_000, b""),
    ],
)
def test_a_hostile_or_truncated_file_is_refused_by_name(folder: Path, content: bytes) -> None:
    (folder / "adapter_model.safetensors").write_bytes(content)
    assert _fault(folder).startswith(f"{folder / 'adapter_model.safetensors'}: ")


def test_a_file_cut_by_one_byte_is_refused(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut off" in _fault(folder)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"[" * 100_000, b"\xff{}"])
def test_a_configuration_that_is_no_object_is_refused(folder: Path, content: bytes) -> None:
    (folder / "adapter_config.json").write_bytes(content)
    assert _fault(folder).startswith(f"{folder / 'adapter_config.json'}: ")


def test_missing_files_are_named_and_pickles_never_read(folder: Path, tmp_path: Path) -> None:
    assert "is no directory" in _fault(tmp_path / "nowhere")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "adapter_model.bin can run code" in _fault(folder)
    (folder / "adapter_model.bin").unlink()
    assert "the file is missing" in _fault(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: {name: tensor[:3] for name, tensor in tensors.items()}, r"shape \[3, 32\]"),
        (lambda tensors: {**tensors, f"{PEFT}.lora_B.weight": torch.zeros(60, 4)}, r"shape \[60, 4\]"),
        (
            lambda tensors: {name.replace("q_p", "x_p"): one for name, one in tensors.items()},
            "x_proj' is no layer",
        ),
        (lambda tensors: {name.replace(".0.", ".7."): one for name, one in tensors.items()}, "layers.7.*is no layer"),
        (lambda tensors: {name: tensor.long() for name, tensor in tensors.items()}, "must hold numbers"),
    ],
)
def test_what_does_not_fit_the_base_model_is_refused(folder: Path, change: Any, said: str) -> None:
    _save(folder, {name: one.contiguous() for name, one in change(_tensors(folder)).items()})
    with pytest.raises(CheckpointError, match=said) as caught:
        tiny_llama(adapters=[AdapterCheckpoint("a", folder)])
    assert "adapter_model.safetensors" in str(caught.value)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")
