"""Errors as problem objects (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from hinet.errors import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

CONTENT_TYPE = "application/problem+json"
MOST_ERRORS = 20  # of one request that are listed
LONGEST_DETAIL = 1_000  # characters

TITLES = {
    "invalid-body": "The body cannot be read",
    "invalid-request": "The request is invalid",
    "unauthorized": "A token is needed",
    "wrong-host": "The service does not answer for this host",
    "not-found": "Not found",
    "method-not-allowed": "Another method is needed",
    "unsupported-type": "Another type of content is needed",
    "slow-request": "The request came too slowly",
    "not-enabled": "The service was started without this",
    "too-large": "The request is too large",
    "busy": "Too many requests at once",
    "not-ready": "The service is not ready",
    "too-slow": "The request took too long",
    "store-unavailable": "Feedback cannot be read or written now",
    "internal-error": "The service failed",
}


@dataclass(frozen=True)
class FieldProblem:
    """What is wrong with a field of a request."""

    field: str
    message: str


@dataclass
class ProblemError(Exception):
    """An error that a client is told."""

    status: int
    kind: str
    detail: str
    errors: Sequence[FieldProblem] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """Return the problem as JSON."""
        return orjson.dumps(
            {
                "type": f"urn:hinet:problem:{self.kind}",
                "title": TITLES[self.kind],
                "status": self.status,
                "detail": self.detail[:LONGEST_DETAIL],
                "errors": [{"field": error.field, "message": error.message} for error in self.errors],
            }
        )


def invalid(field: str, message: str, *, status: int = 422, kind: str = "invalid-request") -> ProblemError:
    """Return the problem of one field."""
    return ProblemError(status, kind, f"{field}: {message}", [FieldProblem(field, message)])


def of_validation(error: ValidationError, fields: Iterable[str]) -> ProblemError:
    """Return the problem of a body that is no JSON, or has not the fields that it may have; no value is repeated."""
    reasons = error.errors(include_url=False, include_input=False, include_context=False)
    if any(reason["type"] == "json_invalid" for reason in reasons):
        return ProblemError(400, "invalid-body", f"the body is no valid JSON: {reasons[0]['msg']}")
    known = list(fields)
    errors = [FieldProblem(_path(reason["loc"]), _message(reason, known)) for reason in reasons[:MOST_ERRORS]]
    return of_fields(errors)


def _message(reason: ErrorDetails, fields: list[str]) -> str:
    """Return what is wrong, for a field of the body that is unknown with those that there are."""
    if reason["type"] != "extra_forbidden" or len(reason["loc"]) != 1:
        return reason["msg"]
    return f"unknown field; expected one of {', '.join(fields)}{did_you_mean(str(reason['loc'][0]), fields)}"


def of_fields(errors: Sequence[FieldProblem]) -> ProblemError:
    """Return the problem of some fields."""
    return ProblemError(
        422, "invalid-request", "; ".join(f"{error.field}: {error.message}" for error in errors), errors
    )


def _path(location: tuple[Any, ...]) -> str:
    """Return where a value stands: ``texts[3]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "body"
