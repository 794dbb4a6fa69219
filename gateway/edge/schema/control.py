"""The body of our own POST /v1/requests/{id}/control."""

from __future__ import annotations

from typing import Literal

import msgspec


class ControlRequest(msgspec.Struct, kw_only=True):
    """What to do."""

    action: Literal["end_reasoning"]
