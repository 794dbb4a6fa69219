"""MXFP4 experts of safetensors: the numbers that transformers makes of them, expert by expert; odd ones are refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from kernels.native.library import built
from model_svc.layers.experts import Experts, ExpertsConfig
from model_svc.layers.loader import Loader
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.native import Native, PackedExperts
from model_svc.weights.errors import CheckpointError
from model_svc.weights.open import open_weights
from model_svc.weights.source import Shard, WeightSource
from model_svc.weights.stored.float4_tensor import Float4Tensor

X, E, F = 3, 64, 128
MLP = "model.layers.0.mlp."
STACK = f"{MLP}experts.gate_up_proj"
CONFIG = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}


def stack(out: int, size: int) -> tuple[Tensor, Tensor]:
    """Return random codes and scales of X experts: numbers near one."""
    codes = torch.randint(0, 256, (X, out, size // 32, 16), dtype=torch.uint8)
    return codes, torch.randint(123, 127, (X, out, size // 32), dtype=torch.uint8)


def layer() -> dict[str, Tensor]:
    """Return the tensors of a layer of experts."""
    tensors = {f"{MLP}gate.weight": torch.randn(X, E)}
    for name, out, size in (("gate_up_proj", 2 * F, E), ("down_proj", E, F)):
        tensors[f"{MLP}experts.{name}_blocks"], tensors[f"{MLP}experts.{name}_scales"] = stack(out, size)
    return tensors


def opened(directory: Path, tensors: dict[str, Tensor]) -> WeightSource:
    save_file(tensors, directory / "model.safetensors")
    return open_weights(directory, CONFIG)


def numbers(tensors: dict[str, Tensor], name: str) -> Tensor:
    """Return [X, out, in] by transformers, which turns them round."""
    codes, scales = (tensors[f"{MLP}experts.{name}_{kind}"] for kind in ("blocks", "scales"))
    return convert_moe_packed_tensors(codes, scales, dtype=torch.float32).transpose(1, 2)


def test_each_expert_has_the_numbers_of_transformers(tmp_path: Path) -> None:
    tensors = layer()
    source = opened(tmp_path, tensors)
    gate_up, down = numbers(tensors, "gate_up_proj"), numbers(tensors, "down_proj")
    for expert in range(X):
        at = f"{MLP}experts.{expert}."
        for turn, name in enumerate(("gate_proj", "up_proj")):
            assert torch.equal(source.get(f"{at}{name}.weight", (F, E)), gate_up[expert, turn::2])
        assert torch.equal(source.get(f"{at}down_proj.weight", (E, F)), down[expert])
    assert source.unused() == {f"{MLP}gate.weight"}


def test_what_is_read_are_ggmls_blocks_in_another_order(tmp_path: Path) -> None:
    tensors = layer()
    stored = opened(tmp_path, tensors).get_shard(f"{MLP}experts.1.down_proj.weight", (E, F))
    assert isinstance(stored, Float4Tensor)
    found = gguf.quants.dequantize(stored.as_blocks().blocks.numpy(), gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(found, numbers(tensors, "down_proj")[1].numpy())


def test_ranks_share_an_expert_by_rows_and_by_columns(tmp_path: Path) -> None:
    source = opened(tmp_path, layer())
    for name, shape, dim in (("up_proj", (F, E), 0), ("down_proj", (E, F), 1)):
        path = f"{MLP}experts.2.{name}.weight"
        whole = source.get(path, shape)
        for rank in range(2):
            part = source.get_shard(path, shape, Shard(dim, rank, 2))
            assert isinstance(part, Float4Tensor)
            assert torch.equal(part.dequantize(), whole.chunk(2, dim)[rank])
    with pytest.raises(CheckpointError, match=r"cannot be cut for 8 ranks .columns 0..16 cut a block"):
        source.get_shard(f"{MLP}experts.2.down_proj.weight", (E, F), Shard(1, 0, 8))


@pytest.mark.skipif(not built(), reason="native kernels are not built")
def test_experts_stay_packed_on_a_cpu(tmp_path: Path) -> None:
    config, x = ExpertsConfig(E, F, num_experts=X, num_chosen=2, renormalise=True), torch.randn(9, E)
    source, packed = opened(tmp_path, layer()), Native()
    block = Experts(Loader(source, packed, MLP), config)
    assert isinstance(block._blocks, PackedExperts)
    assert packed.num_bytes == 4 * X * E + X * 3 * F * E * 17 // 32
    dense = Dequantized(torch.float32, torch.device("cpu"))
    wanted = Experts(Loader(source, dense, MLP), config)(x)
    assert float((block(x) - wanted).pow(2).mean().sqrt() / wanted.std()) < 0.02  # of activations, rounded to 8 bits


@pytest.mark.parametrize(
    ("name", "tensor", "fault"),
    [
        ("_scales", None, f"tensor '{STACK}_scales' is missing"),
        ("_blocks", None, f"tensor '{STACK}_blocks' is missing"),
        ("_blocks", torch.zeros(X, 2 * F, 16, dtype=torch.uint8), r"_blocks' has shape \[3, 256, 16\]; MXFP4.*needs"),
        ("_blocks", torch.zeros(X, 2 * F, 2, 8, dtype=torch.uint8), r"_blocks' has shape \[3, 256, 2, 8\]; MXFP4"),
        ("_blocks", torch.zeros(1 << 40, 0, 2, 16, dtype=torch.uint8), r"_blocks' has shape \[1099511627776, 0, 2, 16"),
        ("_blocks", torch.zeros(4097, 2, 1, 16, dtype=torch.uint8), "_blocks' has 4097 experts; at most 4096"),
        ("_scales", torch.zeros(X, 2 * F, 1, dtype=torch.uint8), r"_scales' has shape \[3, 256, 1\]; MXFP4.*256, 2\]"),
        ("_scales", torch.zeros(2, 2 * F, 2, dtype=torch.uint8), r"_scales' has shape \[2, 256, 2\]; MXFP4.*\[3, 256"),
        ("_scales", torch.zeros(X, 2 * F, 2), "_scales' is torch.float32; MXFP4.*torch.uint8"),
        ("", torch.zeros(X, dtype=torch.uint8), f"tensor '{STACK}' is torch.uint8 but has no scale"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, name: str, tensor: Tensor | None, fault: str
) -> None:
    tensors = layer()
    tensors.pop(STACK + name, None)
    if tensor is not None:
        tensors[STACK + name] = tensor
    with pytest.raises(CheckpointError, match=fault):
        source = opened(tmp_path, tensors)
        for each in sorted(source.names()):
            source.get(each, tuple(source.shapes[each]))  # type: ignore[attr-defined]


def test_outputs_in_turns_are_pairs(tmp_path: Path) -> None:
    codes, scales = stack(5, 32)
    with pytest.raises(CheckpointError, match="_blocks' has 5 outputs, no pairs of gate and up"):
        opened(tmp_path, {f"{STACK}_blocks": codes, f"{STACK}_scales": scales})


def test_an_expert_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    twice = {f"{MLP}experts.1.up_proj.weight": torch.zeros(F, E)}
    with pytest.raises(CheckpointError, match=f"experts.1.up_proj.weight' stands beside '{STACK}', which has it too"):
        opened(tmp_path, layer() | twice)


@pytest.mark.parametrize("pattern", ["model.layers.*.mlp", "model.layers.0.mlp.experts.gate_up_proj", "model"])
def test_experts_that_the_config_leaves_out_must_not_be_quantized(tmp_path: Path, pattern: str) -> None:
    save_file(layer(), tmp_path / "model.safetensors")
    config = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head", pattern]}}
    with pytest.raises(CheckpointError, match="is quantized, but the config says that it is not"):
        open_weights(tmp_path, config)
