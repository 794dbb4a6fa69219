"""Models that keep keys and values in 8 bits: what they say, what it takes, who refuses, and whose scales count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels import dispatch
from kernels.float8_kv import DTYPE, KvScales
from model_svc.layers.attention import Attention
from model_svc.models.decoder import Decoder
from model_svc.models.load import load_model
from model_svc.quant import native
from model_svc.runner import precision
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.kv_transfer import KvTransfer, layout_of
from model_svc.runner.load import RunnerConfigError, load_runner, make_runner
from model_svc.runner.rare_draws import rare_draws
from tests.model_svc.paged import ModelDriver, RunnerDriver, Tracked, token_ids
from tests.model_svc.tiny import tiny_llama
from tests.model_svc.weights.gguf_files import tiny_llama as hf_llama
from tests.model_svc.weights.quantized_models import CASES, write_quantized
from wire.messages import SamplingParams

PROMPTS = [[5, 9, 14, 3, 60, 22, 41], [1], [7, 8, 9, 10, 11, 12, 13, 14, 15]]
LONG = [(7 * n) % 67 for n in range(40)]
WARM = SamplingParams(temperature=0.8)


def sequences() -> list[Tracked]:
    return [Tracked(slot, list(ids), sampling=WARM, seed=slot) for slot, ids in enumerate(PROMPTS)]


def logits(model: Decoder, dtype: torch.dtype = DTYPE) -> Tensor:
    with dispatch.on_cpu("reference"):
        return ModelDriver(model, dtype=dtype).logits((Tracked(0, list(LONG)), len(LONG)))[0]


def off(kept: Tensor, exact: Tensor) -> float:
    return float((kept - exact).norm() / exact.norm())


def test_logits_stay_near_those_of_a_whole_cache(tiny_model: Decoder) -> None:
    assert 0.001 < off(logits(tiny_model), logits(tiny_model, torch.float32)) < 0.15


def test_a_prompt_in_chunks_and_a_decode_see_what_a_whole_prompt_sees(tiny_model: Decoder) -> None:
    driver, seq = ModelDriver(tiny_model, dtype=DTYPE), Tracked(0, list(LONG))
    with dispatch.on_cpu("reference"):
        parts = [driver.logits((seq, count))[0] for count in (13, 26, 1)]
    torch.testing.assert_close(torch.cat(parts), logits(tiny_model), rtol=1e-4, atol=1e-4)


def test_all_runners_say_the_same_and_the_answer_s_other_half_is_not_disturbed(tiny_model: Decoder) -> None:
    drawn = []
    for packed in (False, True):
        runner = make_runner(
            tiny_model, kv_dtype=DTYPE, num_blocks=64, block_size=4, max_num_seqs=8, packed=packed
        )  # fmt: skip
        drawn.append(token_ids(RunnerDriver(runner).generate(sequences(), 8, chunk=5)))
        alone = RunnerDriver(runner).generate(sequences()[1:2], 8)
        assert token_ids(alone)[1] == drawn[-1][1]
        runner.close()
    assert drawn[0] == drawn[1]


def test_a_token_takes_a_byte_a_number_and_a_memory_holds_as_many_more(tiny_model: Decoder) -> None:
    whole, kept = (
        make_runner(tiny_model, kv_dtype=kv_dtype, kv_memory_bytes=20_480, block_size=4, max_num_seqs=8).info
        for kv_dtype in (None, DTYPE)
    )
    assert kept.kv_bytes_per_token == 2 * 2 * 2 * 16
    assert whole.kv_bytes_per_token == 4 * kept.kv_bytes_per_token
    assert kept.num_blocks == 4 * whole.num_blocks == 40


def test_draws_that_few_ask_for_are_tried_in_the_model_s_own_numbers(tiny_model: Decoder) -> None:
    runner = make_runner(tiny_model, kv_dtype=DTYPE, num_blocks=8, max_num_seqs=8, packed=True)
    for draw in runner._step.rare_draws():  # type: ignore[union-attr]
        draw()
    assert rare_draws(tiny_model, tiny_model.dtype)


def test_blocks_of_another_dtype_are_told_apart_and_their_own_move_byte_by_byte(tiny_model: Decoder) -> None:
    def cache(dtype: torch.dtype) -> KvCache:
        return KvCache(tiny_model.kv_shapes(), 6, 4, dtype, torch.device("cpu"))

    source, target = cache(DTYPE), cache(DTYPE)
    form = layout_of(source)
    assert (form.dtype, form.element_bytes) == ("float8_e4m3fn", 1)
    assert form.difference(layout_of(cache(torch.float32))) == "dtype"
    assert form.digest != layout_of(cache(torch.float32)).digest
    for layer in source.layers:
        for part in layer:
            part.view(torch.uint8).random_(0, 120)
    content = memoryview(bytearray(2 * form.block_bytes))
    KvTransfer(source).read([5, 2], content)
    KvTransfer(target).write([0, 3], content, [0, 1], 2)
    for ours, theirs in zip(source.layers, target.layers, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.view(torch.uint8)[[5, 2]], other.view(torch.uint8)[[0, 3]])


def test_who_cannot_keep_8_bits_says_so_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, card = torch.device("cpu"), torch.device("cuda")
    plain = precision.Precision(torch.float32)
    assert precision.kv_dtype_of("auto", plain, cpu) == torch.float32
    assert precision.kv_dtype_of("fp8", plain, cpu) == DTYPE
    fast = precision.Precision(torch.float32, native_kernels=True)
    assert precision.kv_dtype_of("auto", fast, cpu) == torch.float16
    with pytest.raises(RunnerConfigError, match="kv_dtype fp8 needs a GPU, or on a CPU dtype float32"):
        precision.kv_dtype_of("fp8", fast, cpu)
    with pytest.raises(RunnerConfigError, match="kv_dtype 'int4' is not supported; known are auto, fp8"):
        precision.kv_dtype_of("int4", plain, cpu)
    half = precision.Precision(torch.bfloat16)
    for capability, serves in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda _, found=capability: found)
        if serves:
            assert precision.kv_dtype_of("fp8", half, card) == DTYPE
        else:
            with pytest.raises(RunnerConfigError, match=r"kv_dtype fp8 needs a GPU of compute capability 8\.9"):
                precision.kv_dtype_of("fp8", half, card)


def attention(model: Decoder, layer: int) -> Attention:
    found = model._layers[layer]._attention  # type: ignore[attr-defined]
    assert isinstance(found, Attention)
    return found


@pytest.mark.parametrize(
    ("names", "case"),
    [
        (("k_scale", "v_scale"), "compressed_fp8_tensor"),
        (("k_proj.k_scale", "v_proj.v_scale"), None),
        (("k_proj.output_scale", "v_proj.output_scale"), "compressed_fp8_tensor"),
        (("kv_scale", "kv_scale"), "fp8_static"),
    ],
)
def test_scales_that_a_checkpoint_has_are_those_of_its_layer(
    tmp_path: Path, names: tuple[str, str], case: str | None
) -> None:
    model = hf_llama()
    if case is None:
        model.save_pretrained(tmp_path)
    else:
        with torch.no_grad():
            write_quantized(tmp_path, model, CASES[case])
    stored = load_file(tmp_path / "model.safetensors")
    for name, value in zip(names, (0.5, 0.5 if names[0] == names[1] else 0.125), strict=True):
        stored[f"model.layers.0.self_attn.{name}"] = torch.tensor(value)
    stored["model.layers.1.self_attn.k_scale"] = torch.tensor([0.25, 0.75])  # one a head
    stored["model.layers.1.self_attn.v_scale"] = torch.tensor([-1.0])  # nobody has measured it
    save_file(stored, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
    assert attention(loaded, 0)._scales == KvScales(0.5, 0.5 if names[0] == names[1] else 0.125)
    assert attention(loaded, 1)._scales == KvScales(0.75, 1.0)


def test_a_scale_is_what_codes_are_multiplied_with() -> None:
    model = tiny_llama()
    exact = logits(model, torch.float32)

    def kept(k: float, v: float) -> Tensor:
        for layer in range(2):
            attention(model, layer)._scales = KvScales(k, v)
        return logits(model)

    assert off(kept(2.0**-6, 2.0**-5), exact) < 0.15
    assert torch.equal(logits(model, torch.float32), exact)
    assert off(kept(1e-4, 1e-4), exact) > 0.3  # too small: keys and values end at 448 times it


def test_the_setting_reaches_the_runner(tmp_path: Path) -> None:
    hf_llama().save_pretrained(tmp_path)
    options = {"num_blocks": 8, "max_num_seqs": 2, "threads": 1}
    runner = load_runner(tmp_path, kv_dtype="fp8", **options)  # type: ignore[arg-type]
    assert runner.info.kv is not None
    assert runner.info.kv.dtype == "float8_e4m3fn"
    if native.usable():
        with pytest.raises(RunnerConfigError, match="kv_dtype fp8"):
            load_runner(tmp_path, dtype="auto", kv_dtype="fp8", **options)  # type: ignore[arg-type]
