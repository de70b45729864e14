"""The figures of an evaluation that are kept with a model, and shown beside it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.evaluation.evaluation import Evaluation
from hinet.ragged import offsets_of
from hinet.taxonomy import Taxonomy

MOST_POINTS = 200  # of the curve of risk against coverage
MOST_PAIRS = 50  # of labels that are confused
MOST_BRANCHES = 500  # nodes with errors
DIGITS = 6


def figures_of(evaluation: Evaluation, name: str) -> dict[str, Any]:
    """Return the figures of an evaluation on rows of this name, as plain values for JSON."""
    figures = evaluation.as_dict()
    single = {key: value for key, value in figures.items() if isinstance(value, int | float) and key != "rows"}
    return {
        "name": name,
        "evaluated": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "rows": len(evaluation),
        "metrics": {key: round(float(value), DIGITS) for key, value in single.items()},
        "level_accuracy": [round(float(share), DIGITS) for share in evaluation.report.level_accuracy],
        "calibration": [_rounded(each._asdict()) for each in evaluation.reliability()],
        "coverage": _coverage(evaluation),
        "confused": _confused(evaluation),
        "branches": _branches(evaluation),
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(float(value), DIGITS) for name, value in values.items()}


def _coverage(evaluation: Evaluation) -> list[dict[str, float]]:
    curve = evaluation.coverage
    count = len(curve.coverage)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int))
    columns = (curve.threshold, curve.coverage, curve.risk)
    points = zip(*(column[chosen].tolist() for column in columns), strict=True)
    return [_rounded(dict(zip(("threshold", "coverage", "risk"), point, strict=True))) for point in points]


def _confused(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the commonest pairs of a true and another, predicted label; of several true ones the first counts."""
    traces, taxonomy = evaluation.found.traces, evaluation.taxonomy
    ends = traces.end_nodes[traces.row_offsets[:-1]].tolist()
    wrong = [row for row in np.flatnonzero(~evaluation.right).tolist() if ends[row] >= 0]
    pairs = Counter((taxonomy.position(evaluation.labels[row][0]), ends[row]) for row in wrong)
    return [
        {"true": _node(taxonomy, true), "predicted": _node(taxonomy, predicted), "rows": count}
        for (true, predicted), count in pairs.most_common(MOST_PAIRS)
        if true != predicted
    ]


def _node(taxonomy: Taxonomy, node: int) -> dict[str, Any]:
    return {"node": taxonomy.ids[node], "title": taxonomy.titles[node] or taxonomy.ids[node], "stops": False}


def _branches(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the nodes with most errors at or below them, with the first parent of each; parents come first."""
    taxonomy = evaluation.taxonomy
    true = np.array([taxonomy.position(labels[0]) for labels in evaluation.labels], np.int64)
    path, offsets = _paths(taxonomy, true)
    lengths = np.diff(offsets)
    wrong = np.repeat(~evaluation.right, lengths)
    rows, errors = np.bincount(path, minlength=len(taxonomy)), np.bincount(path, wrong, len(taxonomy))
    order = np.argsort(-errors, kind="stable")[:MOST_BRANCHES]  # no node has more errors than its parent
    listed = {int(node) for node in order[errors[order] > 0]}
    parent_of = _first_parents(taxonomy)
    depths = {node: len(_path(parent_of, node)) for node in listed}
    return [
        {
            **{key: value for key, value in _node(taxonomy, node).items() if key != "stops"},
            "parent": taxonomy.ids[parent_of[node]] if parent_of[node] in listed else None,
            "depth": depths[node],
            "rows": int(rows[node]),
            "errors": int(errors[node]),
        }
        for node in sorted(listed, key=lambda node: (depths[node], -errors[node], node))
    ]


def _first_parents(taxonomy: Taxonomy) -> list[int]:
    """Return the first parent of each node, or -1 for top nodes, the root's children."""
    flat, offsets = taxonomy.parent_lists
    has_parent = np.diff(offsets) > 0
    parents = np.full(len(taxonomy), -1, np.int64)
    parents[has_parent] = flat[offsets[:-1][has_parent]]
    parents[parents == taxonomy.root] = -1
    return parents.tolist()


def _path(parent_of: list[int], node: int) -> list[int]:
    path = [node]
    while parent_of[path[-1]] >= 0:
        path.append(parent_of[path[-1]])
    return path


def _paths(taxonomy: Taxonomy, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each node with those above it by first parents, as a ragged array; the root is left out."""
    parent_of = _first_parents(taxonomy)
    distinct, inverse = np.unique(nodes, return_inverse=True)
    paths = [[step for step in _path(parent_of, node) if step != taxonomy.root] for node in distinct.tolist()]
    chosen = [paths[index] for index in inverse.tolist()]
    flat = np.array([step for path in chosen for step in path], np.int64)
    return flat, offsets_of(np.array([len(path) for path in chosen], np.int64))
