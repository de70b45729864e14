"""The service does what its OpenAPI document says, and the documentation shows what the schemas allow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import settings
from pydantic import BaseModel
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from hinet.serving import schemas
from hinet.serving.app import create_app
from hinet.serving.settings import Settings
from tests.serving.process import running

DOCS = Path(__file__).parents[2] / "docs" / "serving.md"
EXAMPLES = 25  # per endpoint
CHECKS = [
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


document = TestClient(create_app(Settings({})), base_url="http://localhost").get("/openapi.json").json()
schema = schemathesis.openapi.from_dict(document)


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.parquet")
def as_it_is(context: Any, value: Any) -> Any:
    """Send a table as bytes."""
    return value if isinstance(value, bytes) else json.dumps(value, default=str).encode()


@pytest.fixture(scope="module")
def address(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = tmp_path_factory.mktemp("store") / "feedback.db"
    with running({"shop": shop}, feedback=store, review=10) as service:
        yield f"http://127.0.0.1:{service.port}"


@schema.parametrize()
@settings(max_examples=EXAMPLES)
def test_the_service_conforms_to_its_schema(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(address, checks=CHECKS, timeout=60)


KINDS: dict[str, tuple[type[BaseModel], ...]] = {
    "POST /v1/classify": (schemas.ClassifyRequest, schemas.ClassifyResponse),
    "POST /v1/explain": (schemas.ExplainRequest, schemas.ExplainResponse),
    "GET /v1/taxonomy": (schemas.NodePage,),
    "GET /v1/taxonomy/search": (schemas.MatchPage,),
    "POST /v1/feedback": (schemas.FeedbackRequest, schemas.FeedbackResponse),
    "GET /v1/feedback": (schemas.FeedbackPage,),
    "GET /v1/review": (schemas.ReviewPage,),
    "GET /v1/models": (schemas.ModelList,),
    "GET /v1/models/{name}": (schemas.Evaluation,),
    "Problems": (schemas.Problem,),
}


def test_every_documented_example_matches_the_schema() -> None:
    sections = re.split(r"^##+ ", DOCS.read_text(), flags=re.MULTILINE)
    examples = {
        section.partition("\n")[0].strip("`"): re.findall(r"```json\n(.*?)```", section, re.DOTALL)
        for section in sections
    }
    assert {name: len(kinds) for name, kinds in KINDS.items()} == {
        name: len(found) for name, found in examples.items() if found
    }
    for name, kinds in KINDS.items():
        for kind, text in zip(kinds, examples[name], strict=True):
            kind.model_validate(json.loads(text))
