"""Ends a step on the device: the drawn tokens become the next step's input, and each row says whether it was sound.

A row is sound if its hidden state and the logit of its token are finite: whatever goes wrong in a layer reaches the
hidden state, and an infinite logit is the one that is drawn. Looking at all logits would read them once more.
"""

# mypy: disable-error-code="no-untyped-def"
import torch
from torch import Tensor

from kernels import dependent, dispatch
from kernels.dependent import follow
from kernels.language import jit_alike, next_power_of_2, tl


def token_feedback(
    tokens: Tensor, logits: Tensor, hidden: Tensor, slots: Tensor, counters: Tensor, state: Tensor, out: Tensor,
    line: Tensor,
) -> None:  # fmt: skip
    """Write `tokens` int64 [S] to column 0 of `state` [slots, W] int32 and to a line of `out`; -1 there: not sound.

    `logits` [S, V], `hidden` [S, E], `slots` int32 [S] (-1: a row of nobody's, which is written nowhere), `counters`
    int64 [S] (-1: a row that does not sample keeps its state). `out` int32 [L, at least S] may be the host's, if it is
    pinned; which of its lines is meant says `line` int32 [1].
    """
    S = tokens.shape[0]
    for name, tensor in (("logits", logits), ("hidden", hidden), ("slots", slots), ("counters", counters)):
        if tensor.shape[0] != S:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must have {S} rows")
    if out.dim() != 2 or out.shape[1] < S or out.stride(1) != 1:
        raise ValueError(f"out has shape {tuple(out.shape)}; it must be dense lines of at least {S}")
    if dispatch.form(logits) == "triton":
        if S:
            _token_feedback_kernel[(S,)](
                tokens, logits, logits.stride(0), hidden, hidden.stride(0), hidden.shape[1], slots, counters, state,
                state.stride(0), out, out.stride(0), line,
                BLOCK=min(4096, next_power_of_2(hidden.shape[1])), num_warps=4, **dependent.launch(logits),
            )  # fmt: skip
        return
    reference(tokens, logits, hidden, slots, counters, state, out, line)


def reference(
    tokens: Tensor, logits: Tensor, hidden: Tensor, slots: Tensor, counters: Tensor, state: Tensor, out: Tensor,
    line: Tensor,
) -> None:  # fmt: skip
    """Feed back with plain torch."""
    sound = torch.isfinite(hidden).all(-1) & torch.isfinite(logits.gather(1, tokens[:, None])[:, 0])
    rows = (slots >= 0).nonzero()[:, 0]
    out[int(line), rows.to(out.device)] = torch.where(sound, tokens, -1)[rows].to(out)
    rows = ((slots >= 0) & (counters >= 0)).nonzero()[:, 0]
    state[slots[rows].long(), 0] = tokens[rows].int()


@jit_alike("slots_ptr", "line_ptr")
def _token_feedback_kernel(
    tokens_ptr, logits_ptr, logits_stride, hidden_ptr, hidden_stride, E, slots_ptr, counters_ptr, state_ptr,
    state_stride, out_ptr, out_stride, line_ptr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens_ptr + row)
    bad = tl.zeros([BLOCK], tl.int32)
    for base in range(0, E, BLOCK):
        column = base + tl.arange(0, BLOCK)
        x = tl.load(hidden_ptr + row * hidden_stride + column, mask=column < E, other=0.0).to(tl.float32)
        bad += (x - x != 0).to(tl.int32)
    x = tl.load(logits_ptr + row * logits_stride + token).to(tl.float32)
    sound = (tl.sum(bad, 0) == 0) & (x - x == 0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    to = out_ptr + tl.load(line_ptr).to(tl.int64) * out_stride + row
    tl.store(to, tl.where(sound, token, -1).to(tl.int32), mask=slot >= 0)
    live = (slot >= 0) & (tl.load(counters_ptr + row) >= 0)
    tl.store(state_ptr + slot * state_stride, token.to(tl.int32), mask=live)
