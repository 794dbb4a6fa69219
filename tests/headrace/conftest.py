"""The real model, for tests that read its file."""

from tests.model_fixture import smollm2_path

__all__ = ["smollm2_path"]
