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
from kernels import rms_norm
from kernels.compile_ahead import compile_ahead, note_for, write_note
from triton.runtime.jit import JITFunction

launch = JITFunction.run
with compile_ahead(2):
    for width in (64, 256):
        out = torch.full((3, width), 7.0)
        rms_norm._launch(torch.zeros(3, width), None, torch.ones(width), out, 1e-5, 0.0)
        assert (out == 7).all()
assert JITFunction.run is launch
note = note_for("model", 1)
assert not note.exists() and note != note_for("model", 2)
write_note(note)
assert note_for("model", 1).exists()
print([len(kernels[0]) for kernels in rms_norm._rms_norm_kernel.device_caches.values()])
"""


def test_kernels_are_compiled_and_not_launched(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.stdout.strip() == "[2]", found.stderr
    assert list(tmp_path.glob("*/*.cubin"))


def test_nothing_is_noted_where_triton_interprets() -> None:
    assert note_for("model") is None
    write_note(None)
