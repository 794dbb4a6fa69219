"""Mixtures of experts in all forms: whole models in the native one, on tapes too, and the block in Triton's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import dispatch
from kernels.activation import CLAMPED, GELU
from kernels.native.library import built
from model_svc.layers.experts import Experts, ExpertsConfig
from model_svc.layers.loader import Loader
from model_svc.layers.norm import RmsNorm
from model_svc.models.config import parse_config
from model_svc.models.decoder import Decoder
from model_svc.models.load import build_model
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.method import QuantMethod
from model_svc.quant.native import Native, PackedExperts
from model_svc.runner.cpu_runner import CpuRunner
from model_svc.runner.load import make_runner
from model_svc.weights.errors import CheckpointError
from model_svc.weights.random import RandomSource, four_bits
from tests.model_svc.paged import ModelDriver, RunnerDriver, Tracked
from tests.model_svc.tiny import EXPERTS, TINY

CPU = torch.device("cpu")
WIDE = TINY | EXPERTS | {"hidden_size": 128, "moe_intermediate_size": 128, "head_dim": 32}
BIASED = WIDE | {"architectures": ["GptOssForCausalLM"], "intermediate_size": 128, "sliding_window": 4}
needs_native = pytest.mark.skipif(not built(), reason="native kernels are not built")


def model_of(method: QuantMethod, config: dict[str, Any] = WIDE) -> Decoder:
    """Build a model of 4 bit weights."""
    source = RandomSource(tied=False, spread=0.1, stored=four_bits)
    return build_model(parse_config(Path("tiny/config.json"), config), source, method, device=CPU)


@needs_native
@pytest.mark.parametrize("config", [WIDE, BIASED], ids=["plain", "biased"])
def test_experts_stay_packed_and_mean_what_their_numbers_mean(config: dict[str, Any]) -> None:
    packed, dense = model_of(Native(), config), model_of(Dequantized(torch.float32, CPU), config)
    assert packed.weight_bytes < 0.35 * dense.weight_bytes
    ids = [3, 60, 14, 22, 41, 5, 9, 30]
    found, wanted = (ModelDriver(each).logits((Tracked(0, list(ids)), len(ids)))[0] for each in (packed, dense))
    error = (found - wanted).pow(2).mean(1).sqrt() / wanted.std()
    assert float(error.median()) < 0.08  # as of other models; where a choice was close, a token takes another expert


@needs_native
@pytest.mark.parametrize("config", [WIDE, BIASED], ids=["plain", "biased"])
def test_a_sequence_has_its_bits_whatever_stands_beside_it_and_steps_are_taped(config: dict[str, Any]) -> None:
    model = model_of(Native(), config)
    prompts = [[3, 60, 14], [22, 41, 5, 9, 30, 8, 8], [1], [50, 51, 52, 53, 54]]

    def answers(*chosen: int) -> list[list[int]]:
        runner = make_runner(model, num_blocks=64, block_size=4, max_num_seqs=8, native_kernels=True)
        assert isinstance(runner, CpuRunner)
        sequences = [Tracked(n, list(prompts[n])) for n in chosen]
        drawn = RunnerDriver(runner).generate(sequences, 12, chunk=4)
        assert any(tape is not None for tape in runner._tapes.values())
        return [[token.token_id for token in drawn[n]] for n in chosen]

    together = answers(0, 1, 2, 3)
    assert together == [answers(n)[0] for n in range(4)]
    assert len({tuple(ids) for ids in together}) == 4


@pytest.mark.parametrize(("num_tokens", "act", "bias"), [(1, GELU, False), (9, CLAMPED, True), (40, GELU, True)])
def test_the_block_means_the_same_in_every_form(num_tokens: int, act: int, bias: bool) -> None:
    config = ExpertsConfig(48, 40, num_experts=6, num_chosen=3, renormalise=False, act=act, bias=bias)
    loader = Loader(RandomSource(tied=False, spread=0.3), Dequantized(torch.float32, CPU))
    block, x = Experts(loader, config), torch.randn(num_tokens, 48)
    found = []
    for form in ("reference", "native", "triton"):
        if form != "native" or built():
            with dispatch.forced(form):
                found.append(block(x))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("num_tokens", "bias"), [(1, True), (9, False), (17, True)])
def test_few_rows_are_added_what_the_block_makes_of_their_norm(num_tokens: int, bias: bool) -> None:
    loader = Loader(RandomSource(tied=False, spread=0.3), Dequantized(torch.float32, CPU))
    block = Experts(loader, ExpertsConfig(48, 40, num_experts=6, num_chosen=3, bias=bias))
    norm, total = RmsNorm(loader, "norm", 48, 1e-5), torch.randn(num_tokens, 48)
    wanted = total + block(norm(total))
    with dispatch.forced("triton"):
        begun = block.add_few_rows(norm.weights, None, total, norm.weights)
    torch.testing.assert_close(total, wanted, rtol=1e-4, atol=1e-4)
    assert (begun is not None) == (num_tokens > 1)


@needs_native
@pytest.mark.parametrize(("inner", "packs"), [(128, True), (48, False)])
def test_experts_are_packed_if_they_begin_at_tiles(inner: int, packs: bool) -> None:
    def stored(values: torch.Tensor) -> Any:
        return four_bits(values) if values.shape[1] % 128 == 0 else values

    source = RandomSource(tied=False, stored=stored)
    place = Loader(source, Native(), "model.layers.0.mlp.")
    config = ExpertsConfig(128, inner, num_experts=4, num_chosen=2, renormalise=True)
    assert isinstance(Experts(place, config)._blocks, PackedExperts) is packs


def test_more_choices_than_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="5 of 4 experts"):
        Experts(Loader(RandomSource(tied=False), Dequantized(torch.float32, CPU)), ExpertsConfig(8, 8, 4, 5, True))


@pytest.mark.parametrize("name", ["swiglu_limit", "swiglu_alpha"])
def test_a_gate_with_other_numbers_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name} 3.0 is not supported"):
        model_of(Dequantized(torch.float32, CPU), BIASED | {name: 3.0})
