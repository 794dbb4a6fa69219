"""The gated feed-forward block: down(act(gate(x)) * up(x))."""

from __future__ import annotations

from torch import Tensor

from kernels import activation, few_rows, gated_linear, quantize_rows
from kernels.quantize_rows import QuantizedRows
from model_svc.layers.linear import Linear
from model_svc.layers.loader import USUAL_NAMES, ExpertNames, Loader

_ACTIVATIONS = {"silu": activation.SILU, "gelu_pytorch_tanh": activation.GELU_TANH, "gelu": activation.GELU}


def activation_named(name: str) -> int:
    """Return the activation of a config's name, as `kernels.activation` numbers it. Raises ValueError."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not supported; known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


class GatedMlp:
    """Gate and up are one product; `fused` names a checkpoint's own fused tensor (Phi-3's gate_up_proj)."""

    def __init__(
        self, loader: Loader, hidden: int, inner: int, act: str, *, bias: bool = False, fused: str | None = None,
        names: ExpertNames = USUAL_NAMES,
    ) -> None:  # fmt: skip
        first = (fused,) if fused else (names.gate, names.up)
        self._gate_up = loader.columns(first, (inner, inner), hidden, (loader.shard(inner),) * 2, bias=bias)
        self._act = activation_named(act)
        self._down = loader.rows(names.down, hidden, inner, bias=bias)

    @property
    def first(self) -> Linear:
        """The product that its input goes to."""
        return self._gate_up

    def rounds(self, x: Tensor) -> bool:
        """Whether one of its products rounds rows like `x`, which products of few rows do not."""
        return self._gate_up.rounds(x) is not None or self._down.rounds(x) is not None

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Return the block's output [T, E]."""
        gate, down = self._gate_up.packed, self._down.packed
        if gate and down and gate.gates and isinstance(x, Tensor):
            return down(gate.gated(x, self._act))
        return self._down(self._gated(x))

    @property
    def adds(self) -> bool:
        """Whether `add` computes this block."""
        return self._down.is_plain

    def add(self, x: Tensor, total: Tensor, multiplier: float) -> None:
        """Add the block's output, times `multiplier`, to `total` [T, E] in place: the last product does."""
        gated = self._gated(x)
        assert isinstance(gated, Tensor)
        self._down.add(gated, total, multiplier)

    def _gated(self, x: Tensor | QuantizedRows) -> Tensor | QuantizedRows:
        if self._gate_up.is_plain and isinstance(x, Tensor):
            return gated_linear.gated_linear(x, self._gate_up.plain_weight, self._act)
        both = self._gate_up(x)
        rounding = self._down.rounds(both)
        if rounding is not None:
            return quantize_rows.gated_rows(both, self._act, by_blocks=rounding.by_blocks)
        return activation.act_and_mul(both, self._act)

    @property
    def serves_few_rows(self) -> bool:
        """Whether `add_few_rows` computes this block."""
        gate_up, down = self._gate_up, self._down
        return gate_up.serves_few_rows and gate_up.bias is None and down.serves_few_rows

    ends_norm = True  # that the product before it has begun

    def add_few_rows(
        self, norm: few_rows.RmsNormWeights, begun: few_rows.HalfNormed | None, total: Tensor,
        then: few_rows.RmsNormWeights | None,
    ) -> few_rows.HalfNormed | None:  # fmt: skip
        """Add the block's output for norm(total) to `total` [T, E] in place.

        `norm` may be `begun`; so may `then`, the norm of the sum, which is returned.
        """
        return self.add_gated(self.gated_few_rows(norm, begun, total), total, then)

    def gated_few_rows(self, norm: few_rows.RmsNormWeights, begun: few_rows.HalfNormed | None, total: Tensor) -> Tensor:
        """Return what is inside the block [T, F] for norm(total)."""
        return few_rows.norm_gate(total, norm, self._gate_up.weight, self._act, begun)

    def add_gated(
        self, gated: Tensor, total: Tensor, then: few_rows.RmsNormWeights | None
    ) -> few_rows.HalfNormed | None:
        """Add the block's output for what `gated_few_rows` returned to `total` [T, E] in place, as above."""
        return self._down.add_few_rows(gated, total, then)
