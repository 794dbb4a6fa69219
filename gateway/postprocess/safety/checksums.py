"""Tells numbers that only look right from those that are: check digits, ranges, lengths."""

from __future__ import annotations

import ipaddress
import re

_DATE = re.compile(r"\d{1,2}([-/. ])\d{1,2}\1\d{4}")

# Lengths of IBANs by country (SWIFT's registry, release 99).
_LENGTHS = {
    15: "no",
    16: "be",
    18: "dk fi fk fo gl nl sd",
    19: "mk si",
    20: "at ba ee kz lt lu mn xk",
    21: "ch hr li lv",
    22: "bg bh cr de gb ge ie me rs va",
    23: "ae gi il iq om so tl",
    24: "ad cz es md pk ro sa se sk tn vg",
    25: "ly pt st",
    26: "is tr",
    27: "bi dj fr gr it mc sm",
    28: "al az by cy do gt hn hu lb ni pl sv",
    29: "br eg ps qa ua",
    30: "jo kw mu ye",
    31: "mt sc",
    32: "lc",
    33: "ru",
}
_IBAN_LENGTHS = {country: length for length, countries in _LENGTHS.items() for country in countries.split()}

# Countries whose banks write such numbers without being in the registry: check digits only.
_UNLISTED = "ao bf bj cf cg ci cm cv dz ga gq gw ir km ma mg ml mz ne sn td tg".split()

IBAN_COUNTRIES = sorted({*_IBAN_LENGTHS, *_UNLISTED})


def is_card(folded: str) -> bool:
    """Tell whether a number has the first digit of a payment card and passes Luhn's check."""
    digits = [int(char) for char in folded if char.isdigit()]
    if not 13 <= len(digits) <= 19 or digits[0] not in (2, 3, 4, 5, 6):
        return False
    doubled = (digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2])
    return (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def is_iban(folded: str) -> bool:
    """Tell whether an account number has the length of its country and the right check digits (ISO 13616, mod 97)."""
    text = folded.replace(" ", "")
    if not 15 <= len(text) <= 34 or len(text) != _IBAN_LENGTHS.get(text[:2], len(text)):
        return False
    return int("".join(str(int(char, 36)) for char in text[4:] + text[:4])) % 97 == 1


def is_phone(folded: str) -> bool:
    """Tell whether a number has as many digits as a telephone number (E.164) and is not a date."""
    return 7 <= sum(char.isdigit() for char in folded) <= 15 and not _DATE.fullmatch(folded)


def is_ipv4(folded: str) -> bool:
    """Tell whether a dotted quad is an address."""
    return all(int(part) <= 255 for part in folded.split("."))


def is_ipv6(folded: str) -> bool:
    """Tell whether hexadecimal groups are an address; without any digit it is more likely a name (`dead::beef`)."""
    try:
        ipaddress.IPv6Address(folded)
    except ValueError:
        return False
    return any(char.isdigit() for char in folded)
