"""Everything that changes logits before a draw, in one pass: penalties, logit bias, then what is not allowed at all.

Order for each token: repetition penalty (divide a positive logit, multiply a negative one, for tokens of prompt or
output), frequency and presence penalty (output only), bias; then the masks, which nothing can undo: stop ids below
min_tokens, the grammar's bit mask, and last of all a forced token. State that grows with the vocabulary lies in tables
on the device; a row names its line there or -1, so rows that ask for nothing cost nothing.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import cdiv, jit, jit_alike, tl


@dataclass(frozen=True)
class Penalties:
    """What to do to each row of a step's logits; every field but the first may be left out.

    Tables of state, one line per sequence that needs it: `prompt_mask` int32 [R, ceil(V/32)], bit i of word j saying
    that token 32j + i stands in the prompt; `output_counts` int16 or int32 [R, V]; `allowed` int32 [A, ceil(V/32)], a
    grammar's allowed tokens in the same packing. Per row: `state` and `grammar` int32 [S], the line in those tables or
    -1; `repetition` (neutral 1), `frequency`, `presence` (neutral 0) float32 [S]; `bias_ids` int32 [S, L] (-1 is empty,
    an id at most once a row) and `bias` float32 [S, L]; `stop_ids` int32 [S, W] (-1 is empty), forbidden where
    `hold_stops` int32 [S] is not 0; `forced` int32 [S], the only token a row may give, or -1.
    """

    state: Tensor | None = None
    prompt_mask: Tensor | None = None
    output_counts: Tensor | None = None
    repetition: Tensor | None = None
    frequency: Tensor | None = None
    presence: Tensor | None = None
    bias_ids: Tensor | None = None
    bias: Tensor | None = None
    stop_ids: Tensor | None = None
    hold_stops: Tensor | None = None
    grammar: Tensor | None = None
    allowed: Tensor | None = None
    forced: Tensor | None = None


def apply_penalties(logits: Tensor, penalties: Penalties) -> None:
    """Change `logits` float32 [S, V] in place as `penalties` say; forbidden tokens become -inf."""
    _check(logits, penalties)
    if dispatch.form(logits) == "triton":
        _launch(logits, penalties)
    else:
        reference(logits, penalties)


def count_tokens(output_counts: Tensor, state: Tensor, ids: Tensor) -> None:
    """Add the tokens `ids` [S, W] (int32 or int64, below 0 is skipped) to lines `state` [S] of `output_counts` [R, V].

    A row whose state is -1 is skipped; no two rows may name one line.
    """
    if ids.dim() != 2 or state.shape != ids.shape[:1]:
        raise ValueError(
            f"ids has shape {tuple(ids.shape)} and state {tuple(state.shape)}; they must be [S, W] and [S]"
        )
    if output_counts.dim() != 2 or not output_counts.is_contiguous():
        raise ValueError(f"output_counts has shape {tuple(output_counts.shape)}; it must be contiguous [R, V]")
    if dispatch.form(output_counts) == "triton":
        S, W = ids.shape
        if S:
            _count_kernel[(S,)](output_counts, state, ids.contiguous(), W, output_counts.shape[1], num_warps=1)
        return
    live = (ids >= 0) & (state >= 0)[:, None]
    lines = state.long()[:, None].expand_as(ids)[live]
    output_counts.index_put_(
        (lines, ids[live].long()), torch.ones_like(lines, dtype=output_counts.dtype), accumulate=True
    )


def reference(logits: Tensor, penalties: Penalties) -> None:
    """Change logits in plain torch, only the rows that ask for it."""
    p, V = penalties, logits.shape[1]
    if p.state is not None:
        rows = (p.state >= 0).nonzero()[:, 0]
        if rows.numel():
            logits[rows] = _penalized(logits[rows], p, rows)
    if p.bias_ids is not None and p.bias is not None:
        row, at = (p.bias_ids >= 0).nonzero(as_tuple=True)
        logits.index_put_((row, p.bias_ids[row, at].long()), p.bias[row, at], accumulate=True)
    if p.stop_ids is not None and p.hold_stops is not None:
        row, at = ((p.stop_ids >= 0) & (p.hold_stops != 0)[:, None]).nonzero(as_tuple=True)
        logits[row, p.stop_ids[row, at].long()] = float("-inf")
    if p.grammar is not None and p.allowed is not None:
        rows = (p.grammar >= 0).nonzero()[:, 0]
        logits[rows] = logits[rows].masked_fill(~_unpack(p.allowed[p.grammar[rows].long()], V), float("-inf"))
    if p.forced is not None:
        rows = (p.forced >= 0).nonzero()[:, 0]
        logits[rows] = float("-inf")
        logits[rows, p.forced[rows].long()] = 0.0


def _penalized(x: Tensor, p: Penalties, rows: Tensor) -> Tensor:
    assert p.state is not None
    lines = p.state[rows].long()
    counts = p.output_counts[lines] if p.output_counts is not None else torch.zeros_like(x, dtype=torch.int32)
    if p.repetition is not None:
        seen = counts > 0
        if p.prompt_mask is not None:
            seen |= _unpack(p.prompt_mask[lines], x.shape[1])
        factor = torch.where(seen, p.repetition[rows][:, None], 1.0)
        x = torch.where(x > 0, x / factor, x * factor)
    if p.frequency is not None:
        x = x - p.frequency[rows][:, None] * counts
    if p.presence is not None:
        x = x - p.presence[rows][:, None] * (counts > 0)
    return x


def _unpack(words: Tensor, V: int) -> Tensor:
    """Bits of int32 `words` [n, ceil(V/32)] as bool [n, V]."""
    bits = (words[..., None] >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(1)[:, :V].bool()


def _check(logits: Tensor, p: Penalties) -> None:
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"logits is {logits.dtype} {tuple(logits.shape)}; it must be float32 [S, V], rows contiguous")
    S, V = logits.shape
    words = cdiv(V, 32)
    for name in ("state", "hold_stops", "grammar", "forced"):
        _check_field(p, name, (S,), torch.int32)
    for name in ("repetition", "frequency", "presence"):
        _check_field(p, name, (S,), torch.float32)
    for name, width, dtypes in (
        ("prompt_mask", words, (torch.int32,)),
        ("allowed", words, (torch.int32,)),
        ("output_counts", V, (torch.int16, torch.int32)),
    ):
        _check_field(p, name, (None, width), *dtypes)
    for ids, partner in (("bias_ids", "bias"), ("stop_ids", "hold_stops")):
        _check_field(p, ids, (S, None), torch.int32)
        if (getattr(p, ids) is None) != (getattr(p, partner) is None):
            raise ValueError(f"{ids} and {partner} must be given together")
    if p.bias is not None and p.bias_ids is not None:
        _check_field(p, "bias", tuple(p.bias_ids.shape), torch.float32)
    if (p.grammar is None) != (p.allowed is None):
        raise ValueError("grammar and allowed must be given together")


def _check_field(p: Penalties, name: str, shape: tuple[int | None, ...], *dtypes: torch.dtype) -> None:
    tensor: Tensor | None = getattr(p, name)
    if tensor is None:
        return
    fits = tensor.dim() == len(shape) and all(w in (None, h) for w, h in zip(shape, tensor.shape, strict=True))
    if not fits or tensor.dtype not in dtypes or not tensor.is_contiguous():
        wanted = ", ".join("*" if n is None else str(n) for n in shape)
        kinds = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; it must be contiguous {kinds} ({wanted})")


_BLOCK = 2048  # tokens a program holds at 4 warps: 16 a thread, four 16-byte loads


def _launch(logits: Tensor, p: Penalties) -> None:
    S, V = logits.shape
    if S == 0:
        return
    number = logits.view(torch.int32)  # stands in for what is left out; nothing is read there
    floats = (p.repetition, p.frequency, p.presence)
    asked = sum(
        1 << n
        for n, t in enumerate((p.state, p.prompt_mask, p.output_counts, *floats, p.grammar, p.forced))
        if t is not None
    )
    _penalties_kernel[(S, cdiv(V, _BLOCK))](
        logits, logits.stride(0), V, cdiv(V, 32),
        *(number if t is None else t for t in (p.state, p.prompt_mask, p.output_counts)),
        *(logits if t is None else t for t in (*floats, p.bias)),
        *(number if t is None else t for t in (p.bias_ids, p.stop_ids, p.hold_stops, p.grammar, p.allowed, p.forced)),
        0 if p.bias_ids is None else p.bias_ids.shape[1], 0 if p.stop_ids is None else p.stop_ids.shape[1], asked,
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


# What `asked` says: which of these are given.
_STATE, _PROMPT, _COUNTS, _REPETITION = (tl.constexpr(1 << n) for n in range(4))
_FREQUENCY, _PRESENCE, _GRAMMAR, _FORCED = (tl.constexpr(1 << n) for n in range(4, 8))


@jit_alike(
    "num_bias", "num_stops", "asked", "repetition_ptr", "frequency_ptr", "presence_ptr", "state_ptr", "bias_ptr",
    "bias_ids_ptr", "stop_ids_ptr", "hold_stops_ptr", "grammar_ptr", "forced_ptr",
)  # fmt: skip
def _penalties_kernel(
    logits_ptr, row_stride, V, words, state_ptr, prompt_mask_ptr, output_counts_ptr, repetition_ptr, frequency_ptr,
    presence_ptr, bias_ptr, bias_ids_ptr, stop_ids_ptr, hold_stops_ptr, grammar_ptr, allowed_ptr, forced_ptr,
    num_bias, num_stops, asked, BLOCK: tl.constexpr,
):  # fmt: skip
    """One variant for whatever is asked: each combination would be compiled when it first comes, for seconds."""
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * BLOCK
    ids = begin + tl.arange(0, BLOCK)
    logits = logits_ptr + row * row_stride
    forced = tl.load(forced_ptr + row, mask=(asked & _FORCED) != 0, other=-1)
    if forced >= 0:
        tl.store(logits + ids, tl.where(ids == forced, 0.0, float("-inf")), mask=ids < V)
    else:
        # Each step may touch what other threads wrote in the one before, so a barrier stands between.
        line = tl.load(state_ptr + row, mask=(asked & _STATE) != 0, other=-1).to(tl.int64)
        if line >= 0:
            x = tl.load(logits + ids, mask=ids < V, other=0.0)
            x = _penalize(
                x, row, ids, V, prompt_mask_ptr + line * words, output_counts_ptr + line * V, repetition_ptr,
                frequency_ptr, presence_ptr, asked,
            )  # fmt: skip
            tl.store(logits + ids, x, mask=ids < V)
            tl.debug_barrier()
        if num_bias > 0:
            _add_bias(logits, bias_ids_ptr + row * num_bias, bias_ptr + row * num_bias, num_bias, begin, V, BLOCK)
            tl.debug_barrier()
        # Masks only ever write -inf: among themselves their order does not matter.
        hold = tl.load(hold_stops_ptr + row, mask=num_stops > 0, other=0)
        _bar_stops(logits, stop_ids_ptr + row * num_stops, hold, num_stops, begin, V, BLOCK)
        line = tl.load(grammar_ptr + row, mask=(asked & _GRAMMAR) != 0, other=-1).to(tl.int64)
        if line >= 0:
            word = tl.load(allowed_ptr + line * words + ids // 32, mask=ids < V, other=0)
            barred = ((word >> (ids % 32)) & 1) == 0
            tl.store(logits + ids, tl.full([BLOCK], float("-inf"), tl.float32), mask=(ids < V) & barred)


@jit
def _penalize(
    x, row, ids, V, prompt_mask, output_counts, repetition_ptr, frequency_ptr, presence_ptr, asked
):  # fmt: skip
    """What is not given counts as 0 or as neutral."""
    counts = tl.load(output_counts + ids, mask=(ids < V) & ((asked & _COUNTS) != 0), other=0).to(tl.int32)
    word = tl.load(prompt_mask + ids // 32, mask=(ids < V) & ((asked & _PROMPT) != 0), other=0)
    seen = (counts > 0) | (((word >> (ids % 32)) & 1) != 0)
    factor = tl.where(seen, tl.load(repetition_ptr + row, mask=(asked & _REPETITION) != 0, other=1.0), 1.0)
    x = tl.where(x > 0, x / factor, x * factor)
    x = x - tl.load(frequency_ptr + row, mask=(asked & _FREQUENCY) != 0, other=0.0) * counts.to(tl.float32)
    return x - tl.load(presence_ptr + row, mask=(asked & _PRESENCE) != 0, other=0.0) * (counts > 0).to(tl.float32)


@jit
def _add_bias(logits, bias_ids, bias, num_bias, begin, V, BLOCK: tl.constexpr):
    """Add the entries that fall in this program's tokens; an id stands once, so no two threads meet."""
    for i in range(0, num_bias, 128):
        entry = i + tl.arange(0, 128)
        token = tl.load(bias_ids + entry, mask=entry < num_bias, other=-1)
        here = (token >= begin) & (token < begin + BLOCK) & (token < V)
        x = tl.load(logits + token, mask=here, other=0.0) + tl.load(bias + entry, mask=here, other=0.0)
        tl.store(logits + token, x, mask=here)


@jit
def _bar_stops(logits, stop_ids, hold, num_stops, begin, V, BLOCK: tl.constexpr):
    if hold != 0:
        for i in range(0, num_stops, 32):
            entry = i + tl.arange(0, 32)
            token = tl.load(stop_ids + entry, mask=entry < num_stops, other=-1)
            here = (token >= begin) & (token < begin + BLOCK) & (token < V)
            tl.store(logits + token, tl.full([32], float("-inf"), tl.float32), mask=here)


@jit_alike("W")
def _count_kernel(output_counts_ptr, state_ptr, ids_ptr, W, V):
    """One program a row, token after token: no two of them write one counter at the same time."""
    row = tl.program_id(0).to(tl.int64)
    line = tl.load(state_ptr + row).to(tl.int64)
    if line >= 0:
        for i in range(W):
            token = tl.load(ids_ptr + row * W + i).to(tl.int64)
            if (token >= 0) & (token < V):
                at = output_counts_ptr + line * V + token
                tl.store(at, (tl.load(at) + 1).to(output_counts_ptr.dtype.element_ty))
                tl.debug_barrier()
