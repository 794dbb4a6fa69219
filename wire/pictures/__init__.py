"""The geometry of pictures: what becomes of one of so many pixels before a model, and how many tokens it takes.

Numbers and texts only; who decodes pixels does with them as a `Layout` says.
"""

from __future__ import annotations

from wire.pictures.forms import read_form
from wire.pictures.layout import Layout, PictureForm, Size
from wire.pictures.processor import read_processor

__all__ = ["Layout", "PictureForm", "Size", "read_form", "read_processor"]
