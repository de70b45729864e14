"""Errors as problem objects (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError
from starlette.responses import Response

from hinet.errors import did_you_mean, quoted

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

CONTENT_TYPE = "application/problem+json"
MAX_ERRORS = 20  # listed errors per request
MAX_DETAIL = 1_000  # characters

TITLES = {
    "invalid-body": "The body cannot be read",
    "invalid-request": "The request is invalid",
    "unauthorized": "A token is required",
    "wrong-host": "The host is not allowed",
    "not-found": "Not found",
    "method-not-allowed": "Method not allowed",
    "unsupported-type": "Unsupported content type",
    "slow-request": "The request arrived too slowly",
    "not-enabled": "This feature is not enabled",
    "too-large": "The request is too large",
    "busy": "Too many concurrent requests",
    "not-ready": "The service is not ready",
    "too-slow": "The request took too long",
    "store-unavailable": "The database cannot be read or written now",
    "internal-error": "Internal error",
}


@dataclass(frozen=True)
class FieldProblem:
    """An invalid field of a request, and why it is invalid."""

    field: str
    message: str


@dataclass
class ProblemError(Exception):
    """An error that is reported to the client."""

    status: int
    kind: str
    detail: str
    errors: Sequence[FieldProblem] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        """Return the problem as a response."""
        return Response(self.body(), self.status, dict(self.headers), CONTENT_TYPE)

    def body(self) -> bytes:
        """Return the problem as JSON."""
        return orjson.dumps(
            {
                "type": f"urn:hinet:problem:{self.kind}",
                "title": TITLES[self.kind],
                "status": self.status,
                "detail": self.detail[:MAX_DETAIL],
                "errors": [*self.errors],
            }
        )


def invalid(field: str, message: str, *, status: int = 422, kind: str = "invalid-request") -> ProblemError:
    """Return the problem of one field."""
    return ProblemError(status, kind, f"{field}: {message}", [FieldProblem(field, message)])


def text_too_long(field: str, max_length: int) -> ProblemError:
    """Return the problem of a text with too many characters."""
    return invalid(field, f"the text has more than {max_length:,} characters", status=413, kind="too-large")


def check_characters(field: str, text: str, where: str = "") -> None:
    """Raise ProblemError if exported tables cannot hold a text."""
    if "\0" in text:
        message = f"{where}{quoted(text)} has a NUL character, which is invalid in CSV files; remove it"
        raise invalid(field, message)


def fields_problem(errors: Sequence[FieldProblem]) -> ProblemError:
    """Return the problem of several fields."""
    detail = "; ".join(f"{error.field}: {error.message}" for error in errors)
    return ProblemError(422, "invalid-request", detail, errors)


def validation_problem(error: ValidationError, fields: Iterable[str]) -> ProblemError:
    """Return the problem of a body that is not valid JSON or has invalid fields; values are not repeated."""
    reasons = error.errors(include_url=False, include_input=False, include_context=False)
    if any(reason["type"] == "json_invalid" for reason in reasons):
        return ProblemError(400, "invalid-body", f"the body is not valid JSON: {reasons[0]['msg']}")
    known = list(fields)
    return fields_problem([FieldProblem(_path(each["loc"]), _message(each, known)) for each in reasons[:MAX_ERRORS]])


def _message(reason: ErrorDetails, fields: list[str]) -> str:
    """Return what is wrong; for an unknown field of the body, with the known ones."""
    if reason["type"] != "extra_forbidden" or len(reason["loc"]) != 1:
        return reason["msg"]
    return f"unknown field; expected one of {', '.join(fields)}{did_you_mean(str(reason['loc'][0]), fields)}"


def _path(location: tuple[Any, ...]) -> str:
    """Return the path of a value: ``texts[3]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "body"
