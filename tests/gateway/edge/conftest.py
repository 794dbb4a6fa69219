"""The ring's fixtures, for the edge's tests."""

from tests.ring import make_ring, ring, tiny_model

__all__ = ["make_ring", "ring", "tiny_model"]
