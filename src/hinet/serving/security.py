"""Access to the service: allowed hosts, tokens, and security headers for browsers.

With DNS rebinding, a page of another site makes its own host name resolve to this machine and then reads from the
service as if it were that site. Its requests have that name as ``Host``. Addresses and ``localhost`` cannot be rebound.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from hinet.errors import HiNetError, quoted
from hinet.serving.problems import ProblemError
from hinet.serving.settings import Settings

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"  # no CDN
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
NO_STORE = (b"cache-control", b"no-store")  # default of responses that set no cache-control
ANY = "*"
_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_HOST = re.compile(rf"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>{_NAME})\.?)(?::[0-9]{{0,5}})?", re.ASCII)
_ALLOWED = re.compile(rf"(?P<below>\*\.)?(?P<name>{_NAME})\.?", re.ASCII)


def check_token(header: bytes | None, digests: Iterable[bytes]) -> None:
    """Raise ProblemError unless a header has a bearer token of one of these digests, compared in constant time."""
    scheme, _, token = (header or b"").partition(b" ")
    digest = hashlib.sha256(token.strip()).digest()
    matches = [hmac.compare_digest(digest, known) for known in digests]
    if scheme.lower() != b"bearer" or not any(matches):
        detail = "the token is wrong" if header else "send a token in the header Authorization: Bearer TOKEN"
        raise ProblemError(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


@dataclass(frozen=True)
class Hosts:
    """Allowed hosts: addresses, ``localhost``, and the names in the settings; ports are ignored."""

    names: frozenset[str]
    domains: tuple[str, ...]  # each has a leading dot; all names below them are allowed
    any_name: bool

    @classmethod
    def of(cls, settings: Settings) -> Hosts:
        """Return the hosts that settings allow.

        Raises
        ------
        HiNetError
            If an allowed host is not a name.
        """
        names, domains = {"localhost", settings.host.lower()}, []
        for given in settings.allowed_hosts:
            allowed = _ALLOWED.fullmatch(given.lower())
            if allowed is not None and allowed["below"]:
                domains.append(f".{allowed['name']}")
            elif allowed is not None:
                names.add(allowed["name"])
            elif given != ANY:
                raise HiNetError(
                    "`allowed_host` must be a host name without scheme and port, such as hinet.example.com, "
                    f"*.example.com or *; got {quoted(given)}"
                )
        guarded = bool(settings.tokens) and not settings.allowed_hosts  # pages of other sites have no token
        return cls(frozenset(names), tuple(domains), guarded or ANY in settings.allowed_hosts)

    def check(self, headers: Iterable[tuple[bytes, bytes]], http_version: str) -> None:
        """Raise ProblemError unless a request names exactly one host, and an allowed one."""
        given = [value for name, value in headers if name == b"host"]
        if not given and http_version == "1.0":  # not used by browsers
            return
        if len(given) != 1:
            raise ProblemError(400, "invalid-request", f"expected one Host header, got {len(given)}")
        host = _parse_host(given[0].decode("latin-1"))
        if host is None:
            raise ProblemError(400, "invalid-request", "the Host header is not a host")
        if not (self.any_name or host in self.names or host.endswith(self.domains) or _is_address(host)):
            detail = f"the host {quoted(host)} is not allowed; start the service with --allowed-host {host}"
            raise ProblemError(421, "wrong-host", detail)


def _parse_host(value: str) -> str | None:
    """Return the host of a Host header in lower case, without its port; None if the header is invalid."""
    match = _HOST.fullmatch(value.lower())
    if match is None:
        return None
    if match["ipv6"] is None:
        return match["name"]
    try:
        return str(IPv6Address(match["ipv6"]))
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
