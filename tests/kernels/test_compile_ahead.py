"""Compiled for a card that is not there, in a process of its own: in this one Triton interprets."""

import os
import subprocess
import sys
from pathlib import Path

from kernels.compile_ahead import note_for, write_note

_SCRIPT = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

class Hopper:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_active_torch_device(self): return torch.device("cpu")
    def get_device_interface(self): return torch.cuda

driver.set_active(Hopper())
from kernels import causal_conv, dispatch, gated_delta, gated_delta_prompts, rms_norm
from kernels.compile_ahead import compile_ahead, note_for, write_note
from kernels.fading import Fading
from triton.runtime.jit import JITFunction

def prompt(n):  # what the interpreter takes, the compiler may not: a name of two types, for one
    x, heads = torch.zeros(n, 16, dtype=torch.bfloat16), torch.zeros(n, 1, 16, dtype=torch.bfloat16)
    each, one = torch.zeros(n, 1, dtype=torch.bfloat16), torch.zeros(1)
    slots, begins, lengths = (torch.zeros(size, dtype=torch.int32) for size in (1, 2, 1))
    with dispatch.forced("triton"):
        weight, windows = x[:16, :4].contiguous(), torch.zeros(2, 3, 16)
        causal_conv.causal_conv(x, weight, windows, slots, begins, lengths, max_query_len=n)
        gated_delta.gated_delta(
            heads, heads, heads, Fading(each, each, one, one), torch.zeros(2, 1, 16, 16), slots, begins, lengths,
            max_query_len=n,
        )

launch = JITFunction.run
with compile_ahead(2):
    for width in (64, 256):
        out = torch.full((3, width), 7.0)
        rms_norm._launch(torch.zeros(3, width), None, torch.ones(width), out, 1e-5, 0.0)
        assert (out == 7).all()
    prompt(40)
assert JITFunction.run is launch
note = note_for("model", 1)
assert not note.exists() and note != note_for("model", 2)
write_note(note)
assert note_for("model", 1).exists()
kernels = [
    rms_norm._rms_norm_kernel, causal_conv._prompt_conv_kernel, gated_delta._gated_delta_kernel,
    gated_delta_prompts._delta_chunks_kernel, gated_delta_prompts._delta_walk_kernel,
]
print([len(made[0]) for kernel in kernels for made in kernel.device_caches.values()])
"""


def test_kernels_are_compiled_and_not_launched(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "[2, 1, 1, 1, 1]", found.stderr
    assert list(tmp_path.glob("*/*.cubin"))


def test_nothing_is_noted_where_triton_interprets() -> None:
    assert note_for("model") is None
    write_note(None)
