"""Reads the JSON files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_svc.weights.errors import CheckpointError


def read_json(path: Path) -> Any:
    """Return what a file holds. Raises CheckpointError for what is no JSON, FileNotFoundError."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, f"not valid JSON ({error})") from None
