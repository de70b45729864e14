"""Agreement of people on the same rows: Cohen's kappa, plain and with partial credit for common ancestors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.labelling.ledger import Ledger
from hinet.labelling.progress import closures
from hinet.labelling.store import Label
from hinet.taxonomy import Taxonomy

Nodes = frozenset[str]
Numbers = NDArray[np.int64]  # (n,) labels of a person, as numbers from 0 on
EPSILON = 1e-12


class Agreement(NamedTuple):
    """Agreement on rows with two labels."""

    rows: int
    agreed: float
    kappa: float
    hierarchical_kappa: float


def independent_labels(ledger: Ledger) -> list[list[Label]]:
    """Return the labels of each row that two people or more labelled.

    Settlements do not count, because they are made with the labels of others in view.
    """
    return [ledger.independent(row) for row in sorted(ledger.twice & ledger.counted.keys())]


def agreement(rows_labels: Sequence[Sequence[Label]], taxonomy: Taxonomy) -> Agreement | None:
    """Return how far people agree; with more than two, the mean over pairs of people, weighted by their common rows."""
    pairs: dict[tuple[str, str], list[tuple[Nodes, Nodes]]] = {}
    for labels in rows_labels:
        for one, other in combinations(sorted(labels, key=lambda label: label.annotator), 2):
            nodes = frozenset(one.nodes), frozenset(other.nodes)
            pairs.setdefault((one.annotator, other.annotator), []).append(nodes)
    if not pairs:
        return None
    rows = sum(map(len, pairs.values()))
    figures = np.array([_agreement(labels, taxonomy) for labels in pairs.values()])
    weights = np.array([len(labels) for labels in pairs.values()])
    return Agreement(rows, *(np.average(figures, axis=0, weights=weights)).tolist())


def _agreement(labels: Sequence[tuple[Nodes, Nodes]], taxonomy: Taxonomy) -> tuple[float, float, float]:
    """Return the share of equal labels of two people, and both kappas."""
    distinct = sorted({nodes for pair in labels for nodes in pair}, key=sorted)
    number = {nodes: index for index, nodes in enumerate(distinct)}
    first, second = (np.array([number[pair[person]] for pair in labels]) for person in (0, 1))
    member = membership([sorted(nodes) for nodes in distinct], taxonomy)
    agreed = float((first == second).mean())
    return agreed, cohens_kappa(first, second), hierarchical_kappa(first, second, member)


def cohens_kappa(first: Numbers, second: Numbers) -> float:
    """Return the agreement of two people beyond chance.

    >>> cohens_kappa(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]))
    0.5
    """
    count = 1 + int(max(first.max(), second.max()))
    return _beyond_chance(float((first == second).mean()), float(_shares(first, count) @ _shares(second, count)))


def hierarchical_kappa(first: Numbers, second: Numbers, member: sp.csr_array) -> float:
    """Return Cohen's kappa with the hierarchical F1 of two labels as the credit for them.

    ``member``, (labels, nodes), is 1 for the nodes of a label and their ancestors. Labels without any have credit if
    they are the same. The credit by chance is summed over the sizes of labels, which are few, instead of all pairs.
    """
    size = np.diff(member.indptr)
    total = size[first] + size[second]
    common = member[first].multiply(member[second]).sum(1)
    credit = np.divide(2 * common, total, out=(first == second).astype(np.float64), where=total > 0)
    shares = [_shares(labels, len(size)) for labels in (first, second)]
    sizes, group = np.unique(size, return_inverse=True)
    by_size = [
        sp.csr_array((share, (group, np.arange(len(size)))), shape=(len(sizes), len(size))) @ member for share in shares
    ]
    common_by_chance = (by_size[0] @ by_size[1].T).toarray()  # (sizes, sizes)
    totals = np.maximum(sizes[:, None] + sizes[None, :], 1)
    by_chance = (2 * common_by_chance / totals).sum() + (shares[0] * shares[1])[size == 0].sum()
    return _beyond_chance(float(credit.mean()), float(by_chance))


def _shares(labels: Numbers, count: int) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.bincount(labels, minlength=count) / len(labels)
    return shares


def _beyond_chance(observed: float, by_chance: float) -> float:
    if by_chance >= 1 - EPSILON:  # both always gave the same label
        return 1.0
    return (observed - by_chance) / (1 - by_chance)


def membership(labels: Sequence[Sequence[str]], taxonomy: Taxonomy) -> sp.csr_array:
    """Return which nodes each label has, ancestors included, as (labels, nodes)."""
    nodes = [sorted(closure) for closure in closures(labels, taxonomy)]
    owner, flat = np.repeat(np.arange(len(nodes)), [*map(len, nodes)]), [node for each in nodes for node in each]
    return sp.csr_array((np.ones(len(flat)), (owner, flat)), shape=(len(nodes), len(taxonomy)))
