"""The endpoints, as a client sees them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from hinet import load
from hinet.serving import schemas
from hinet.serving.answers import Answerer
from hinet.serving.settings import Settings
from tests.serving.conftest import Service, rows, serving

TEXTS = [text for text, _ in rows(30, 7)]


def test_classify_answers_as_the_classifier_does(service: Service, shop: Path) -> None:
    answered = service.post("/v1/classify", {"texts": TEXTS, "top": 3})
    schemas.ClassifyResponse.model_validate(answered)
    for result, traces in zip(answered["results"], load(shop).predict_traces(TEXTS, 3), strict=True):
        assert [trace["label"] for trace in result["traces"]] == [trace.label for trace in traces]
        for trace, expected in zip(result["traces"], traces, strict=True):
            assert [step["node"] for step in trace["steps"]] == list(expected.steps)
            steps = [step["probability"] for step in trace["steps"]]
            assert steps == pytest.approx(expected.probabilities, abs=1e-6)
            assert trace["probability"] == pytest.approx(expected.probability, abs=1e-6)
        assert [label["node"] for label in result["labels"]] == [traces[0].steps[-1]]


def test_one_text_is_answered_as_among_many(service: Service) -> None:
    together = service.post("/v1/classify", {"texts": TEXTS, "siblings": 3})["results"]
    alone = [service.post("/v1/classify", {"text": text, "siblings": 3})["results"][0] for text in TEXTS]
    assert [one["labels"][0]["label"] for one in alone] == [one["labels"][0]["label"] for one in together]


def test_confidence_stops_a_trace(service: Service, shop: Path) -> None:
    texts = ["screen", "bread", "item1"]
    for threshold in (0.3, 0.6, 0.9):
        results = service.post("/v1/classify", {"texts": texts, "min_confidence": threshold})["results"]
        expected = load(shop).predict(texts, min_confidence=threshold)
        assert [one["labels"][0]["label"] if one["labels"] else None for one in results] == list(expected)
    service.post("/v1/classify", {"text": "screen", "min_confidence": "calibrated"})


def test_answers_stay_within_branches(service: Service, shop: Path) -> None:
    texts = ["screen", "bread", "item1"]
    asked = {"texts": texts, "top": 2, "within": ["food"], "exclude": ["milk"], "siblings": 3}
    results = service.post("/v1/classify", asked)["results"]
    expected = load(shop).predict_traces(texts, 2, within="food", exclude=["milk"])
    for result, traces in zip(results, expected, strict=True):
        assert [trace["label"] for trace in result["traces"]] == [trace.label for trace in traces]
        assert sum(trace["probability"] for trace in result["traces"]) == pytest.approx(1, abs=1e-5)
    assert service.problem(422, "/v1/classify", {"text": "a", "within": ["fod"]})["errors"][0]["field"] == "within"
    nothing = {"text": "a", "exclude": ["food", "electronics"]}
    assert service.problem(422, "/v1/classify", nothing)["errors"][0]["field"] == "exclude"


def test_a_blank_text_has_no_answer(service: Service) -> None:
    blank, other = service.post("/v1/classify", {"texts": [" ", "rye"], "unknown_words": True})["results"]
    assert blank == {"labels": [], "traces": [], "unknown_words": []}
    assert other["labels"]


def test_rows_are_read_by_column(service: Service) -> None:
    rows = service.post("/v1/classify", {"rows": [{"title": "dark bread", "price": 3}]})
    texts = service.post("/v1/classify", {"text": "dark bread"})
    assert rows["results"] == texts["results"]
    assert (
        service.problem(422, "/v1/classify", {"rows": [{"title": "a"}, {"name": "b"}]})["errors"][0]["field"]
        == "rows[1]"
    )
    assert service.problem(422, "/v1/classify", {"rows": [{"title": 3}]})["errors"][0]["field"] == "rows[0]"


def test_explanations_point_into_the_text(service: Service) -> None:
    text = "Dark, DARK bread of xyzzy"
    answered = service.post("/v1/explain", {"text": text, "words": 50})
    schemas.ExplainResponse.model_validate(answered)
    words = {reason["feature"]: reason["places"] for step in answered["steps"] for reason in step["reasons"]}
    assert [[text[start:end] for start, end in words["dark"]], words["dark bread"]] == [["Dark", "DARK"], [[6, 16]]]
    assert answered["unknown_words"] == [
        {"word": "of", "start": 17, "end": 19}, {"word": "xyzzy", "start": 20, "end": 25}
    ]  # fmt: skip
    for step in answered["steps"]:
        pushed = sum(reason["push"] for reason in step["reasons"]) + step["others"] + step["rest"]
        assert pushed == pytest.approx(step["difference"], abs=1e-4)
    other = service.post("/v1/explain", {"text": text, "node": "milk"})
    assert other["trace"]["node"] == "milk"
    assert service.problem(422, "/v1/explain", {"text": text, "node": "bread"})["errors"][0]["field"] == "node"


def test_the_taxonomy_is_shown_in_pages(service: Service) -> None:
    top = service.get("/v1/taxonomy")
    schemas.NodePage.model_validate(top)
    assert (top["node"], [child["node"] for child in top["children"]]) == (None, ["electronics", "food"])
    page = service.get("/v1/taxonomy", node="bread", offset=1, limit=1)
    assert [child["node"] for child in page["children"]] == ["white"]
    assert (page["total"], [above["node"] for above in page["ancestors"]]) == (2, ["food"])
    assert (page["node"]["is_label"], page["children"][0]["is_label"]) == (False, True)
    service.problem(404, "/v1/taxonomy?node=nothing")


@pytest.mark.parametrize(
    ("query", "nodes", "matched"),
    [
        ("RYE", ["rye"], "id"),
        ("bread", ["bread", "rye", "white"], "id"),
        ("telly", ["tv"], "synonym"),
        ("groceries", ["food"], "synonym"),
        ("drink food", ["food"], "title"),
        ("nothing like it", [], ""),
        ("  ", [], ""),
    ],
)
def test_the_taxonomy_is_searched(service: Service, query: str, nodes: list[str], matched: str) -> None:
    found = service.get("/v1/taxonomy/search", q=query)
    schemas.MatchPage.model_validate(found)
    assert [match["node"] for match in found["matches"]] == nodes
    assert not nodes or found["matches"][0]["matched"] == matched


def test_models_are_described(service: Service) -> None:
    listed = schemas.ModelList.model_validate(service.get("/v1/models"))
    assert (listed.models[0].name, listed.models[0].labels, listed.models[0].columns) == ("shop", 6, ["title"])
    assert "Rye bread" in listed.models[0].examples
    assert schemas.ModelDetails.model_validate(service.get("/v1/models/shop")).evaluation is None
    service.problem(404, "/v1/models/other")
    service.problem(404, "/v1/classify", {"model": "other", "text": "a"})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": "a", "tops": 3}, "tops"),
        ({"text": 3}, "text"),
        ({"texts": ["a", None]}, "texts[1]"),
        ({"texts": []}, "texts"),
        ({"text": "a", "top": 0}, "top"),
        ({"text": "a", "top": "3"}, "top"),
        ({"text": "a", "texts": ["b"]}, "texts"),
        ({}, "text"),
        ([], "body"),
    ],
)
def test_wrong_fields_are_named(service: Service, body: object, field: str) -> None:
    problem = service.problem(422, "/v1/classify", body)
    assert problem["errors"][0]["field"].startswith(field)
    assert field in problem["detail"] or field == "body"


def test_an_unknown_field_is_reported_with_the_known_ones(service: Service) -> None:
    detail = service.problem(422, "/v1/classify", {"txt": "a"})["detail"]
    assert detail.startswith("txt: unknown field; expected one of model, text, ")
    assert detail.endswith("; did you mean 'text'?")


def test_limits_of_size(service: Service) -> None:
    assert service.problem(413, "/v1/classify", {"texts": ["a"] * 51})["errors"][0]["field"] == "texts"
    assert service.problem(413, "/v1/classify", {"texts": ["a", "b" * 1_001]})["errors"][0]["field"] == "texts[1]"
    service.problem(413, "/v1/classify", {"text": "a" * (1 << 20)})


@pytest.mark.parametrize("content", [b"", b"{", b'{"text": "\xff"}', b'{"text": "\\ud800"}', b"[" * 100_000])
def test_invalid_json_is_reported(service: Service, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = service.client.post("/v1/classify", content=content, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:hinet:problem:invalid-body")


def test_other_methods_types_and_paths(service: Service) -> None:
    assert service.client.delete("/v1/classify").status_code == 405
    assert service.client.post("/v1/classify", data={"text": "a"}).status_code == 415
    assert service.client.post("/v1/explain", content=b"{}").status_code == 415
    for path in (
        "/v1",
        "/v1/",
        "/v2/classify",
        "/v1/classify/",
        "/%2e%2e/etc/passwd",
        "/..%2fapp.py",
        "/app.py",
        "/%00",
    ):
        assert service.client.get(path).status_code in (404, 405), path
    assert service.problem(422, "/v1/taxonomy?nodes=a")["errors"][0]["field"] == "nodes"


def test_every_answer_has_security_headers(service: Service) -> None:
    for path in ("/", "/v1/models", "/v1/nothing", "/health", "/openapi.json"):
        headers = service.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
    assert "access-control-allow-origin" not in service.client.options("/v1/classify", headers={"origin": "x"}).headers
    assert service.client.get("/v1/models").headers["cache-control"] == "no-store"


def test_the_page_is_served_with_its_type_and_tag(service: Service) -> None:
    index = service.client.get("/")
    assert index.text.startswith("<!doctype html>")
    assert (index.headers["content-type"], index.headers["cache-control"]) == ("text/html; charset=utf-8", "no-cache")
    again = service.client.get("/", headers={"if-none-match": index.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert service.client.get("/js/main.js").headers["content-type"] == "text/javascript; charset=utf-8"
    assert service.client.head("/index.html").status_code == 200
    assert service.client.get("/js").status_code == 404


def test_the_endpoints_have_a_page_of_their_own(service: Service) -> None:
    page = service.client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.text == service.client.get("/docs.html").text
    links = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert "js/docs.js" in links
    for link in links:
        assert service.client.get(f"/{link.removeprefix('./')}").status_code == 200, link  # none at another address
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page.text)  # which the policy refuses


def test_metrics_count_requests_without_input_from_clients(service: Service) -> None:
    service.client.get("/some/path/of/mine")
    service.post("/v1/classify", {"text": "secret words"})
    figures = service.client.get("/metrics").text
    assert 'hinet_requests_total{endpoint="/v1/classify",status="200"}' in figures
    assert 'hinet_texts_total{model="shop"}' in figures
    assert "secret" not in figures
    assert "of/mine" not in figures


def test_tokens(shop: Path) -> None:
    digests = frozenset(hashlib.sha256(token).digest() for token in (b"first", b"second"))
    for service in serving(Settings({"shop": shop}, tokens=digests)):
        for headers in ({}, {"authorization": "Bearer third"}, {"authorization": "Basic first"}, {"authorization": ""}):
            answer = service.client.post("/v1/classify", json={"text": "a"}, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert service.client.get("/metrics", headers=headers).status_code == 401
        for token in ("first", "second"):
            service.post("/v1/classify", {"text": "a"}, headers={"authorization": f"Bearer {token}"})
        for path in ("/health", "/docs", "/openapi.json"):
            assert service.client.get(path).status_code == 200


def test_models_are_chosen_by_name(shop: Path) -> None:
    for service in serving(Settings({"one": shop, "two": shop})):
        assert service.post("/v1/classify", {"text": "a"})["model"] == "one"
        assert service.post("/v1/classify", {"text": "a", "model": "two"})["model"] == "two"
        assert [model["name"] for model in service.get("/v1/models")["models"]] == ["one", "two"]


def test_disabled_features_are_reported(shop: Path) -> None:
    for service in serving(Settings({"shop": shop})):
        service.problem(409, "/v1/feedback", {"text": "a", "verdict": "accept", "nodes": ["rye"]})
        service.problem(409, "/v1/review")


def test_too_many_concurrent_requests_get_429(shop: Path) -> None:
    for service in serving(Settings({"shop": shop}, max_requests=0)):
        answer = service.client.post("/v1/classify", json={"text": "a"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert service.client.get("/health").status_code == 200
    for service in serving(Settings({"shop": shop}, max_files=0)):
        service.problem(429, "/v1/classify/file", content=b"title\nrye\n")
        service.post("/v1/classify", {"text": "a"})


def test_requests_that_take_too_long_are_ended(shop: Path) -> None:
    for service in serving(Settings({"shop": shop}, seconds=1e-6)):
        service.problem(503, "/v1/classify", {"text": "a"})


def test_texts_of_users_are_logged_only_on_request(shop: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hinet.serving")
    for log_texts in (False, True):
        caplog.clear()
        for service in serving(Settings({"shop": shop}, log_requests=True, log_texts=log_texts)):
            service.post("/v1/classify", {"text": "secret words"})
            service.client.get("/v1/taxonomy/search", params={"q": "secret words"})
            service.problem(422, "/v1/classify", {"text": "secret words", "top": 0})
        assert "/v1/classify 200" in caplog.text
        assert ("secret" in caplog.text) == log_texts


@pytest.mark.parametrize("forged", ["\n", "\r", "\x1b[2J", "\x9b2J", "\u2028", "\u202e", "\0"])
def test_texts_cannot_forge_lines_of_the_log(forged: str, shop: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hinet.serving")
    for service in serving(Settings({"shop": shop}, log_texts=True, log_requests=True)):
        body = f'{{"text": "bread",{forged}2026-11-17 INFO ready: all"}}'.encode()
        service.client.post("/v1/classify", content=body, headers={"content-type": "application/json"})
    (line,) = [record.getMessage() for record in caplog.records if "/v1/classify" in record.getMessage()]
    assert "2026-11-17 INFO ready: all" in line
    assert line.isprintable()


def test_error_messages_cannot_forge_lines_of_the_log(
    shop: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(answerer: Answerer, inputs: list[str], *others: object) -> None:
        raise RuntimeError(inputs[0])

    for service in serving(Settings({"shop": shop}, log_texts=True)):
        monkeypatch.setattr(Answerer, "explain", fail)
        service.problem(500, "/v1/explain", {"text": "bread\n2026-11-17 INFO ready: all"})
    assert "bread\\n2026-11-17 INFO ready: all" in caplog.text
    assert "\n2026-11-17 INFO" not in caplog.text
