"""Attention over latents against a float64 oracle that expands each head's keys and values, as in training."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.attention_native import holds
from kernels.float8_kv import DTYPE
from kernels.head_linear import head_linear
from kernels.latent_attention import latent_attention
from kernels.native.library import built
from tests.kernels.close import Close

NOPE, VALUES = 12, 20  # numbers of a head's key without a position, and of its value


class Batch:
    """Sequences of (queries, context) over scattered blocks; cells that nobody may read are NaN."""

    def __init__(
        self, lens: list[tuple[int, int]], H: int, R: int, P: int, *, B: int = 4, dtype: torch.dtype = torch.float32,
        device: str = "cpu", cache_dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        def i32(x: list[int] | list[list[int]]) -> Tensor:
            return torch.tensor(x, dtype=torch.int32, device=device)

        self.lens, T = lens, sum(n for n, _ in lens)
        blocks = [-(-context // B) for _, context in lens]
        width, N = max(*blocks, 1) + 2, sum(blocks) + 3
        order = iter(torch.randperm(N).tolist())
        self.tables = [[next(order) for _ in range(count)] for count in blocks]
        cache = torch.full((N, B, 1, R + P), float("nan"))
        for (_, context), table in zip(lens, self.tables, strict=True):
            for i in range(context):
                cache[table[i // B], i % B] = torch.randn(1, R + P)
        self.cache = cache.to(cache_dtype or dtype).to(device)
        starts = torch.tensor([0, *(n for n, _ in lens)]).cumsum(0)
        self.query_start, self.context_lens = starts.int().to(device), i32([context for _, context in lens])
        self.block_tables = i32([row + [10**6] * (width - len(row)) for row in self.tables])
        self.q_nope, self.q_rope = (torch.randn(T, H, size, device=device).to(dtype) for size in (NOPE, P))
        # Rows as wide as a latent: what is made of them is of about the same size.
        self.up_keys, self.up_values = (
            (torch.randn(H, size, R, device=device) * R**-0.5).to(dtype) for size in (NOPE, VALUES)
        )

    def run(self, **options: Any) -> Tensor:
        q = head_linear(self.q_nope, self.up_keys.transpose(1, 2))
        lens = (self.block_tables, self.query_start, self.context_lens)
        return head_linear(latent_attention(q, self.q_rope, self.cache, *lens, **options), self.up_values)

    def truth(self, scale: float, cache_scale: float = 1.0) -> Tensor:
        """Attend in the usual way: keys and values of each head, one query at a time."""
        R, B = self.up_keys.shape[2], self.cache.shape[1]
        q = torch.cat((self.q_nope, self.q_rope), -1).cpu().double()
        keys_of, values_of = self.up_keys.cpu().double(), self.up_values.cpu().double()
        out, t = torch.zeros(*q.shape[:2], VALUES, dtype=torch.float64), 0
        for (n, context), table in zip(self.lens, self.tables, strict=True):
            slots = torch.tensor([table[i // B] * B + i % B for i in range(context)], dtype=torch.int64)
            lines = self.cache.cpu().double().flatten(0, 2)[slots] * cache_scale
            latents, turned = lines[:, :R], lines[:, R:]
            for position in range(context - n, context):
                seen = slice(position + 1)
                for h in range(q.shape[1]):
                    keys = torch.cat((latents[seen] @ keys_of[h].T, turned[seen]), -1)
                    weights = (keys @ q[t, h] * scale).softmax(0)
                    out[t, h] = weights @ (latents[seen] @ values_of[h].T)
                t += 1
        return out


MIXED = [(1, 33), (7, 7), (1, 1), (3, 41), (30, 42), (2, 70)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("H", "R", "P", "B"), [(16, 64, 16, 16), (3, 24, 6, 4), (20, 40, 10, 5), (1, 512, 64, 16), (128, 32, 8, 16)]
)
def test_mixed_batches_of_prefill_decode_and_drafts(
    device: str, close: Close, H: int, R: int, P: int, B: int, dtype: torch.dtype
) -> None:
    if dtype != torch.float32 and (H, device) != (16, "cuda") and (H, dtype) != (16, torch.float16):
        pytest.skip("one shape is enough for the interpreter, which is slow and cannot multiply bf16")
    batch = Batch(MIXED if H < 64 else MIXED[:4], H, R, P, B=B, dtype=dtype, device=device)
    close(batch.run(scale=0.3), batch.truth(0.3), loose=2 if dtype == torch.float32 else 3)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("queries", [1, 3, 9])
def test_few_queries_over_a_long_context_have_their_keys_cut(
    device: str, close: Close, queries: int, parts: int
) -> None:
    lens = [(1, 300), (0, 5), (1, 2), (queries, 150)]
    batch = Batch(lens, 6, 24, 8, B=16, device=device)
    options: dict[str, Any] = {"max_query_len": queries, "max_context_len": 300, "num_parts": parts}
    close(batch.run(scale=0.4, **options), batch.truth(0.4), loose=2)


def test_heads_and_lines_as_wide_as_deepseeks_are_served(device: str, close: Close) -> None:
    batch = Batch([(1, 70), (3, 20)], 16, 512, 64, B=16, device=device)
    close(batch.run(scale=0.1, max_query_len=3), batch.truth(0.1), loose=2)
    assert holds(8, 576)


def test_rows_of_padding_are_left_alone_and_a_sequence_without_context_gives_zeros(device: str) -> None:
    batch = Batch([(1, 9), (2, 5)], 4, 24, 8, device=device)
    q, pad = torch.randn(3, 4, 24, device=device), torch.zeros(2, 4, 24, device=device)
    lens = (batch.block_tables, batch.query_start, batch.context_lens)
    for parts in (1, 2):
        alone = latent_attention(q, batch.q_rope, batch.cache, *lens, scale=1.0, num_parts=parts)
        rope = torch.cat((batch.q_rope, pad[..., :8]))
        padded = latent_attention(torch.cat((q, pad)), rope, batch.cache, *lens, scale=1.0, num_parts=parts)
        torch.testing.assert_close(padded[:3], alone)
        nobody = torch.tensor([9, 0], dtype=torch.int32, device=device)
        starts = torch.tensor([0, 1, 3], dtype=torch.int32, device=device)
        none = latent_attention(q, batch.q_rope, batch.cache, lens[0], starts, nobody, scale=1.0, num_parts=parts)
        assert not none[1:].any()


def test_a_cache_of_8_bits_holds_latents_by_their_scale(device: str, close: Close) -> None:
    if dispatch.form(torch.empty(0)) == "native":
        pytest.skip("native kernels know no codes")
    batch = Batch([(1, 33), (6, 20)], 4, 32, 16, device=device, cache_dtype=DTYPE)
    close(batch.run(scale=0.3, cache_scale=0.5), batch.truth(0.3, 0.5), loose=2)


def test_in_a_fixed_order_a_row_has_the_same_bits_alone_and_in_a_batch(device: str) -> None:
    batch = Batch([(1, 520), (5, 30), *[(1, 2)] * 6, (2, 90)], 5, 24, 8, B=16, device=device)
    if dispatch.form(torch.empty(0)) != "triton":
        pytest.skip("torch has no fixed order for rows beside others")
    with dispatch.fixed_order():
        together = batch.run(scale=0.3)
        q = head_linear(batch.q_nope[:1], batch.up_keys.transpose(1, 2))
        lens = (batch.block_tables[:1], batch.query_start[:2], batch.context_lens[:1])
        sums = latent_attention(q, batch.q_rope[:1], batch.cache, *lens, scale=0.3, max_query_len=1)
        assert torch.equal(head_linear(sums, batch.up_values), together[:1])


@pytest.mark.skipif(not (built() and torch.backends.mkl.is_available()), reason="needs native kernels and MKL")
def test_by_native_kernels_a_row_has_the_same_bits_whatever_stands_beside_it() -> None:
    batch = Batch([(1, 200), *[(1, 2 + n) for n in range(8)], (5, 60)], 16, 512, 64, B=16)
    with dispatch.forced("native"):
        together = batch.run(scale=0.1, max_query_len=5)
        for count in range(1, 9):
            q = head_linear(batch.q_nope[:count], batch.up_keys.transpose(1, 2))
            lens = (batch.block_tables[:count], batch.query_start[: count + 1], batch.context_lens[:count])
            sums = latent_attention(q, batch.q_rope[:count], batch.cache, *lens, scale=0.1, max_query_len=1)
            assert torch.equal(head_linear(sums, batch.up_values), together[:count])


def test_wrong_arguments_are_named() -> None:
    q, rope, cache = torch.zeros(2, 3, 8), torch.zeros(2, 3, 4), torch.zeros(5, 4, 1, 12)
    tables, starts, lens = (torch.zeros(n, dtype=torch.int32) for n in (1, 2, 1))
    tables = tables.view(1, 1)
    for match, args in {
        "q .* and q_rope": (q, rope[:1], cache, tables, starts, lens),
        "cache has shape": (q, rope, cache[..., :8], tables, starts, lens),
        "query_start": (q, rope, cache, tables, starts[:1], lens),
        "contiguous": (q, rope, cache.transpose(1, 3).contiguous().transpose(1, 3), tables, starts, lens),
    }.items():
        with pytest.raises(ValueError, match=match):
            latent_attention(*args, scale=1.0)
    with pytest.raises(ValueError, match="positive"):
        latent_attention(q, rope, cache, tables, starts, lens, scale=0.0)
    with pytest.raises(ValueError, match="weight has shape"):
        head_linear(q, torch.zeros(3, 5, 4))
