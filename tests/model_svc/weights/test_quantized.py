"""Quantized checkpoints that are not what their config says, and configs that are not supported, are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from model_svc.models.load import load_model
from model_svc.weights.errors import CheckpointError
from model_svc.weights.formats.choose import format_of
from model_svc.weights.open import open_weights
from model_svc.weights.stored.grouped_tensor import GroupedTensor
from tests.model_svc.weights.gguf_files import tiny_llama
from tests.model_svc.weights.quantized_models import CASES, write_quantized

Q = "model.layers.0.self_attn.q_proj"
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


def group(**changes: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": WEIGHTS | changes}}, "format": "pack-quantized"}


@pytest.mark.parametrize(
    ("method", "changes", "fault"),
    [
        ("bitsandbytes", {}, "quant_method is 'bitsandbytes'; supported: awq, gptq, fp8, compressed-tensors, mxfp4"),
        ("awq", {"bits": 3}, r"quantization_config\.bits is 3; supported: 4"),
        ("awq", {"version": "gemv"}, "version is 'gemv'; supported: gemm"),
        ("awq", {"zero_point": False}, "zero_point is False; supported: True"),
        ("awq", {"group_size": 0}, "group_size is 0"),
        ("gptq", {"bits": 2}, "bits is 2; supported: 4, 8"),
        ("gptq", {"bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; supported: gptq, gptq_v2"),
        ("gptq", {"bits": 4, "dynamic": {"+:.*down": {"bits": 8}}}, "dynamic is .*; supported: nothing"),
        ("fp8", {"weight_block_size": [128]}, r"weight_block_size is \[128\]; supported: two positive integers"),
        (
            "compressed-tensors",
            group(num_bits=8, strategy="block", type="float") | {"format": "float-quantized"},
            "block_structure is None; supported: two positive integers",
        ),
        ("fp8", {"activation_scheme": "odd"}, "activation_scheme is 'odd'; supported: dynamic, static"),
        ("fp8", {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'"),
        ("compressed-tensors", {"format": "nvfp4-pack-quantized"}, "config_groups is None; supported: one group"),
        ("compressed-tensors", group() | {"format": "nvfp4-pack-quantized"}, "format is 'nvfp4-pack-quantized'"),
        ("compressed-tensors", group(num_bits=3), r"config_groups\.group_0\.weights\.num_bits is 3; supported: 4, 8"),
        ("compressed-tensors", group(actorder="group"), r"weights\.actorder is 'group'; supported: weight, static"),
        ("compressed-tensors", group(type="float"), r"weights\.type is 'float'; supported: int"),
        ("compressed-tensors", group() | {"ignore": ["lm_head", "re:(["]}, r"ignore is .*patterns behind re: \(unt"),
        ("compressed-tensors", group() | {"transform_config": {"r1": 1}}, "transform_config is .*; supported: nothing"),
        ("compressed-tensors", group() | {"sparsity_config": {"format": "marlin-24"}}, "format is 'marlin-24'"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_named_with_its_value(method: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointError, match=fault):
        format_of(Path("config.json"), {"quantization_config": {"quant_method": method, **changes}})


def test_a_config_without_quantization_has_no_format() -> None:
    assert format_of(Path("config.json"), {"quantization_config": None}) is None
    with pytest.raises(CheckpointError, match="must be an object, not 'awq'"):
        format_of(Path("config.json"), {"quantization_config": "awq"})


def checkpoint(directory: Path, case: str, change: Callable[[dict[str, Tensor]], None] | None = None) -> Path:
    model = tiny_llama()
    with torch.no_grad():
        write_quantized(directory, model, CASES[case])
    if change is not None:
        stored = load_file(directory / "model.safetensors")
        change(stored)
        save_file(stored, directory / "model.safetensors")
    return directory


def load(directory: Path) -> None:
    load_model(directory, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("case", "name", "tensor", "fault"),
    [
        ("awq_32", "scales", None, f"tensor '{Q}.scales' is missing"),
        ("awq_32", "qweight", None, f"tensor '{Q}.qweight' is missing"),
        ("awq_32", "qzeros", torch.zeros(3, 8, dtype=torch.int32), r"qzeros' has shape \[3, 8\]; AWQ.*needs \[2, 8\]"),
        ("awq_32", "scales", torch.zeros(2, 64, dtype=torch.int32), r"scales' is torch\.int32; AWQ"),
        ("awq_32", "g_idx", torch.zeros(64), f"no use for 1 tensors: {Q}.g_idx"),
        ("gptq_4_v2", "qweight", torch.zeros(8, dtype=torch.int32), "a matrix is expected"),
        ("gptq_4_v2", "g_idx", torch.full((64,), 7, dtype=torch.int32), "g_idx names groups 7 to 7 of 2"),
        ("fp8_blocks", "weight_scale_inv", None, "is torch.float8_e4m3fn but has no scale"),
        ("fp8_blocks", "weight_scale", torch.ones(1, 1), "it has both weight_scale_inv and weight_scale"),
        ("compressed_4", "weight_shape", torch.tensor([64, 60]), r"weight_shape says \[64, 60\], but \[64, 64\]"),
        ("compressed_4", "weight_g_idx", torch.zeros(64, dtype=torch.int32), f"no use for 1 tensors: {Q}.weight_g_idx"),
        ("gptq_4_v2", "bias", torch.ones(64), f"no use for 1 tensors: {Q}.bias"),
    ],
)
def test_tensors_that_do_not_fit_the_format_are_refused_by_name(
    tmp_path: Path, case: str, name: str, tensor: Tensor | None, fault: str
) -> None:
    def change(stored: dict[str, Tensor]) -> None:
        stored.pop(f"{Q}.{name}", None)
        if tensor is not None:
            stored[f"{Q}.{name}"] = tensor

    with pytest.raises(CheckpointError, match=fault):
        load(checkpoint(tmp_path, case, change))


@pytest.mark.parametrize("pattern", [Q, r"re:.*\.0\.self_attn\.q_proj$"])
def test_a_module_that_the_config_ignores_must_not_be_quantized(tmp_path: Path, pattern: str) -> None:
    checkpoint(tmp_path, "compressed_4")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["ignore"] += [pattern]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"'{Q}' is quantized, but the config says that it is not"):
        load(tmp_path)


def test_a_module_that_the_config_ignores_is_loaded_as_it_is(tmp_path: Path) -> None:
    def change(stored: dict[str, Tensor]) -> None:
        for name in [name for name in stored if name.startswith(Q)]:
            del stored[name]
        stored[f"{Q}.weight"] = torch.eye(64)

    checkpoint(tmp_path, "compressed_4", change)
    config = json.loads((tmp_path / "config.json").read_text())
    source = open_weights(tmp_path, config)
    assert torch.equal(source.get(f"{Q}.weight", (64, 64)), torch.eye(64))
    load(tmp_path)


def test_scales_for_a_rounded_cache_or_rounded_activations_are_not_needed(tmp_path: Path) -> None:
    def change(stored: dict[str, Tensor]) -> None:
        stored["model.layers.0.self_attn.k_scale"] = torch.ones(1)
        stored[f"{Q}.input_scale"] = torch.ones(1)

    load(checkpoint(tmp_path, "compressed_fp8_tensor", change))


def test_a_quantized_head_is_read(tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(tiny_llama().config)
    with torch.no_grad():
        write_quantized(tmp_path, model, CASES["gptq_4_v2"])
        parts, numbers = CASES["gptq_4_v2"].quantizer(model.lm_head.weight)
    stored = load_file(tmp_path / "model.safetensors")
    del stored["lm_head.weight"]
    stored |= {f"lm_head.{name}": part.contiguous() for name, part in parts.items()}
    save_file(stored, tmp_path / "model.safetensors")
    source = open_weights(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    torch.testing.assert_close(source.get("lm_head.weight", (96, 64)), numbers, rtol=1e-6, atol=1e-7)
    load(tmp_path)


@pytest.mark.parametrize(("bits", "zero", "kind"), [(4, 8, "Q4_0"), (4, 3, "Q4_1"), (8, 128, "Q8_0"), (8, 5, None)])
def test_blocks_hold_the_same_numbers(bits: int, zero: int, kind: str | None) -> None:
    codes = torch.randint(0, 256, (6, 96 * bits // 8), dtype=torch.uint8)
    scales = (torch.rand(6, 3) + 0.1).half()
    tensor = GroupedTensor(codes, scales, torch.full((6, 3), zero, dtype=torch.uint8), bits=bits)
    blocks = tensor.as_blocks()
    if kind is None:
        assert blocks is None
        return
    assert blocks is not None
    assert blocks.type.name == kind
    allowed = 2.0**-11 * zero * 1.1 if kind == "Q4_1" else 0.0
    assert float((blocks.dequantize() - tensor.dequantize()).abs().max()) <= allowed


def test_scales_that_float16_cannot_hold_keep_a_weight_out_of_blocks() -> None:
    codes = torch.zeros(2, 32, dtype=torch.uint8)
    assert GroupedTensor(codes, torch.tensor([[1.0], [1e5]]), 128).as_blocks() is None
    assert GroupedTensor(codes, torch.tensor([[1.0], [1e-9]]), 128).as_blocks() is not None


def test_columns_may_be_cut_within_a_group_but_not_within_a_byte() -> None:
    codes = torch.randint(0, 256, (4, 64), dtype=torch.uint8)
    tensor = GroupedTensor(codes, torch.rand(4, 2), 8, bits=4)
    assert torch.equal(tensor.columns(10, 90).dequantize(), tensor.dequantize()[:, 10:90])
    assert torch.equal(tensor.rows(torch.tensor([3, 0])).dequantize(), tensor.dequantize()[[3, 0]])
    with pytest.raises(ValueError, match="cut a byte"):
        tensor.columns(1, 64)
