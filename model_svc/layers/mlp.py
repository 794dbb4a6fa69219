"""The gated feed-forward block: down(act(gate(x)) * up(x))."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels import activation
from model_svc.layers.loader import Loader

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": activation.silu_and_mul,
    "gelu_pytorch_tanh": activation.gelu_and_mul,
    "gelu": lambda x: activation.gelu_and_mul(x, tanh=False),
}


class GatedMlp:
    """Gate and up are one product; `fused` names a checkpoint's own fused tensor (Phi-3's gate_up_proj)."""

    def __init__(
        self, loader: Loader, hidden: int, inner: int, act: str, *, bias: bool = False, fused: str | None = None
    ) -> None:
        if act not in _ACTIVATIONS:
            raise ValueError(f"activation {act!r} is not supported; known are {', '.join(_ACTIVATIONS)}")
        names, outs = ((fused,), (2 * inner,)) if fused else (("gate_proj", "up_proj"), (inner, inner))
        self._gate_up = loader.columns(names, outs, hidden, bias=bias)
        self._act = _ACTIVATIONS[act]
        self._down = loader.rows("down_proj", hidden, inner, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's output [T, E]."""
        return self._down(self._act(self._gate_up(x)))
