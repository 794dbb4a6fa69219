"""What transformers makes of a GGUF file, by its own reader, names and un-permutation."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from unittest import mock


def gguf_oracle(directory: Path, file: str = "model.gguf", /, **options: Any) -> Any:
    """Return the model in float32. It asks for the table of all names once for each of its modules; here once."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with mock.patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)):
        model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32, **options)
    return model.eval()
