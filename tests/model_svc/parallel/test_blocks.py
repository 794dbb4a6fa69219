"""Quantized checkpoints on two ranks: blocks are dealt out as they are stored, or the start is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from kernels.native.library import built
from model_svc.layers.group import ALONE, Group, Ranks
from model_svc.models.config import parse_config
from model_svc.models.load import build_model, load_model
from model_svc.parallel.load import load_runner
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.kept import Kept
from model_svc.runner.load import load_runner as load_alone
from model_svc.weights.errors import CheckpointError
from model_svc.weights.random import RandomSource, float4
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.parallel.ranks import ranks
from tests.model_svc.parallel.test_processes import OPTIONS, answers
from tests.model_svc.tiny import TINY
from tests.model_svc.weights.gguf_files import write_llama


def checkpoint(path: Path, quant: str, **changes: Any) -> Path:
    torch.manual_seed(5)
    sizes = TINY | {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.3}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | changes)))
    write_llama(path / "tiny.gguf", model, quant)
    (path / "config.json").write_text(json.dumps(model.config.to_dict()))
    return path


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_quantized_weights_are_shared_block_by_block(dtype: str, tmp_path: Path) -> None:
    if dtype == "int8" and not built():
        pytest.skip("native kernels are not built")
    path, options = checkpoint(tmp_path, "Q8_0"), {**OPTIONS, "dtype": dtype, "num_blocks": 40}
    alone = load_alone(path, **options)
    wanted = answers(alone)
    alone.close()
    both = load_runner(path, tensor_parallel=2, **options)
    found = answers(both)
    both.close()
    assert both.info.weight_bytes < alone.info.weight_bytes
    if dtype == "float32":
        assert found == wanted
    else:  # activations are rounded by blocks, so sums differ in their last bits alone
        assert sum(found[name] == ids for name, ids in wanted.items()) >= 0.8 * len(wanted)


def test_a_block_that_would_be_cut_is_refused_by_the_settings_name(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "Q8_0", intermediate_size=96)  # three blocks of 32, which two ranks cannot share
    group: Group = Ranks(1, 2, None, None)
    with pytest.raises(CheckpointError, match=r"down_proj.*cannot be cut for 2 ranks.*lower tensor_parallel"):
        load_model(path, dtype=torch.float32, device=torch.device("cpu"), group=group)


def test_experts_of_an_odd_number_of_blocks_are_shared_unevenly() -> None:
    """As gpt-oss, 2,880 wide, on four ranks; with biases, which are cut as their rows are."""
    shape = {"architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}
    config = parse_config(Path("tiny/config.json"), TINY | shape | {"hidden_size": 64, "intermediate_size": 96})
    cpu = torch.device("cpu")

    def logits(group: Group) -> tuple[int, Tensor]:
        source = RandomSource(tied=False, spread=0.3, stored=float4)
        model = build_model(config, source, Kept(Dequantized(torch.float32, cpu)), device=cpu, group=group)
        return model.weight_bytes, ModelDriver(model).logits((Tracked(0, list(range(40))), 40))[0]

    alone, wanted = logits(ALONE)
    with ranks(2) as threads:
        (first, found), (second, same) = threads.each(logits)
    assert first < second < alone
    assert torch.equal(found, same)
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
