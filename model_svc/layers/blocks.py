"""How attention, feed-forward and norms are wired in one decoder layer: the four forms that exist.

A layer takes what the last one left (`x`, not yet added) and the running sum (`residual`) and returns both, so that
each addition fuses with the norm after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from kernels import dispatch, few_rows
from kernels.quantize_rows import QuantizedRows
from model_svc.layers.attention import Attention
from model_svc.layers.experts import Experts, ExpertsBesideShared
from model_svc.layers.mixer import Mixer
from model_svc.layers.mlp import GatedMlp
from model_svc.layers.norm import Norm, RmsNorm
from model_svc.layers.step import LayerKv, StepBatch

Mlp = Callable[[Tensor | QuantizedRows], Tensor]
FewRowsMlp = GatedMlp | Experts | ExpertsBesideShared  # they have `add_few_rows`
Stream = tuple[Tensor, Tensor | None]


class Layer(Protocol):
    """One decoder layer."""

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepBatch, kv: LayerKv) -> Stream:
        """Return what this layer adds, and the sum before it."""
        ...


def add_norm(norm: Norm, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """Add `x` to the running sum and norm it; returns (normed, sum). The first layer has no sum yet."""
    if residual is None:
        return norm(x), x
    return norm.add(x, residual), residual


def _add_norm_for(
    part: Mixer | Mlp, norm: Norm, x: Tensor, residual: Tensor | None
) -> tuple[Tensor | QuantizedRows, Tensor]:
    """The same for a part of a layer, which may want the normed rows in float8."""
    first = part.first if isinstance(part, Mixer | GatedMlp) else None
    weight = first.rounds(x) if first is not None else None
    if weight is None or not isinstance(norm, RmsNorm):
        return add_norm(norm, x, residual)
    return norm.quantized(x, residual, weight), x if residual is None else residual


class FewRows:
    """A pre-norm layer for steps of few tokens: norms, additions and gate are parts of the products.

    A product that makes what a norm is next of begins that norm; so a layer begins the first norm of the `following`.
    """

    following: FewRows | None = None

    def __init__(self, norm: RmsNorm, attention: Attention, mlp_norm: RmsNorm, mlp: FewRowsMlp) -> None:
        self._norm, self._attention, self._mlp_norm, self._mlp = norm.weights, attention, mlp_norm.weights, mlp
        self._begun: few_rows.HalfNormed | None = None  # by the layer before, in this same step

    @classmethod
    def of(cls, norm: Norm, attention: Mixer, mlp_norm: Norm, mlp: Mlp) -> FewRows | None:
        """Return the fused form of a layer with these parts, None if a part is of another kind."""
        if not (isinstance(norm, RmsNorm) and isinstance(mlp_norm, RmsNorm) and isinstance(mlp, FewRowsMlp)):
            return None
        if not isinstance(attention, Attention):
            return None
        return cls(norm, attention, mlp_norm, mlp) if attention.serves_few_rows and mlp.serves_few_rows else None

    def fits(self, x: Tensor, step: StepBatch) -> bool:
        """Tell whether it computes the layer for rows like `x`.

        Adapters add behind products that it has no end of, pictures behind layers whose sum it has begun to norm.
        """
        if step.adapters is not None or step.deep is not None:
            return False
        return few_rows.fits(x, x.shape[0]) and not self._attention.rounds(x) and not self._mlp.rounds(x)

    def __call__(self, total: Tensor, step: StepBatch, kv: LayerKv) -> Tensor:
        """Add both parts to `total` in place and return it."""
        begun, self._begun = self._begun, None
        ended = self._mlp_norm if self._mlp.ends_norm else None
        begun = self._attention.add_few_rows(self._norm, begun, total, step, kv, ended)
        if self.following is None:
            self._mlp.add_few_rows(self._mlp_norm, begun, total, None)
        else:
            self.following._begun = self._mlp.add_few_rows(self._mlp_norm, begun, total, self.following._norm)
        return total


class PreNorm:
    """x + attn(norm x), then x + mlp(norm x): Llama and most others. `multiplier` scales what is added (Granite).

    Steps of few tokens take fused kernels where all parts are of the plain kind; with more rows on a GPU, the
    products o and down end in the addition, so that a norm need not read two tensors and write one more.
    """

    def __init__(self, norm: Norm, attention: Mixer, mlp_norm: Norm, mlp: Mlp, multiplier: float = 1.0) -> None:
        self._norm, self._attention, self._mlp_norm, self._mlp = norm, attention, mlp_norm, mlp
        self._multiplier = multiplier
        self._fused = FewRows.of(norm, attention, mlp_norm, mlp) if multiplier == 1.0 else None
        self._adding = mlp if isinstance(mlp, GatedMlp) and mlp.adds and attention.adds else None

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepBatch, kv: LayerKv) -> Stream:
        """Return what this layer adds, and the sum before it."""
        if self._fused is not None and self._fused.fits(x, step):
            return self._fused(x if residual is None else residual.add_(x), step, kv), None
        several = (
            x.shape[0] > 1 and dispatch.form(x) == "triton" and not dispatch.fixed()
        )  # one has a kernel of its own
        if self._adding is not None and several:
            total = x if residual is None else residual.add_(x)
            self._attention.add(self._norm(total), total, step, kv, self._multiplier)
            self._adding.add(self._mlp_norm(total), total, self._multiplier)
            return total, None
        normed, residual = _add_norm_for(self._attention, self._norm, x, residual)
        attended = self._scaled(self._attention(normed, step, kv))
        normed, residual = _add_norm_for(self._mlp, self._mlp_norm, attended, residual)
        return self._scaled(self._mlp(normed)), residual

    def precede(self, following: Layer) -> None:
        """Know the layer after this one."""
        if self._fused is not None and isinstance(following, PreNorm):
            self._fused.following = following._fused

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self._multiplier == 1.0 else x * self._multiplier


class Sandwich:
    """Norms before and after both parts: x + norm(attn(norm x)), then x + norm(mlp(norm x)): Gemma 2 and 3."""

    def __init__(
        self, norm: Norm, attention: Attention, after: Norm, mlp_norm: Norm, mlp: Mlp, mlp_after: Norm
    ) -> None:
        self._norm, self._attention, self._after = norm, attention, after
        self._mlp_norm, self._mlp, self._mlp_after = mlp_norm, mlp, mlp_after

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepBatch, kv: LayerKv) -> Stream:
        """Return what this layer adds, and the sum before it."""
        normed, residual = add_norm(self._norm, x, residual)
        normed = self._mlp_norm.add(self._after(self._attention(normed, step, kv)), residual)
        return self._mlp_after(self._mlp(normed)), residual


class PostNorm:
    """x + norm(attn(x)), then x + norm(mlp(x)): OLMo 2."""

    def __init__(self, attention: Attention, after: Norm, mlp: Mlp, mlp_after: Norm) -> None:
        self._attention, self._after, self._mlp, self._mlp_after = attention, after, mlp, mlp_after

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepBatch, kv: LayerKv) -> Stream:
        """Return what this layer adds, and the sum before it."""
        total = x if residual is None else residual.add_(x)
        total = total + self._after(self._attention(total, step, kv))
        return self._mlp_after(self._mlp(total)), total


class Parallel:
    """x + attn(norm x) + mlp(norm x), one norm for both: Cohere."""

    def __init__(self, norm: Norm, attention: Attention, mlp: Mlp) -> None:
        self._norm, self._attention, self._mlp = norm, attention, mlp

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepBatch, kv: LayerKv) -> Stream:
        """Return what this layer adds, and the sum before it."""
        normed, residual = add_norm(self._norm, x, residual)
        return self._attention(normed, step, kv) + self._mlp(normed), residual
