"""Codes packed in words come back, and lie where a tensor core's product wants them."""

import torch

from kernels.grouped_weight import GroupedWeight
from kernels.grouped_words import fragments, pack, unpack


def test_words_in_fragments_come_back() -> None:
    words = torch.randint(-(2**31), 2**31 - 1, (192, 64), dtype=torch.int32)
    assert torch.equal(fragments(fragments(words), back=True), words)
    assert not torch.equal(fragments(words), words)


def test_a_threads_words_are_the_codes_that_a_warpgroups_product_wants_of_it() -> None:
    """By the layout of m64k16 in PTX: register i of thread t has row t / 4 % 8 + t / 32 * 16, 8 more if i is odd, and
    inputs 2 (t % 4) and the next, 8 more if i > 1; the lower half is the first of the two."""
    F, E = 128, 384
    codes = torch.randint(0, 16, (F, E), dtype=torch.uint8)
    memory = fragments(pack(codes, 4, 128)).view(F // 64, E // 128, 2, 128, 4)
    found = torch.full((F, E), 255, dtype=torch.uint8)
    for t in range(128):
        for part in range(8):  # a product of 16 inputs
            for i in range(4):
                word = memory[:, :, i // 2, t, i % 2 * 2 + part // 4] >> part % 4 * 4
                row, column = t // 4 % 8 + t // 32 * 16 + i % 2 * 8, part * 16 + t % 4 * 2 + i // 2 * 8
                for half in range(2):
                    found[row::64, column + half :: 128] = (word >> 16 * half & 15).to(torch.uint8)
    assert torch.equal(found, codes)


def test_a_weight_in_fragments_has_the_numbers_of_one_in_rows() -> None:
    codes = torch.randint(0, 256, (100, 160), dtype=torch.uint8)
    scales, zeros = torch.rand(100, 10).half(), torch.randint(0, 17, (100, 10))
    rows, lying = (GroupedWeight.of(codes, scales, zeros, 0, 2, hopper) for hopper in (False, True))
    assert lying.lie_in_fragments and not rows.lie_in_fragments
    assert torch.equal(lying.reference(torch.float32), rows.reference(torch.float32))
    assert lying.words.shape == (128, 48)


def test_what_a_copy_unit_or_a_product_cannot_take_stays_in_rows() -> None:
    def lies(F: int = 64, E: int = 128, G: int = 1, scales: torch.dtype = torch.half, each: int = 2) -> bool:
        codes = torch.zeros(F, E // each, dtype=torch.uint8)
        return GroupedWeight.of(codes, torch.ones(F, G, dtype=scales), None, 8, each, hopper=True).lie_in_fragments

    assert lies() and lies(G=4) and lies(E=96) and lies(E=2304)
    assert not lies(G=8) and not lies(F=66) and not lies(scales=torch.float32) and not lies(each=1)
    assert not lies(E=48, G=1)


def test_words_come_back() -> None:
    for bits, block in ((4, 128), (4, 256), (8, 64)):
        codes = torch.randint(0, 1 << bits, (3, 512), dtype=torch.uint8)
        assert torch.equal(unpack(pack(codes, bits, block), bits, block), codes)
