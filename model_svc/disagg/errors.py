"""Why blocks did not come from another replica. It never reaches a client: what did not come is computed."""

from __future__ import annotations


class TransferError(Exception):
    """The other side is no replica of this deployment, has other blocks, or does not keep to the protocol."""
