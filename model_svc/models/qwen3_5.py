"""Qwen 3.5: as Qwen 3 Next, but for how the inputs of states lie in the checkpoint; most sizes have no experts."""

from __future__ import annotations

from typing import ClassVar

from model_svc.models.qwen3_next import Qwen3Next


class Qwen3_5(Qwen3Next):  # noqa: N801 - the model's name
    """Qwen3_5ForCausalLM, and with experts Qwen3_5MoeForCausalLM."""

    by_head: ClassVar[bool] = False
