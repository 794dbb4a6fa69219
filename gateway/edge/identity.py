"""Ids that the edge issues, and the partition that each of them leads to.

A conversation and every response in its chain share a *root*, the first 16 hex digits after the prefix; the partition
is a stable hash of the root, so all edges find the same history desk without asking anybody.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from zlib import crc32

import msgspec
from starlette.requests import HTTPConnection

from wire.messages import Request

_ROOT_LENGTH = 16
_WITH_TOOLS = "t"  # no hex digit


def tenant_of(request: HTTPConnection) -> str:
    """Return whose request it is, as the layer that knows the keys has noted it; "" where nobody is asked."""
    tenant: str = request.scope.get("headrace.tenant", "")
    return tenant


def new_root() -> str:
    """Return a fresh root."""
    return secrets.token_hex(_ROOT_LENGTH // 2)


def new_id(prefix: str, root: str | None = None, *, with_tools: bool = False) -> str:
    """Return a fresh id such as `resp_...` below a root; see `has_tools`."""
    return f"{prefix}_{root or new_root()}{secrets.token_hex(12)}{_WITH_TOOLS if with_tools else ''}"


def has_tools(response_id: str) -> bool:
    """Tell whether tools stood in the input of a response or of one before it.

    Its id says so, so that nobody else who goes on from a response need ask for them before the request is on its way.
    """
    return response_id.endswith(_WITH_TOOLS)


def new_request_id() -> str:
    """Return the internal key of a request; a client's own id never becomes one."""
    return secrets.token_hex(16)


def root_of(object_id: str) -> str:
    """Return the root of an id; an id that is not ours is its own root (and will not be found)."""
    return object_id.partition("_")[2][:_ROOT_LENGTH] or object_id


def affinity_of(request: Request) -> str:
    """Return a short name of a tenant's prompt_cache_key, empty without one."""
    if not request.prompt_cache_key:
        return ""
    parts = request.tenant.encode(), request.prompt_cache_key.encode()
    return blake2b(msgspec.msgpack.encode(parts), digest_size=8).hexdigest()


def partition_of(root: str, partitions: int) -> int:
    """Return the partition of a root."""
    return crc32(root.encode()) % partitions
