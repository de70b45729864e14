"""A small model, and the service with it: in this process, and in one of its own."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hinet import HiNetClassifier, Taxonomy
from hinet.classifier.saved_model import COLUMNS
from hinet.data.tables import Columns
from hinet.errors import HiNetError
from hinet.serving.app import create_app
from hinet.serving.settings import Settings
from tests.processes import LONGEST, wait_until

NODES = """node,parent,title,synonyms
electronics,,Electronics,
food,,Food and drink,groceries
screens,electronics,Screens,
tv,screens,Television sets,telly|TV
monitor,screens,Monitors,
radio,electronics,Radios,wireless
bread,food,Bread,
rye,bread,Rye bread,Roggenbrot
white,bread,White bread,
milk,food,Milk,
"""
WORDS = {
    "tv": "screen television inches colour",
    "monitor": "screen desk pixels cable",
    "radio": "sound antenna stations tuner",
    "rye": "dark bread loaf crust",
    "white": "white bread slices toast",
    "milk": "cow litre fresh bottle",
}
COLUMNS_OF_ROWS = Columns(text=("title",), label=("category",))


def rows(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return texts with labels."""
    chance = random.Random(seed)
    labels = [chance.choice(list(WORDS)) for _ in range(count)]
    return [
        (" ".join([*chance.sample(WORDS[label].split(), 2), f"item{chance.randrange(9)}"]), label) for label in labels
    ]


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained model, which tests must not change."""
    folder = tmp_path_factory.mktemp("serving")
    (folder / "nodes.csv").write_text(NODES)
    texts, labels = zip(*rows(400), strict=True)
    classifier = HiNetClassifier(Taxonomy.from_file(folder / "nodes.csv"), random_state=0)
    classifier.fit(list(texts), list(labels))
    classifier.calibrate(*map(list, zip(*rows(200, 1), strict=True)), risk=0.2)
    classifier.save(folder / "shop", notes={COLUMNS: COLUMNS_OF_ROWS.to_dict()})
    return folder / "shop"


@pytest.fixture
def model(shop: Path, tmp_path: Path) -> Path:
    """A copy of the model to change."""
    return shutil.copytree(shop, tmp_path / "shop")


class Service:
    """A client of the service in this process."""

    def __init__(self, client: TestClient, app: Any, failures: Sequence[HiNetError]) -> None:
        self.client, self.app = client, app
        self.service = app._app.state.service
        wait_until(lambda: failures or client.get("/ready").status_code != 503, LONGEST)
        if failures:
            raise failures[0]

    def post(self, path: str, body: Any, **options: Any) -> Any:
        """Return the answer to a request that must succeed."""
        answer = self.client.post(path, json=body, **options)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def problem(self, status: int, path: str, body: Any = None, **options: Any) -> Any:
        """Return the problem of a request that must fail."""
        method = "GET" if body is None and not options.get("content") else "POST"
        answer = self.client.request(method, path, json=body, **options)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
        return answer.json()


def serving(settings: Settings) -> Iterator[Service]:
    """Yield a service with settings."""
    failures: list[HiNetError] = []
    app = create_app(settings, failures.append)
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield Service(client, app, failures)


@pytest.fixture(scope="module")
def service(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service with all its features."""
    store = tmp_path_factory.mktemp("store") / "feedback.db"
    yield from serving(Settings({"shop": shop}, feedback=store, review=20, max_length=1_000, max_texts=50))
