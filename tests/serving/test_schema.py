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

from hinet import Taxonomy
from hinet.labelling.folder import ProjectSettings, create_project
from hinet.labelling.training import train
from hinet.serving import labelling_schemas, schemas
from hinet.serving.app import create_app
from hinet.serving.settings import Settings
from hinet.serving.tables import TYPES
from tests.serving.process import running

DOCS = Path(__file__).parents[2] / "docs"
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


@schemathesis.serializer("application/x-ndjson", TYPES["parquet"], TYPES["xlsx"])
def as_it_is(context: Any, value: Any) -> Any:
    """Send a table as bytes."""
    return value if isinstance(value, bytes) else json.dumps(value, default=str).encode()


@pytest.fixture(scope="module")
def address(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = tmp_path_factory.mktemp("store") / "feedback.db"
    folder = shop.parent / "nodes.csv"
    made, _ = create_project(
        store.parent / "labels", Taxonomy.from_file(folder), [f"row {number}" for number in range(50)],
        ProjectSettings(vectors=None),
    )  # fmt: skip
    train(made)
    with running({"shop": shop}, feedback=store, review=10, project=made.path) as service:
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


LABELLING_KINDS: dict[str, tuple[type[BaseModel], ...]] = {
    "GET /v1/project": (labelling_schemas.Project,),
    "POST /v1/project/next": (labelling_schemas.NextRequest, labelling_schemas.NextResponse),
    "POST /v1/project/labels": (*[labelling_schemas.LabelRequest] * 3, labelling_schemas.LabelResponse),
    "GET /v1/project/labels": (labelling_schemas.LabelPage,),
    "GET /v1/project/progress": (labelling_schemas.Progress,),
    "GET /v1/project/disagreements": (labelling_schemas.DisagreementPage,),
    "POST /v1/project/rows": (labelling_schemas.RowsRequest, labelling_schemas.RowsResponse),
}


@pytest.mark.parametrize(("page", "kinds"), [("serving.md", KINDS), ("labelling.md", LABELLING_KINDS)])
def test_every_documented_example_matches_the_schema(page: str, kinds: dict[str, tuple[type[BaseModel], ...]]) -> None:
    sections = re.split(r"^##+ ", (DOCS / page).read_text(), flags=re.MULTILINE)
    examples = {
        section.partition("\n")[0].strip("`"): re.findall(r"```json\n(.*?)```", section, re.DOTALL)
        for section in sections
    }
    assert {name: len(each) for name, each in kinds.items()} == {
        name: len(found) for name, found in examples.items() if found
    }
    for name, each in kinds.items():
        for kind, text in zip(each, examples[name], strict=True):
            kind.model_validate(json.loads(text))
