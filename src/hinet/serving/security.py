"""Tokens, and the headers that tell browsers what a page of the service may do."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from hinet.serving.problems import ProblemError

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"  # no CDN
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
NO_STORE = (b"cache-control", b"no-store")  # of whatever does not say how long it may be kept


def check_token(header: bytes | None, digests: Iterable[bytes]) -> None:
    """Raise ProblemError unless a header has a bearer token of one of these digests, compared in constant time."""
    scheme, _, token = (header or b"").partition(b" ")
    digest = hashlib.sha256(token.strip()).digest()
    matches = [hmac.compare_digest(digest, known) for known in digests]
    if scheme.lower() != b"bearer" or not any(matches):
        detail = "the token is wrong" if header else "give a token in the header Authorization: Bearer TOKEN"
        raise ProblemError(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
