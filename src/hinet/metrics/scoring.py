"""All label metrics at once, and metrics as scorers for scikit-learn's model selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from hinet.errors import HiNetError, did_you_mean
from hinet.metrics import labels, sets
from hinet.metrics.cases import Cases, Labels, shares
from hinet.metrics.lca import LowestAncestors
from hinet.taxonomy import Taxonomy


@dataclass(frozen=True)
class LabelReport:
    """Every label metric of the same rows, each as defined by its function."""

    accuracy: float
    label_f1: float
    label_f1_macro: float
    hierarchical_precision: float
    hierarchical_recall: float
    hierarchical_f1: float
    hierarchical_precision_macro: float
    hierarchical_recall_macro: float
    hierarchical_f1_macro: float
    lca_precision: float
    lca_recall: float
    lca_f1: float
    tree_distance: float
    depth_of_agreement: float
    level_accuracy: tuple[float, ...]
    coverage: float = 1.0  # share of rows with a prediction; all other metrics are over these rows


def label_report(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> LabelReport:
    """Return every label metric, for little more than the cost of one.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> report = label_report(["cat", "dog"], ["cat", "cat"], taxonomy=animals)
    >>> report.accuracy, report.hierarchical_f1, report.tree_distance, report.level_accuracy
    (0.5, 0.75, 1.0, (1.0, 0.5))
    """
    cases = Cases.of(y_true, y_pred, taxonomy)
    lowest = LowestAncestors.of(cases)
    return LabelReport(
        float(cases.hits.mean()),
        shares(cases.truth, cases.predicted, "micro").f1,
        shares(cases.truth, cases.predicted, "macro").f1,
        *shares(*cases.closed, "micro"),
        *shares(*cases.closed, "samples"),
        *shares(*lowest.paths(), "samples"),
        float(lowest.distance().mean()),
        float(cases.depth_of_agreement().mean()),
        tuple(cases.level_accuracy()),
        cases.coverage,
    )


@dataclass(frozen=True)
class SetReport:
    """Every metric of predicted sets of the same rows, each as defined by its function; micro averages unless named."""

    exact_match: float
    set_precision: float
    set_recall: float
    set_f1: float
    set_f1_macro: float
    set_f1_samples: float
    hierarchical_set_precision: float
    hierarchical_set_recall: float
    hierarchical_set_f1: float
    hierarchical_set_f1_samples: float


def set_report(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> SetReport:
    """Return every metric of predicted sets.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> report = set_report([{"cat", "cow"}, {"dog"}], [{"cat"}, {"dog"}], taxonomy=animals)
    >>> report.exact_match, report.set_precision, report.set_f1
    (0.5, 1.0, 0.8)
    """
    truth, predicted = sets.set_pair(y_true, y_pred, taxonomy)
    true_nodes, predicted_nodes = truth.with_ancestors(), predicted.with_ancestors()
    return SetReport(
        sets.matching_share(truth, predicted),
        *shares(truth, predicted, "micro"),
        shares(truth, predicted, "macro").f1,
        shares(truth, predicted, "samples").f1,
        *shares(true_nodes, predicted_nodes, "micro"),
        shares(true_nodes, predicted_nodes, "samples").f1,
    )


def _negated(metric: Callable[..., float], *args: Any, **kwargs: Any) -> float:
    return -metric(*args, **kwargs)


_SHARES = (labels.hierarchical_precision, labels.hierarchical_recall, labels.hierarchical_f1)

SCORES: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "accuracy": labels.accuracy,
        "label_f1": labels.label_f1,
        "label_f1_macro": partial(labels.label_f1, average="macro"),
        **{share.__name__: share for share in _SHARES},
        **{f"{share.__name__}_macro": partial(share, average="macro") for share in _SHARES},
        **{share.__name__: share for share in (labels.lca_precision, labels.lca_recall, labels.lca_f1)},
        "neg_tree_distance": partial(_negated, labels.tree_distance),
        "depth_of_agreement": labels.depth_of_agreement,
    }
)
"""Scorers by name. Greater is better, so that a distance is negated and its name starts with ``neg_``."""


_SET_SHARES = (sets.set_precision, sets.set_recall, sets.set_f1)

SET_SCORES: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "exact_match": sets.exact_match,
        **{share.__name__: share for share in _SET_SHARES},
        "set_f1_macro": partial(sets.set_f1, average="macro"),
        "set_f1_samples": partial(sets.set_f1, average="samples"),
        **{f"hierarchical_{share.__name__}": partial(share, ancestors=True) for share in _SET_SHARES},
        "hierarchical_set_f1_samples": partial(sets.set_f1, average="samples", ancestors=True),
    }
)
"""Scorers of predicted sets by name, for classifiers that predict several labels per row."""


@dataclass(frozen=True)
class Scorer:
    """A metric as a scikit-learn scorer: called with a fitted estimator, rows and labels; greater is better."""

    name: str

    def __call__(self, estimator: Any, X: Any, y: Labels) -> float:  # noqa: N803 - scikit-learn's name
        """Return the score of the estimator's predictions for ``X``."""
        last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator  # the last step of a pipeline
        taxonomy = getattr(last, "taxonomy_", None)
        if taxonomy is None:
            raise HiNetError(
                f"the scorer {self.name!r} needs a fitted estimator with a taxonomy_, got {type(last).__name__}"
            )
        predicted = estimator.predict(X)
        if hasattr(last, "node_ids"):  # labels of any form, such as paths
            y, predicted = last.node_ids(y, allow_missing=False), last.node_ids(predicted)
        return {**SCORES, **SET_SCORES}[self.name](y, predicted, taxonomy=taxonomy)


def scorer(name: str) -> Scorer:
    """Return a metric as a scorer for ``cross_val_score`` and ``GridSearchCV``, for estimators with ``taxonomy_``.

    The names are those of the metrics, with ``_macro`` for the macro average and, as in scikit-learn, ``neg_`` if less
    is better; see :data:`SCORES`, and :data:`SET_SCORES` for classifiers that predict sets.

    >>> scorer("hierarchical_f1")
    Scorer(name='hierarchical_f1')
    """
    names = [*SCORES, *SET_SCORES]
    if name not in names:
        hint = did_you_mean(name, names) or f"; choose one of {', '.join(names)}"
        raise HiNetError(f"unknown scorer {name!r}{hint}")
    return Scorer(name)
