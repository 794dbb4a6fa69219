"""`headrace pull`: make a model directory in Hugging Face form from a catalogue name, a .gguf file or a hub repository."""

from headrace.pull.errors import PullError
from headrace.pull.progress import progress_bar
from headrace.pull.pull import is_complete, pull

__all__ = ["PullError", "is_complete", "progress_bar", "pull"]
