"""The bodies of vLLM's POST /v1/load_lora_adapter and /v1/unload_lora_adapter, and our `model`."""

from __future__ import annotations

import re

import msgspec

from wire.errors import InvalidRequestError

_NAME = re.compile(r"[\w.:-][\w.:/-]{0,127}")
_MAX_PATH = 1024


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """Which adapter, where its directory is, and of which model (the first that generates, if not said)."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    model: str | None = None

    def check(self) -> None:
        """Raise InvalidRequestError that names the field."""
        if not _NAME.fullmatch(self.lora_name):
            message = "lora_name: must be letters, digits and . : / _ -, at most 128"
            raise InvalidRequestError(message, param="lora_name")
        if not 0 < len(self.lora_path) <= _MAX_PATH:
            raise InvalidRequestError(f"lora_path: must be a path of at most {_MAX_PATH} letters", param="lora_path")


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """Which adapter. vLLM's `lora_int_id` means nothing here."""

    lora_name: str
    lora_int_id: int | None = None
