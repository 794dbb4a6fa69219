"""Paged attention against a float64 oracle: mixed batches, windows, caps, sinks, splits, and cells nobody may read."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import dispatch, prefill_attention
from kernels.paged_attention import paged_attention
from tests.kernels.close import Close


class Batch:
    """A random mixed batch: `lens` holds (queries, context) of each sequence; blocks are scattered, the rest is NaN."""

    def __init__(
        self,
        lens: list[tuple[int, int]],
        H: int,
        K: int,
        D: int,
        B: int = 4,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        def i32(x: list[int] | list[list[int]]) -> Tensor:
            return torch.tensor(x, dtype=torch.int32, device=device)

        self.lens = lens
        blocks = [-(-context // B) for _, context in lens]
        width = max(*blocks, 1) + 2
        N = sum(blocks) + 3
        order = iter(torch.randperm(N).tolist())
        tables = [[next(order) for _ in range(count)] for count in blocks]
        cache = torch.full((2, N, B, K, D), float("nan"), dtype=dtype)
        for (_, context), table in zip(lens, tables, strict=True):
            for i in range(context):
                cache[:, table[i // B], i % B] = torch.randn(2, K, D).to(dtype)
        self.tables = [row + [10**6] * (width - len(row)) for row in tables]  # behind the context: not to be followed
        starts = [0]
        for n, _ in lens:
            starts.append(starts[-1] + n)
        self.q = torch.randn(starts[-1], H, D, device=device).to(dtype)
        self.k_cache, self.v_cache = cache.to(device).unbind(0)
        self.query_start, self.context_lens = i32(starts), i32([context for _, context in lens])
        self.block_tables = i32(self.tables)

    def run(self, **options: Any) -> Tensor:
        out = torch.full(self.q.shape, float("nan"), dtype=self.q.dtype, device=self.q.device)
        result = paged_attention(
            self.q, self.k_cache, self.v_cache, self.block_tables, self.query_start, self.context_lens,
            out=out, **options,
        )  # fmt: skip
        assert result is out
        return out

    def truth(
        self,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        limits: Tensor | None = None,
        **_: object,
    ) -> Tensor:
        """Softmax over each row's own keys, one head at a time, in float64."""
        q, (B, K) = self.q.cpu().double(), self.k_cache.shape[1:3]
        out, t = torch.zeros_like(q), 0
        for s, (n, context) in enumerate(self.lens):
            slots = torch.tensor([self.tables[s][i // B] * B + i % B for i in range(context)], dtype=torch.int64)
            keys, values = (c.cpu().double().reshape(-1, K, c.shape[-1])[slots] for c in (self.k_cache, self.v_cache))
            for position in range(context - n, context):
                low = max(0, position - window + 1) if window else 0
                behind = (position if limits is None else int(limits[t])) + 1
                for h in range(q.shape[1]):
                    kv = h // (q.shape[1] // K)
                    logits = keys[low:behind, kv] @ q[t, h] * scale
                    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
                    if sinks is not None:
                        logits = torch.cat([logits, sinks[h].cpu().double()[None]])
                    out[t, h] = logits.softmax(0)[: behind - low] @ values[low:behind, kv]
                t += 1
        return out


MIXED = [(1, 33), (7, 7), (1, 1), (4, 41), (40, 52), (2, 70)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("H", "K", "D"), [(1, 1, 64), (9, 3, 64), (2, 1, 80), (4, 2, 96), (8, 2, 128), (8, 1, 256)])
def test_mixed_batches_of_prefill_decode_and_drafts(
    device: str, close: Close, H: int, K: int, D: int, dtype: torch.dtype
) -> None:
    if dtype == torch.float16 and D != 128:
        pytest.skip("one head dim is enough for the interpreter, which is slow")
    if dtype == torch.bfloat16 and device == "cpu" and dispatch.form(torch.empty(0)) == "triton":
        pytest.skip("Triton's interpreter cannot multiply bf16")
    batch = Batch(MIXED, H, K, D, dtype=dtype, device=device)
    close(batch.run(scale=D**-0.5), batch.truth(scale=D**-0.5))


@pytest.mark.parametrize("G", [*range(1, 9), 12, 16])
def test_every_group_size_shares_its_kv_head(device: str, close: Close, G: int) -> None:
    batch = Batch([(1, 19), (5, 5), (37, 40)], 2 * G, 2, 64, device=device)
    close(batch.run(scale=0.2), batch.truth(scale=0.2))


@pytest.mark.parametrize("B", [1, 8, 24, 32, 64, 128])
def test_blocks_may_have_any_size(device: str, close: Close, B: int) -> None:
    dtype = torch.float16 if device == "cuda" else torch.float32  # on a Hopper card the kernel of `hopper_prefill.py`
    batch = Batch([(1, 150), (5, 65), (140, 200)], 4, 2, 64, B=B, dtype=dtype, device=device)
    close(batch.run(scale=0.2), batch.truth(scale=0.2), loose=2)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 1, 21])
def test_windows_soft_caps_and_sinks(
    device: str, close: Close, window: int | None, softcap: float | None, sinks: bool
) -> None:
    batch = Batch([(1, 77), (3, 50), (45, 70), (1, 2)], 4, 2, 64, B=16, device=device)
    options: dict[str, Any] = {
        "scale": 0.5,
        "window": window,
        "softcap": softcap,
        "sinks": torch.randn(4, device=device) * 3 if sinks else None,
    }
    close(batch.run(**options), batch.truth(**options), loose=3)


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("lens", [[(1, 37), (30, 70), (20, 20), (33, 33)], [(600, 700)]], ids=["mixed", "long"])
def test_queries_may_see_keys_behind_their_own(
    device: str, close: Close, lens: list[tuple[int, int]], window: int | None
) -> None:
    batch = Batch(lens, 8, 2, 64, device=device)
    positions = torch.cat([torch.arange(context - n, context) for n, context in batch.lens])
    ends = torch.cat([torch.full((n,), context - 1) for n, context in batch.lens])
    limits = torch.where(torch.arange(len(ends)) % 3 == 0, positions, torch.minimum(ends, positions + 11)).to(device)
    options: dict[str, Any] = {"scale": 0.3, "window": window, "limits": limits}
    close(batch.run(**options), batch.truth(**options), loose=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("window", [None, 1, 77, 200])
@pytest.mark.parametrize("B", [4, 16], ids=["threads", "unit"])
def test_long_prefills_in_16_bits(
    close: Close, B: int, window: int | None, softcap: float | None, sinks: bool, D: int
) -> None:
    """On a Hopper card these take the kernel of `hopper_prefill.py`; several tiles of keys, some cut by the window.

    Its copy unit takes blocks of 8 and more, threads copy smaller ones.
    """
    batch = Batch([(300, 300), (90, 700), (1, 40), (33, 512)], 6, 2, D, B=B, dtype=torch.bfloat16, device="cuda")
    options: dict[str, Any] = {
        "scale": 0.1,
        "window": window,
        "softcap": softcap,
        "sinks": torch.randn(6, device="cuda") if sinks else None,
    }
    out = batch.run(**options)
    close(out, batch.truth(**options))
    assert torch.equal(out, batch.run(**options))


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("window", [None, 300])
def test_a_decode_cut_in_splits_is_merged(device: str, close: Close, splits: int, window: int | None) -> None:
    batch = Batch([(1, 700), (2, 530), (1, 30), (1, 257)], 2, 1, 64, B=16, device=device)
    sinks = torch.randn(2, device=device)
    options: dict[str, Any] = {"scale": 0.3, "num_splits": splits, "window": window, "sinks": sinks, "max_query_len": 2}
    close(batch.run(**options), batch.truth(**options))


def test_a_fixed_number_of_splits_gives_a_row_the_same_bits_in_any_batch(device: str) -> None:
    whole = Batch([(1, 600), (1, 12), (1, 301)], 4, 1, 64, B=16, device=device)
    together = whole.run(scale=0.2, num_splits=4, max_query_len=1)
    for s in range(3):
        part = paged_attention(
            whole.q[s : s + 1], whole.k_cache, whole.v_cache, whole.block_tables[s : s + 1],
            torch.tensor([0, 1], dtype=torch.int32, device=device), whole.context_lens[s : s + 1],
            scale=0.2, num_splits=4, max_query_len=1,
        )  # fmt: skip
        if dispatch.form(whole.q) == "triton":
            assert torch.equal(part[0], together[s])


@pytest.mark.usefixtures("orderless")
@pytest.mark.parametrize("window", [None, 50])
def test_in_a_fixed_order_a_row_has_the_same_bits_however_its_prompt_is_cut(device: str, window: int | None) -> None:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    whole = Batch([(1, 140), (150, 150), (1, 3)], 4, 2, 64, B=16, dtype=dtype, device=device)
    with dispatch.fixed_order():
        together = whole.run(scale=0.2, window=window)
        for begin, end in ((0, 1), (149, 150), (140, 150), (20, 110)):
            part = paged_attention(
                whole.q[1 + begin : 1 + end], whole.k_cache, whole.v_cache, whole.block_tables[1:2],
                torch.tensor([0, end - begin], dtype=torch.int32, device=device),
                torch.tensor([end], dtype=torch.int32, device=device), scale=0.2, window=window,
            )  # fmt: skip
            if dispatch.form(whole.q) == "triton":
                assert torch.equal(part, together[1 + begin : 1 + end])


def test_padded_sequences_give_zeros_and_rows_behind_the_last_are_left_alone(device: str) -> None:
    batch = Batch([(1, 9), (1, 4)], 2, 1, 64, device=device)
    batch.context_lens[1] = 0
    batch.query_start[2] = 2
    q = torch.cat([batch.q, batch.q[:1]])
    out = torch.full(q.shape, 7.0, device=device)
    paged_attention(
        q, batch.k_cache, batch.v_cache, batch.block_tables, batch.query_start, batch.context_lens, scale=1.0,
        max_query_len=1, max_context_len=9, out=out,
    )  # fmt: skip
    assert torch.isfinite(out).all()
    assert not out[1].any()
    assert (out[2] == 7).all()


@pytest.mark.parametrize("lens", [(40, 9), (70, 0), (300, 140)])
def test_queries_without_any_key_give_zeros(device: str, close: Close, lens: tuple[int, int]) -> None:
    """No plan asks for fewer keys than queries, but nothing may hang on it, nor what stands beside it."""
    n, context = lens
    half = torch.float16 if device == "cuda" else torch.float32  # on a Hopper card the kernel of `hopper_prefill.py`
    whole = Batch([(context, context), (50, 60)], 4, 2, 64, B=16, dtype=half, device=device)
    q = torch.randn(n + 50, 4, 64, device=device).to(half)
    q[n - context : n], q[n:] = whole.q[:context], whole.q[context:]
    starts = torch.tensor([0, n, n + 50], dtype=torch.int32, device=device)
    out = torch.full(q.shape, float("nan"), dtype=half, device=device)
    paged_attention(
        q, whole.k_cache, whole.v_cache, whole.block_tables, starts, whole.context_lens, scale=0.125, out=out
    )  # fmt: skip
    assert not out[: n - context].any()
    close(out[n - context :], whole.truth(scale=0.125))


def test_heads_cut_out_of_a_fused_row_are_read_in_place(device: str, close: Close) -> None:
    batch = Batch([(1, 20), (33, 33)], 4, 2, 64, device=device)
    row = torch.randn(34, 8 * 64, device=device)
    row[:, :256] = batch.q.flatten(1)
    batch.q = row[:, :256].view(34, 4, 64)
    out = paged_attention(
        batch.q, batch.k_cache, batch.v_cache, batch.block_tables, batch.query_start, batch.context_lens, scale=0.1
    )
    close(out, batch.truth(scale=0.1))


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lens=st.lists(st.tuples(st.integers(1, 48), st.integers(0, 60)), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (6, 2), (5, 1)]),
    window=st.sampled_from([None, 7, 40]),
    B=st.sampled_from([1, 8, 16]),
)
def test_any_batch(
    device: str,
    close: Close,
    lens: list[tuple[int, int]],
    heads: tuple[int, int],
    window: int | None,
    B: int,
) -> None:
    batch = Batch([(n, n + cached) for n, cached in lens], *heads, 64, B=B, device=device)
    close(batch.run(scale=0.125, window=window), batch.truth(scale=0.125, window=window))


def test_wrong_arguments_are_named() -> None:
    batch = Batch([(1, 5)], 2, 1, 8)
    good: dict[str, Any] = {
        "q": batch.q, "k_cache": batch.k_cache, "v_cache": batch.v_cache, "block_tables": batch.block_tables,
        "query_start": batch.query_start, "context_lens": batch.context_lens,
    }  # fmt: skip
    bad: dict[str, Any] = {
        "q": batch.q[0], "k_cache": batch.k_cache[..., :4], "v_cache": batch.v_cache[:2],
        "block_tables": batch.block_tables.long(), "query_start": batch.query_start[:1], "sinks": torch.zeros(3),
        "window": 0, "out": torch.zeros(3),
    }  # fmt: skip
    for name, value in bad.items():
        with pytest.raises(ValueError, match=name):
            paged_attention(**{**good, name: value}, scale=1.0)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [None, 100])
def test_few_queries_over_a_long_context_have_their_keys_cut(
    device: str, close: Close, monkeypatch: pytest.MonkeyPatch, window: int | None, sinks: bool
) -> None:
    monkeypatch.setattr(prefill_attention, "_MIN_SPLIT_KEYS", 64)
    dtype = torch.float16 if device == "cuda" else torch.float32  # on a Hopper card the kernel of `hopper_prefill.py`
    batch = Batch([(20, 300), (40, 40), (1, 290), (33, 150)], 4, 2, 64, B=16, dtype=dtype, device=device)
    options: dict[str, Any] = {
        "scale": 0.3,
        "window": window,
        "sinks": torch.randn(4, device=device) if sinks else None,
    }
    out = batch.run(**options)
    close(out, batch.truth(**options), loose=2)
    assert torch.equal(out, batch.run(**options))
