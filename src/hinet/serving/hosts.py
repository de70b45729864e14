"""Which hosts the service answers for.

By DNS rebinding, a page of another site makes its own host name lead to this machine and then reads from the service as
if it were that site. Its requests have that name as ``Host``. Addresses and ``localhost`` cannot be rebound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from hinet.errors import HiNetError, quoted
from hinet.serving.problems import ProblemError
from hinet.serving.settings import Settings

ANY = "*"
_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_HOST = re.compile(rf"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>{_NAME})\.?)(?::[0-9]{{0,5}})?", re.ASCII)
_ALLOWED = re.compile(rf"(?P<below>\*\.)?(?P<name>{_NAME})\.?", re.ASCII)


@dataclass(frozen=True)
class Hosts:
    """Addresses, ``localhost``, and the names that the service was started with; ports do not matter."""

    names: frozenset[str]
    domains: tuple[str, ...]  # each with a dot in front; names below them are allowed
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
        guarded = bool(settings.tokens) and not settings.allowed_hosts  # a page elsewhere has no token
        return cls(frozenset(names), tuple(domains), guarded or ANY in settings.allowed_hosts)

    def check(self, headers: Iterable[tuple[bytes, bytes]], http_version: str) -> None:
        """Raise ProblemError unless a request names one host, and that is one of these."""
        given = [value for name, value in headers if name == b"host"]
        if not given and http_version == "1.0":  # which browsers do not speak
            return
        if len(given) != 1:
            raise ProblemError(400, "invalid-request", f"expected one Host header, got {len(given)}")
        host = _parsed(given[0].decode("latin-1"))
        if host is None:
            raise ProblemError(400, "invalid-request", "the Host header is not a host")
        if not self._allows(host):
            detail = f"this service does not answer for {quoted(host)}; start it with --allowed-host {host}"
            raise ProblemError(421, "wrong-host", detail)

    def _allows(self, host: str) -> bool:
        return self.any_name or host in self.names or host.endswith(self.domains) or _is_address(host)


def _parsed(value: str) -> str | None:
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
