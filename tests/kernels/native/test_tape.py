"""A replayed tape computes on new input what its calls would, and shares memory without harm."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.activation import SILU, silu_and_mul
from kernels.native import record
from kernels.native.library import set_threads
from kernels.native.tape import Arena, Tape
from kernels.quantized_linear import gated_rounded, quantized_linear
from kernels.rms_norm import add_rms_norm, rms_norm
from tests.kernels.native.blocks import random_weight

E, F = 64, 128


@pytest.fixture
def layer(isa: str) -> Callable[[Tensor], Tensor]:
    """A feed-forward block with its norms, and a torch operation in the middle."""
    up, down = random_weight("Q4_1", 2 * F, E)[0], random_weight("Q8_0", E, F)[0]
    norm = torch.rand(E)

    def run(x: Tensor) -> Tensor:
        residual = x * 1.0
        for _ in range(3):
            hidden = silu_and_mul(quantized_linear(rms_norm(residual, norm, 1e-5), [up]))
            x = quantized_linear(hidden, [down])
            x = x * 0.01
            x = x + quantized_linear(gated_rounded(x, up, SILU), [down])
            y = add_rms_norm(x, residual, norm, 1e-5)
        return y

    return run


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("T", [1, 9])
def test_a_replay_computes_what_the_calls_would_on_new_input(
    layer: Callable[[Tensor], Tensor], T: int, threads: int
) -> None:
    set_threads(threads)
    x = torch.randn(T, E)
    tape = Tape(Arena())
    with torch.inference_mode():
        with tape.recording():
            y = layer(x)
        for _ in range(3):
            x.copy_(torch.randn(T, E))
            want = layer(x.clone())
            tape.replay()
            assert torch.equal(y, want)
    set_threads(None)


def test_tapes_share_memory_without_harm(layer: Callable[[Tensor], Tensor]) -> None:
    arena, tapes = Arena(), []
    with torch.inference_mode():
        for T in (1, 4, 2):
            x = torch.randn(T, E)
            tape = Tape(arena)
            with tape.recording():
                result = arena.lend(layer(x))
            tapes.append((x, tape, result))
        for x, tape, result in [*tapes, *tapes]:
            tape.replay()
            assert torch.equal(result(), layer(x.clone()))


def test_a_value_read_on_the_host_forbids_a_tape(isa: str) -> None:
    x = torch.ones(3)
    with pytest.raises(record.UnrecordableError, match="host"), Tape(Arena()).recording():
        bool((x > 0).all())
    assert record.recorder is None


def test_results_that_nobody_holds_are_reused_only_behind_the_longest_chain() -> None:
    arena = Arena()
    first = arena.empty((4,), torch.float32)
    address = first.data_ptr()
    view = first[1:]
    del first
    arena.clock += 9
    held = arena.empty((4,), torch.float32)
    assert held.data_ptr() != address  # a view still holds it
    del view
    other = arena.empty((4,), torch.float32)
    assert other.data_ptr() != address
    arena.clock += 3
    assert arena.empty((4,), torch.float32).data_ptr() == address
