"""What secrets and personal data look like: patterns over folded text (so in lower case), each with its check.

A token or key of unknown length is decided by its beginning; `rest` then swallows what follows, so nothing has to be
held for it. Patterns begin and end at the edges that keep them from matching inside a longer number or name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.postprocess.safety import checksums
from gateway.postprocess.safety.match import Edge
from gateway.postprocess.safety.rest import Rest

_TOKEN_REST = Rest("abcdefghijklmnopqrstuvwxyz0123456789_-./+=", limit=8192)
_KEY_REST = Rest(
    "abcdefghijklmnopqrstuvwxyz0123456789+/=:,.- \t\r\n\\",
    limit=16_384,
    until=r"-----end [a-z0-9 ]{0,40}-----",
)


class Detector(NamedTuple):
    """One kind of secret. `name` is the placeholder's; `numbered`: the same value gets the same number.

    `domain` finds the part of a match that begins with its first sign no word has, for rules that hide only that.
    """

    name: str
    patterns: tuple[str, ...]
    edge: Edge
    check: Callable[[str], bool] | None = None
    rest: Rest | None = None
    numbered: bool = True
    domain: tuple[str, ...] = ()


_TOKENS = (
    r"a(?:kia|sia|bia|cca)[a-z0-9]{16}",  # AWS
    r"gh[pousr]_[a-z0-9]{20}",
    r"github_pat_[a-z0-9_]{20}",
    r"glpat-[a-z0-9_-]{16}",
    r"xox[abeoprs]-[a-z0-9-]{10}",
    r"xapp-\d-[a-z0-9-]{10}",
    r"sk-[a-z0-9_-]{20}",  # OpenAI, Anthropic and others
    r"[rsp]k_(?:live|test)_[a-z0-9]{16}",  # Stripe
    r"aiza[a-z0-9_-]{30}",  # Google
    r"ya29\.[a-z0-9_-]{20}",
    r"hf_[a-z0-9]{20}",
    r"npm_[a-z0-9]{20}",
    r"pypi-[a-z0-9_-]{20}",
    r"sg\.[a-z0-9_-]{16,32}\.[a-z0-9_-]{16}",  # SendGrid
    r"dop_v1_[a-f0-9]{20}",
    r"accountkey=[a-z0-9+/]{20}",  # Azure storage
    r"eyj[a-z0-9_-]{8,300}\.eyj[a-z0-9_-]{4}",  # JSON web token
)

# What is open is held, so patterns begin with nothing that checks or edges rule out later: no sign before an address
# (`- ` begins a list, `'` a quotation), no first digit that no card has, no two letters that no IBAN begins with.
_DOMAIN = r"@(?:[a-z0-9](?:[a-z0-9-]|[\u0300-\u036f]){0,62}\.){1,4}[a-z]{2,24}"
_EMAIL = r"[a-z0-9_](?:[a-z0-9._%+'~-]|[\u0300-\u036f]){0,63}" + _DOMAIN
_PHONES = (
    r"\+\d(?:[ ()./-]{0,2}\d){6,14}",
    r"00[1-9](?:[ ()./-]{0,2}\d){7,13}",
    r"\(?\d{3}\)?[ .-]{1,2}\d{3}[ .-]\d{4}",
    r"\(?0\d{1,4}\)?[ /-]{1,2}\d{2,5}(?:[ -]?\d{2,5}){1,3}",
)
_IBAN = rf"(?:{'|'.join(checksums.IBAN_COUNTRIES)})\d{{2}}(?:[ ]?[a-z0-9]{{4}}){{2,7}}(?:[ ]?[a-z0-9]{{1,3}})?"
_CARD = r"[2-6](?:[ -]?\d){12,18}"
_IPV4 = r"(?:\d{1,3}\.){3}\d{1,3}"
_IPV6 = r"(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{0,4}|(?:\d{1,3}\.){3}\d{1,3})"
_PRIVATE_KEY = r"-----begin [a-z0-9 ]{0,30}private key(?: block)?-----"

DETECTORS: dict[str, Detector] = {
    "email": Detector("EMAIL", (_EMAIL,), "name", domain=(_DOMAIN,)),
    "phone": Detector("PHONE", _PHONES, "digit", checksums.is_phone),
    "iban": Detector("IBAN", (_IBAN,), "name", checksums.is_iban),
    "card": Detector("CARD", (_CARD,), "digit", checksums.is_card),
    "ipv4": Detector("IP", (_IPV4,), "digit", checksums.is_ipv4),
    "ipv6": Detector("IP", (_IPV6,), "name", checksums.is_ipv6),
    "private_key": Detector("PRIVATE_KEY", (_PRIVATE_KEY,), "none", rest=_KEY_REST, numbered=False),
    "token": Detector("TOKEN", _TOKENS, "name", rest=_TOKEN_REST),
}
