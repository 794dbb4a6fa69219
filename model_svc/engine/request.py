"""What the engine is asked for: one request, which becomes `sampling.n` sequences. Plain data, also on the pipe."""

from __future__ import annotations

import hashlib

import msgspec

from model_svc.engine.plan import Picture
from wire.messages import Prompt, SamplingParams


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A request as the engine takes it.

    `checkpoint` holds, per choice, the packed ids that an earlier attempt generated: generation goes on after them and
    the first new token has index len(ids). `closed_at` holds, per choice, after how many generated tokens its client
    ended thinking. Lower `priority` goes first (policies `fair` and `priority`); `tenant` shares fairly with others.
    `adapter` is one of the runner's, or "". `pictures` are those that `prompt.images` places, by digest.
    """

    request_id: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    attempt: int = 0
    checkpoint: dict[int, bytes] = {}
    priority: int = 0
    closed_at: dict[int, tuple[int, ...]] = {}
    tenant: str = ""
    adapter: str = ""
    pictures: tuple[Picture, ...] = ()


def choice_seed(request: EngineRequest, choice: int) -> int:
    """Return the 63-bit seed of one choice.

    Without a client seed it comes from the request id, so that another attempt on another replica draws the same.
    """
    base = f"id:{request.request_id}" if request.sampling.seed is None else f"seed:{request.sampling.seed}"
    digest = hashlib.blake2b(f"{base}:{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
