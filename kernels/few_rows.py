"""The products of a decode step with few rows, fused with what stands before and after them in a layer.

With few rows a product is a stream of weights, and what costs beside it are starts: of kernels, of CTAs, of memory's
pipeline. So norms, rotation, store, gate and residual addition go into the products (5 kernels a layer, where plain ops
take 10), and with programmatic dependent launch the next kernel starts while this one runs and fetches its first
weights before it waits for this one's result. One row reads whole rows of weights (`one_row.py`), 2 to 64 rows use the
tensor cores (`several_rows.py`). Each sum has a fixed order, those too that several programs share: the last to arrive
adds the parts.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels import activation, dispatch, one_row, one_wide_row, rms_norm, rope, several_rows
from kernels.few_rows_product import ADD, GATE, MAX_ROWS, PLAIN, QKV, HalfNormed, Product, RmsNormWeights, Rotation
from kernels.float8_weight import Float8Weight

__all__ = [
    "MAX_ROWS", "HalfNormed", "RmsNormWeights", "Rotation", "fits", "linear_add", "linear_into", "norm_gate",
    "norm_linear", "norm_qkv", "reference_qkv", "suits",
]  # fmt: skip

Weight = Tensor | Float8Weight


def suits(weight: Weight) -> bool:
    """Tell whether a weight has a shape that these ops multiply with."""
    if isinstance(weight, Float8Weight):
        return weight.shape[0] % (256 if weight.by_blocks else 16) == 0 and weight.shape[1] % 16 == 0
    return weight.is_contiguous() and weight.shape[0] % 16 == 0 and weight.shape[1] % 16 == 0


def fits(x: Tensor, num_rows: int) -> bool:
    """Tell whether these ops serve `num_rows` rows like `x`: bf16 on a GPU with dependent launches."""
    on_gpu = x.is_cuda and x.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x.device)[0] >= 9
    return 0 < num_rows <= MAX_ROWS and on_gpu and dispatch.form(x) == "triton" and not dispatch.fixed()


def norm_qkv(
    x: Tensor, norm: RmsNormWeights, weight: Weight, head_dim: int, turn: Rotation, arrived: Tensor | None = None,
    begun: HalfNormed | None = None,
) -> Tensor:  # fmt: skip
    """Return norm(x) W^T [T, (H + 2K) D] with queries and keys rotated; keys and values go to the caches as well.

    `arrived` as in `linear_add`; `begun` is what that returned when it made this x with this norm.
    """
    _check(x, weight, arrived)
    if dispatch.form(x) == "triton":
        out = x.new_empty(x.shape[0], weight.shape[0])
        _launch(Product(x, weight, out, QKV.value, norm, begun, head_dim, turn, arrived=arrived))
        return out
    return reference_qkv(x, norm, weight, head_dim, turn)


def norm_linear(
    x: Tensor, norm: RmsNormWeights, weight: Weight, bias: Tensor | None = None, arrived: Tensor | None = None,
    begun: HalfNormed | None = None,
) -> Tensor:  # fmt: skip
    """Return norm(x) W^T + bias [T, F]; `arrived` and `begun` as above."""
    _check(x, weight, arrived, bias)
    if dispatch.form(x) == "triton":
        out = x.new_empty(x.shape[0], weight.shape[0])
        _launch(Product(x, weight, out, PLAIN.value, norm, begun, arrived=arrived, bias=bias))
        return out
    return _linear(_normed(x, norm), weight, bias)


def norm_gate(
    x: Tensor, norm: RmsNormWeights, weight: Weight, act: int, begun: HalfNormed | None = None
) -> Tensor:  # fmt: skip
    """Return act(g) * u [T, F] for (g, u) = norm(x) W^T, `weight` [2F, E] with the gates first.

    `act` is one of `activation`'s; `begun` as above.
    """
    _check(x, weight)
    if dispatch.form(x) == "triton":
        out = x.new_empty(x.shape[0], weight.shape[0] // 2)
        _launch(Product(x, weight, out, GATE.value, norm, begun, act=act))
        return out
    return activation.reference(_linear(_normed(x, norm), weight), act)


def linear_add(
    x: Tensor, weight: Weight, residual: Tensor, arrived: Tensor | None = None, then: RmsNormWeights | None = None,
    bias: Tensor | None = None,
) -> HalfNormed | None:  # fmt: skip
    """Add x W^T + bias to `residual` [T, F] in place; with `then`, the norm after it, begin that if it saves a kernel.

    With `arrived`, F / 16 int32 that are zero before and after, the sum over E may be split between programs; the last
    one to arrive adds the parts up, always in the same order.
    """
    _check(x, weight, arrived, bias)
    if residual.shape != (x.shape[0], weight.shape[0]) or not residual.is_contiguous():
        raise ValueError(f"residual has shape {tuple(residual.shape)}; it must be contiguous [T, F]")
    if dispatch.form(x) == "triton":
        return _launch(Product(x, weight, residual, ADD.value, arrived=arrived, then=then, bias=bias))
    residual.add_(_linear(x, weight, bias))
    return None


def linear_into(x: Tensor, weight: Weight, out: Tensor) -> None:
    """Write x W^T to `out` [T, F], float32 or x's dtype (the head, whose logits are not rounded)."""
    _check(x, weight)
    if dispatch.form(x) == "triton":
        _launch(Product(x, weight, out, PLAIN.value))
    else:
        out.copy_(_linear(x, weight))


def reference_qkv(x: Tensor, norm: RmsNormWeights, weight: Weight, head_dim: int, turn: Rotation) -> Tensor:
    """Norm, project, rotate and store in plain torch."""
    out = _linear(_normed(x, norm), weight)
    heads = out.view(x.shape[0], -1, head_dim)
    K = turn.k_cache.shape[2]
    H = heads.shape[1] - 2 * K
    q, k, v = heads[:, :H], heads[:, H : H + K], heads[:, H + K :]
    rope.rope_store_kv(
        q, k, v, turn.cos, turn.sin, turn.positions, turn.k_cache, turn.v_cache, turn.slot_mapping, turn.scales
    )  # fmt: skip
    rope.reference(q[:, :0], k, turn.cos, turn.sin, turn.positions)
    return out


def _normed(x: Tensor, norm: RmsNormWeights) -> Tensor:
    return rms_norm.reference(x, norm.weight, norm.eps, offset=norm.offset)


def _linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x, weight.reference(x.dtype) if isinstance(weight, Float8Weight) else weight, bias)


def _check(x: Tensor, weight: Weight, arrived: Tensor | None = None, bias: Tensor | None = None) -> None:
    if x.dim() != 2 or len(weight.shape) != 2 or weight.shape[1] != x.shape[1] or not _dense(weight):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x {tuple(x.shape)} needs contiguous [F, E]")
    if not x.is_contiguous() or not 0 < x.shape[0] <= MAX_ROWS:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be contiguous with 1 to {MAX_ROWS} rows")
    if not suits(weight):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; its sizes must be multiples of 16")
    if arrived is not None and (arrived.dtype != torch.int32 or arrived.numel() < weight.shape[0] // 16):
        raise ValueError(f"arrived has {arrived.numel()} elements; it must be int32 with {weight.shape[0] // 16}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")


def _dense(weight: Weight) -> bool:
    return isinstance(weight, Float8Weight) or weight.is_contiguous()


def _launch(product: Product) -> HalfNormed | None:
    if product.x.shape[0] > 1:
        return several_rows.launch(product)
    (one_wide_row if one_wide_row.takes(product) else one_row).launch(product)
    return None
