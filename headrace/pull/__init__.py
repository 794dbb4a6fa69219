"""`headrace pull`: a model directory in Hugging Face form, from a catalogue name, a .gguf file or a hub repository."""

from headrace.pull.advice import refresh_advice
from headrace.pull.errors import PullError
from headrace.pull.pull import is_complete, pull

__all__ = ["PullError", "is_complete", "pull", "refresh_advice"]
