"""Labels of a tiny taxonomy."""

from __future__ import annotations

from typing import Any

import pytest

from hinet import Taxonomy
from hinet.labelling.store import Label

EDGES = [
    ("food", "bread"), ("food", "milk"), ("bread", "rye"), ("bread", "white"), ("toys", "rail"), ("toys", "doll"),
]  # fmt: skip


@pytest.fixture(scope="session")
def tree() -> Taxonomy:
    return Taxonomy.from_edges([*EDGES, ("goods", "food"), ("goods", "toys")])


@pytest.fixture(scope="session")
def dag() -> Taxonomy:
    return Taxonomy.from_edges([*EDGES, ("goods", "food"), ("goods", "toys"), ("toys", "rye")])


def label(number: int, row: int, node: str = "", who: str = "Ada", **values: Any) -> Label:
    """Return a label, or a skip if no node is named; nodes are separated by spaces."""
    defaults: dict[str, Any] = {
        "action": "label" if node else "skip", "predicted": ("rye",), "probability": 0.5, "reason": "uncertain",
    }  # fmt: skip
    given = Label(
        number,
        row,
        "label",
        tuple(node.split()),
        who,
        f"2026-01-01T00:00:{number % 60:02}.000Z",
        "",
        (),
        0.0,
        "v",
        None,
    )
    return given._replace(**{**defaults, **values})
