"""Secrets that are planted, and the forms in which they could be found again."""

from __future__ import annotations

import base64
from urllib.parse import quote, unquote


def forms(secret: str) -> set[str]:
    """Return how a secret may be written: as it is, percent-encoded, in base64 (at any offset) and in hexadecimal.

    >>> "cGFzc" in forms("pass"), "70617373" in forms("pass"), "a%2Fb" in forms("a/b")
    (True, True, True)
    """
    raw = secret.encode()
    encoded = set()
    for offset in range(3):  # base64 of a text that contains it: the letters that the secret alone decides
        first = -(-offset * 8 // 6) if offset else 0
        letters = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        encoded.add(letters[first : (offset + len(raw)) * 8 // 6])
    safe = {each.replace("+", "-").replace("/", "_") for each in encoded}
    return {secret, quote(secret), quote(secret, safe=""), unquote(secret), raw.hex(), *encoded, *safe}


def found_in(text: str, secret: str) -> list[str]:
    """Return where a text shows a secret in any form, with what stands around it."""
    lower, found = text.lower(), []
    for form in forms(secret):
        exact = form if form in text else None
        place = text.find(form) if exact else lower.find(form.lower()) if "%" in form else -1
        if place >= 0:
            found.append(text[max(0, place - 150) : place + len(form) + 50])
    return found
