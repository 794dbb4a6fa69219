"""llama.cpp itself as the oracle of mmproj files: it reads ours, and makes of a picture what the checkpoint does."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.headrace.gguf_seeing import mmproj_of, texts_of
from tests.headrace.test_pull_seeing import OF_TEXTS, SAYS
from tests.model_svc.vision.seeing import save
from tests.model_svc.vision.test_parity import loaded

llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is built from source, and there is no C++ compiler here")
mtmd = pytest.importorskip("llama_cpp.mtmd_cpp")
IMAGE = 1  # a kind of chunk


def features(texts: Path, mmproj: Path, pixels: np.ndarray) -> np.ndarray:
    """Return what llama.cpp puts in the places of a picture's tokens, [T, E]; rows end with an embedding."""
    height, width, _ = pixels.shape
    model = llama_cpp.llama_model_load_from_file(str(texts).encode(), llama_cpp.llama_model_default_params())
    options = mtmd.mtmd_context_params_default()
    options.use_gpu, options.n_threads, options.warmup, options.print_timings = False, 1, False, False
    context = mtmd.mtmd_init_from_file(str(mmproj).encode(), model, options)
    colours = (ctypes.c_uint8 * pixels.size).from_buffer_copy(pixels.tobytes())
    bitmap, chunks = mtmd.mtmd_bitmap_init(width, height, colours), mtmd.mtmd_input_chunks_init()
    try:
        text = mtmd.mtmd_get_marker(context)
        prompt = mtmd.mtmd_input_text(text=text, text_len=len(text), add_special=False, parse_special=True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        assert mtmd.mtmd_tokenize(context, chunks, ctypes.byref(prompt), bitmaps, 1) == 0
        several = [mtmd.mtmd_input_chunks_get(chunks, n) for n in range(mtmd.mtmd_input_chunks_size(chunks))]
        (chunk,) = (each for each in several if mtmd.mtmd_input_chunk_get_type(each) == IMAGE)
        assert mtmd.mtmd_encode_chunk(context, chunk) == 0
        shape = mtmd.mtmd_input_chunk_get_n_tokens(chunk), llama_cpp.llama_model_n_embd(model)
        numbers = ctypes.cast(mtmd.mtmd_get_output_embd(context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(numbers, shape).copy()
    finally:
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(bitmap)
        mtmd.mtmd_free(context)
        llama_cpp.llama_model_free(model)


@pytest.mark.parametrize(("family", "size", "columns"), [("Gemma3", (12, 12), 0), ("Mistral3", (12, 16), 4)])
def test_llama_cpp_reads_the_files_of_these_tests_and_sees_the_same(
    tmp_path: Path, family: str, size: tuple[int, int], columns: int
) -> None:
    seeing = save(tmp_path / "checkpoint", family)
    says: dict[str, Any] = OF_TEXTS.get(family, {})
    texts = texts_of(seeing, tmp_path / "tiny.gguf", family, says)
    pixels = np.random.default_rng(5).integers(0, 256, (*size, 3), dtype=np.uint8)
    found = features(texts, mmproj_of(seeing, tmp_path / "mmproj.gguf", family, **SAYS[family]), pixels)
    if columns:
        found = found[[n for n in range(len(found)) if (n + 1) % (columns + 1)]]
    vision = loaded(seeing.directory).vision
    assert vision is not None
    with torch.inference_mode():
        wanted = vision(torch.from_numpy(pixels)[None])
    assert wanted.std() > 1
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=0.1)
