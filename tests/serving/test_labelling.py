"""The endpoints of a labelling project."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hinet import Taxonomy
from hinet.errors import HiNetError
from hinet.labelling.folder import ProjectFolder, ProjectSettings, create_project
from hinet.labelling.project import Project
from hinet.labelling.training import train
from hinet.serving import labelling_schemas as schemas
from hinet.serving.settings import Settings
from tests.processes import wait_until
from tests.serving.conftest import NODES, WORDS, Service, rows, serving

TEXTS = [text for text, _ in rows(120, 3)]


def truth(text: str) -> str:
    """Return the right label of a text."""
    return max(WORDS, key=lambda label: len({*WORDS[label].split()} & {*text.split()}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a first model, which tests must not change."""
    folder = tmp_path_factory.mktemp("labelling")
    (folder / "nodes.csv").write_text(NODES)
    made, _ = create_project(
        folder / "shop", Taxonomy.from_file(folder / "nodes.csv"), TEXTS, ProjectSettings(vectors="wordllama")
    )
    train(made)
    return made.path


@pytest.fixture
def project(trained: Path, tmp_path: Path) -> Path:
    """A copy of the project to change."""
    return shutil.copytree(trained, tmp_path / "shop")


@pytest.fixture
def service(project: Path) -> Iterator[Service]:
    yield from serving(Settings({}, project=project, poll=0.05))


def give(service: Service, row: int, node: str, who: str = "Ada", **more: Any) -> Any:
    return service.post("/v1/project/labels", {"annotator": who, "id": row, "nodes": [node], **more})


def next_rows(service: Service, count: int = 1, who: str = "Ada") -> list[Any]:
    answer = service.post("/v1/project/next", {"annotator": who, "count": count})
    schemas.NextResponse.model_validate(answer)
    return list(answer["rows"])


def test_labels_are_predicted_first_remembered_at_once_and_forgotten_again(service: Service) -> None:
    row = service.post("/v1/project/rows", {"texts": ["zzyx wireless telly", TEXTS[0]]})
    assert row == {"ids": [len({*TEXTS}) + 1, 1], "added": 1}
    (number, _), text = row["ids"], {"text": "zzyx wireless telly"}
    before = service.post("/v1/classify", text)["results"][0]
    given = give(service, number, "milk", note="odd")
    schemas.LabelResponse.model_validate(given)
    assert given["predicted"] == [before["labels"][0]["node"]] != ["milk"]
    assert (given["right"], given["learned"]) == (False, True)
    assert given["probability"] == pytest.approx(before["labels"][0]["probability"])
    assert service.post("/v1/classify", text)["results"][0]["labels"][0]["node"] == "milk"
    again = give(service, number, "rye")
    assert (again["predicted"], again["right"]) == (["milk"], False)
    labels = service.get("/v1/project/labels", annotator="Ada")
    schemas.LabelPage.model_validate(labels)
    assert [(each["label_id"], each["nodes"][0]["title"]) for each in labels["items"]] == [(2, "Rye bread")]
    assert service.client.delete("/v1/project/labels/1").status_code == 404  # replaced
    assert service.client.delete("/v1/project/labels/2").status_code == 204
    assert service.post("/v1/classify", text)["results"][0]["labels"][0]["node"] == "milk"  # the first counts again
    assert service.client.delete("/v1/project/labels/1").status_code == 204
    assert service.post("/v1/classify", text)["results"][0]["labels"] == before["labels"]
    assert service.client.delete("/v1/project/labels/1").status_code == 404
    history = list(csv.DictReader(io.StringIO(service.client.get("/v1/project/history.csv").text)))
    assert [(line["label_id"], line["nodes"], bool(line["undone"]), line["note"]) for line in history] == [
        ("1", "milk", True, "odd"), ("2", "rye", True, ""),
    ]  # fmt: skip


def test_each_row_is_lent_once_with_its_best_answers(service: Service) -> None:
    lent = [row["id"] for _ in range(3) for who in ("Ada", "Bob") for row in next_rows(service, 20, who)]
    assert len({*lent}) == len(lent)
    left = service.get("/v1/project")["left"]
    assert left == len({*TEXTS})
    service.post("/v1/project/labels", {"annotator": "Ada", "id": lent[0], "skip": True})
    assert service.get("/v1/project")["left"] == left - 1


def test_the_best_answers_have_steps_and_the_nearest_known_text_of_their_node(service: Service) -> None:
    (row,) = next_rows(service)
    assert len(row["best"]) == 5
    probabilities = [each["probability"] for each in row["best"]]
    assert probabilities == sorted(probabilities, reverse=True)
    for each in row["best"]:
        assert each["steps"][-1]["node"] == each["node"]
        assert each["nearest"]["node"] == each["node"]
    answered = service.post("/v1/classify", {"text": row["text"], "top": 5})["results"][0]["traces"]
    assert [each["node"] for each in row["best"]] == [each["node"] for each in answered]


def test_rows_are_lent_again_by_their_ids_with_new_answers(service: Service) -> None:
    first, second = service.post("/v1/project/rows", {"texts": ["zzyx telly", "zzyx telly set"]})["ids"]

    def lent(*ids: int) -> list[Any]:
        answer = service.post("/v1/project/next", {"annotator": "Ada", "ids": ids})
        schemas.NextResponse.model_validate(answer)
        return list(answer["rows"])

    before = lent(second, first)
    assert [(row["id"], row["reason"]) for row in before] == [(second, "requested"), (first, "requested")]
    give(service, first, "milk")
    (after,) = lent(second)
    assert before[0]["best"][0]["node"] != "milk"
    assert (after["best"][0]["node"], after["best"][0]["nearest"]["text"]) == ("milk", "zzyx telly")
    (drawn,) = next_rows(service)
    assert [row["reason"] for row in lent(drawn["id"])] == [drawn["reason"]]
    others = [row["id"] for _ in range(3) for row in next_rows(service, 50, "Bob")]
    assert not {second, drawn["id"]} & {*others}
    problem = service.client.post("/v1/project/next", json={"annotator": "Ada", "ids": [first, 9_999]})
    assert (problem.status_code, "9999" in problem.json()["detail"]) == (404, True)


def test_tables_escape_formulas_if_asked(service: Service) -> None:
    (row,) = service.post("/v1/project/rows", {"texts": ["=1+1"]})["ids"]
    give(service, row, "milk", "@Ada", note="+x")
    for table in ("labels", "history"):
        for escape, start in ((False, ""), (True, "'")):
            answer = service.client.get(f"/v1/project/{table}.csv", params={"escape_formulas": escape})
            (line,) = csv.DictReader(io.StringIO(answer.text))
            assert [line[name] for name in ("text", "annotator", "note")] == [
                f"{start}=1+1",
                f"{start}@Ada",
                f"{start}+x",
            ]


def test_the_model_is_retrained_without_a_failed_request_and_remembers_later_labels(service: Service) -> None:
    first = service.get("/v1/project")
    schemas.Project.model_validate(first)
    assert (first["model"]["rows"], first["next_training"], first["labels_since_training"]) == (0, 25, 0)
    for row in next_rows(service, 25):
        give(service, row["id"], truth(row["text"]))
    late = next_rows(service, 1)[0]

    def is_retrained() -> bool:
        answer = service.post("/v1/classify", {"text": "cow litre"})
        assert answer["results"][0]["labels"]
        return bool(service.get("/v1/project")["model"]["rows"])

    wait_until(lambda: service.get("/v1/project")["retraining"] or is_retrained(), 60)
    give(service, late["id"], "milk")
    wait_until(is_retrained, 120)
    after = service.get("/v1/project")
    assert after["retraining_problem"] is None
    assert (after["model"]["rows"], after["labelled"]) in ((25, 26), (26, 26))
    assert after["model"]["version"] != first["model"]["version"]
    assert after["labels_since_training"] == 26 - after["model"]["rows"]
    assert service.post("/v1/classify", {"text": late["text"]})["results"][0]["labels"][0]["node"] == "milk"
    progress = service.get("/v1/project/progress")
    schemas.Progress.model_validate(progress)
    assert (progress["labels"], len(progress["curve"])) == (26, 2)
    wait_until(lambda: service.get("/v1/project")["scored"] == 1, 60)


def test_people_disagree_until_one_settles(service: Service) -> None:
    for row in (1, 2, 3):
        give(service, row, "rye")
        give(service, row, "rye" if row > 1 else "white", "Bob")
    page = service.get("/v1/project/disagreements")
    schemas.DisagreementPage.model_validate(page)
    assert [(each["id"], [label["annotator"] for label in each["labels"]]) for each in page["items"]] == [
        (1, ["Ada", "Bob"])
    ]
    agreement = service.get("/v1/project/progress")["agreement"]
    assert (agreement["rows"], agreement["agreed"]) == (3, pytest.approx(2 / 3))
    give(service, 1, "milk", "Cy", settle=True)
    assert service.get("/v1/project")["disagreements"] == 0
    text = service.client.get("/v1/project/labels.csv").text
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [(line["id"], line["label"], line["annotator"]) for line in lines] == [
        ("1", "milk", "Cy"), ("2", "rye", "Bob"), ("3", "rye", "Bob"),
    ]  # fmt: skip
    assert service.post("/v1/classify", {"text": TEXTS[0]})["results"][0]["labels"][0]["node"] == "milk"


@pytest.mark.parametrize(
    ("status", "body", "field"),
    [
        (422, {"id": 1}, "nodes"),
        (422, {"id": 1, "nodes": ["nothing"]}, "nodes[0]"),
        (422, {"id": 1, "nodes": ["rye", "milk"]}, "nodes"),
        (422, {"id": 1, "nodes": ["rye"], "skip": True}, "skip"),
        (422, {"id": 1, "nodes": ["rye"], "settle": True}, "settle"),
        (422, {"id": 1, "nodes": ["rye"], "annotator": " "}, "annotator"),
        (422, {"id": 1, "nodes": ["rye"], "note": "\0"}, "note"),
        (404, {"id": 999, "nodes": ["rye"]}, "id"),
    ],
)
def test_an_invalid_label_is_a_problem_that_names_the_field(
    trained: Path, shared: Service, status: int, body: dict[str, Any], field: str
) -> None:
    problem = shared.problem(status, "/v1/project/labels", {"annotator": "Ada", **body})
    assert problem["errors"][0]["field"] == field


@pytest.fixture(scope="module")
def shared(trained: Path) -> Iterator[Service]:
    yield from serving(Settings({}, project=trained))


def test_blank_rows_are_refused_and_a_service_says_that_it_has_a_project(shared: Service) -> None:
    assert shared.problem(422, "/v1/project/rows", {"texts": ["a", " "]})["errors"][0]["field"] == "texts[1]"
    assert shared.get("/v1/models")["service"]["project"] is True
    assert shared.get("/v1/models")["models"][0]["name"] == "shop"


def test_an_inner_node_may_be_right_and_counts_from_the_next_training_on(project: Path) -> None:
    for served in serving(Settings({}, project=project)):
        assert give(served, 5, "bread")["learned"] is False
    train(ProjectFolder(project))
    for served in serving(Settings({}, project=project)):
        assert served.get("/v1/project")["model"]["rows"] == 1
        assert served.post("/v1/classify", {"text": TEXTS[4]})["results"][0]["labels"][0]["node"] == "bread"


def test_undoing_a_label_that_the_model_was_trained_on_is_news_to_it(project: Path) -> None:
    odd = {"text": "zzyx"}
    for served in serving(Settings({}, project=project)):
        (row,) = served.post("/v1/project/rows", {"texts": [odd["text"]]})["ids"]
        give(served, row, "milk")
        wrong, alone = give(served, row, "rye", "Bob"), give(served, 3, "milk")
        undone = give(served, 4, "milk")
        served.client.delete(f"/v1/project/labels/{undone['label_id']}")
    train(ProjectFolder(project))
    for served in serving(Settings({}, project=project)):
        assert served.get("/v1/project")["labels_since_training"] == 0
        assert served.post("/v1/classify", odd)["results"][0]["labels"][0]["node"] == "rye"
        served.client.delete(f"/v1/project/labels/{wrong['label_id']}")
        assert served.post("/v1/classify", odd)["results"][0]["labels"][0]["node"] == "milk"
        served.client.delete(f"/v1/project/labels/{alone['label_id']}")
        assert served.get("/v1/project")["labels_since_training"] == 2
    train(ProjectFolder(project))
    for served in serving(Settings({}, project=project)):
        assert served.get("/v1/project")["labels_since_training"] == 0
        assert served.get("/v1/project")["model"]["rows"] == 1


def test_a_project_continues_with_its_labels(project: Path) -> None:
    for served in serving(Settings({}, project=project)):
        given = give(served, 3, "milk")
        answers = served.post("/v1/classify", {"text": TEXTS[2], "top": 3})["results"]
    for served in serving(Settings({}, project=project)):
        assert served.get("/v1/project/labels")["items"][0]["label_id"] == given["label_id"]
        assert served.post("/v1/classify", {"text": TEXTS[2], "top": 3})["results"] == answers
        assert 3 not in [row["id"] for row in next_rows(served, 50)]


def test_two_services_cannot_use_a_project(project: Path) -> None:
    held = Project(project)
    with pytest.raises(HiNetError, match="another 'hinet start' uses this project"):
        next(serving(Settings({}, project=project)))
    held.close()


def test_without_a_project_its_endpoints_are_not_found(shop: Path) -> None:
    for served in serving(Settings({"shop": shop})):
        assert "hinet start" in served.problem(404, "/v1/project")["detail"]
        served.problem(404, "/v1/project/labels", {"annotator": "Ada", "id": 1, "skip": True})
        assert served.get("/v1/models")["service"]["project"] is False


def test_a_failed_training_is_reported_and_the_old_model_stays(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.labelling.training.PROGRAM", ("false",))
    for served in serving(Settings({}, project=project, poll=0.05)):
        for row in next_rows(served, 25):
            give(served, row["id"], truth(row["text"]))
        wait_until(lambda served=served: served.get("/v1/project")["retraining_problem"], 60)  # type: ignore[misc]
        state = served.get("/v1/project")
        assert (state["retraining"], state["labels_since_training"]) == (None, 25)
        assert give(served, 1, "rye")["learned"] is True


@pytest.mark.parametrize("is_dag", [False, True])
def test_rows_may_have_several_labels(tmp_path: Path, is_dag: bool) -> None:
    nodes = NODES + ("rye,food,Rye bread,Roggenbrot\n" if is_dag else "")
    (tmp_path / "nodes.csv").write_text(nodes)
    settings = ProjectSettings(several=True, vectors=None)
    made, _ = create_project(tmp_path / "sets", Taxonomy.from_file(tmp_path / "nodes.csv"), TEXTS[:20], settings)
    train(made)
    for served in serving(Settings({}, project=made.path)):
        (row,) = next_rows(served)
        assert [each["nearest"] for each in row["best"]] == [None] * 5
        label = {"annotator": "Ada", "id": row["id"], "nodes": ["milk", "rye"]}
        given = served.post("/v1/project/labels", label)
        assert given["learned"] is False
        assert given["right"] == (sorted(given["predicted"]) == ["milk", "rye"])
        assert served.get("/v1/project")["several"] is True
        assert "|" in served.client.get("/v1/project/labels.csv").text.splitlines()[1]
    train(made)
    for served in serving(Settings({}, project=made.path)):
        assert served.get("/v1/project")["model"]["rows"] == 1
