"""The one error of `headrace pull`: a sentence for the person who typed the command."""

from __future__ import annotations


class PullError(Exception):
    """A model could not be fetched or made into a model directory; the message says why and what to do."""
