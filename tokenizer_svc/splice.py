"""Reuses the ids of earlier turns, so that the next prompt matches the cached one token for token.

What the model generated need not be what the encoder would make of the same text. The stored ids are taken as far as
their text is the beginning of the new prompt's text, up to the last control token there: the tokenizer always cuts at
one, so the ids after it do not depend on what stands before. If the template shows an earlier turn differently now
(reasoning left out, white space trimmed), the rest is encoded afresh from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizer_svc.encoder import Encoder


def splice(encoder: Encoder, stored: Sequence[int], text: str) -> tuple[list[int], int]:
    """Return the ids of `text` (with stand-ins), and how many of them are stored ones."""
    raw = text.encode()
    kept = kept_bytes = at = 0
    space = encoder.space_at_start
    for index, token_id in enumerate(stored):
        piece = encoder.placed_bytes(token_id)
        if token_id not in encoder.control_ids:
            piece = piece.removeprefix(b" ") if space else piece  # SentencePiece's own, no part of the text
            space = False
        if not raw.startswith(piece, at):
            break
        at += len(piece)
        if token_id in encoder.control_ids:
            kept, kept_bytes = index + 1, at
            space = encoder.space_after_control
    if not kept:
        return encoder.encode(text), 0
    rest = raw[kept_bytes:].decode()
    fresh = encoder.encode_after(stored[kept - 1], rest) if rest else []
    return [*stored[:kept], *fresh], kept
