"""``HiNetClassifier``: fit, predict, probabilities, whole traces, confidence, explanations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from hinet.classifier.answers import PredictedLabels, PredictedTraces
from hinet.classifier.bundle import blaming, load_fitted, save_fitted
from hinet.classifier.confidence import Calibration, calibrated
from hinet.classifier.continuing import continued, moved_to
from hinet.classifier.explaining import Explanation, explained
from hinet.classifier.fitted import Fitted, features_of
from hinet.classifier.fitting import (
    HeldOut,
    Lesson,
    engine_for,
    engine_settings,
    for_dense_rows,
    judged,
    validation_rows,
)
from hinet.classifier.inputs import (
    Features,
    Kind,
    MatrixInput,
    count_of,
    kind_of,
    learnt_text,
    one_row,
    take_rows,
    text_column,
)
from hinet.classifier.label_reading import in_taxonomy, read_labels, read_with_classes, widened
from hinet.classifier.label_rows import checked_labels
from hinet.classifier.labels import LabelForm
from hinet.classifier.leading import written
from hinet.classifier.manifest import MANIFEST
from hinet.classifier.parameters import (
    CLASSES,
    MIN_CONFIDENCE,
    MOST_REASONS,
    NOTES,
    RULES,
    TAXONOMY,
    VALID,
    plain_parameters,
    restored_calibration,
    restored_parameters,
    seed_of,
)
from hinet.classifier.text_paths import AUTO
from hinet.classifier.truth import NOTHING, Truth
from hinet.data import Traces
from hinet.data.holdout import holdout_mask
from hinet.data.matrices import as_csr, check_rows, is_sparse, validate_weights
from hinet.data.text import TextSettings
from hinet.engine import Decoding, fit
from hinet.engine.compiling import compile_for_training
from hinet.engine.search.fused_predictor import FusedPredictor
from hinet.engine.search.predictor import Engine, Predictor
from hinet.errors import FileError, HiNetError, InputTypeError, LabelError, format_value, quoted
from hinet.evaluation.risk import CERTAINTY, validate_share
from hinet.parameters import FLAG, PATH, THREADS, validate_parameters
from hinet.progress import Progress, SilentProgress, progress_for_terminal
from hinet.taxonomy import Taxonomy, TaxonomyChange

if TYPE_CHECKING:
    from hinet.exporting import Exported

MOST_DENSE_CELLS = 50_000_000  # of predicted probabilities: 400 MB; beyond that they are sparse
LEAST_SPARSE = 1e-5  # smaller probabilities are left out where they are sparse
MOST_CELLS_OF_PART = 5_000_000  # of dense probabilities that are found at a time
LEAST_PART = 256  # rows that are worth several threads


class HiNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifies rows into the nodes of a hierarchy.

    Parameters
    ----------
    taxonomy : Taxonomy or path, optional
        The hierarchy whose node ids the labels are. Without one it is inferred: from paths, the tree they span; from
        plain labels, all of them side by side.
    engine : {"auto", "fused", "torch"}
        The fused CPU engine, or torch, which a ``network`` or a GPU ask for too; it comes with the extra ``torch``.
    path_sep : str, optional
        What stands between the steps of labels that are paths as text, such as ``A > B > C``. ``"auto"``: without a
        taxonomy, if a label has ``>`` with text on both sides, all labels are cut there; else they are taken as they
        are. None always takes labels as they are; any other text always cuts there.
    text : TextSettings, optional
        Which n-grams of texts are features.
    decoding : {"map", "expected_f1", "label"}
        What ``predict`` answers: the label of the most probable trace; the node with the best expected hierarchical
        F1; the most probable label, which differs from the first in a DAG.
    class_weight : dict or "balanced", optional
        Weight of the rows of each label, as in scikit-learn.
    validation_fraction : float, optional
        Share of the rows held out, at random by ``random_state``, whatever their labels: the mix of experts, or the
        best epoch, is chosen on them, and :meth:`calibrate` takes them where it is given none. Labels whose rows are
        all held out are not learned; their rows count as wrong. ``fit`` also takes validation rows of their own.
    width, members, epochs, dropout, wide, flat, prior_strength, patience, memory_limit
        Settings of the engine, see :class:`hinet.engine.EngineSettings`; None leaves its default.
    keep_examples : bool
        Whether the model keeps some training rows, as features, at most a twentieth of its size or 1 MB: from them it
        learns where nodes belong that :meth:`update_taxonomy` moves. Only with a given taxonomy, which can be changed.
    network : torch.nn.Module, optional
        A feature network of your own, from a batch of rows to (rows, units).
    device : str, optional
        Such as ``"cuda"``; by default torch trains on a GPU if there is one.
    warm_start : bool
        Whether a further ``fit`` goes on from what was learned, over to a changed taxonomy if it changed; the features
        stay those of the first fit.
    checkpoint, checkpoint_every : path and float, optional
        A folder for finished epochs of the fused engine, kept every so many seconds; a run that was broken off goes
        on from them.
    random_state : int
        The same seed gives the same model; with torch also the number of threads must be the same.
    n_jobs : int, optional
        Threads of training and of answers, by default, and with -1, one for each core; -2 is one fewer, and so on. It
        is saved with the model, and may be set anew at any time.
    verbose : bool
        Whether to show progress.

    Attributes
    ----------
    taxonomy_ : Taxonomy
        The hierarchy.
    classes_ : array
        The labels that can be predicted: those of training rows, and the other leaves of a given taxonomy.
    history_ : tuple of EpochRecord
        What each epoch of training did.
    metrics_ : dict
        Accuracy and hierarchical F1 of validation rows, if there were any.
    taxonomy_change_ : TaxonomyChange
        What the last :meth:`update_taxonomy` added, moved, renamed and removed.
    calibration_, temperature_, min_confidence_
        What :meth:`calibrate` found: a Calibration; what the logits were divided by since training; the threshold for
        its risk, if one was wished. More rows or another taxonomy void them.

    Examples
    --------
    >>> texts = ["rye bread", "white bread", "whole milk", "skimmed milk", "toy car", "toy train"]
    >>> paths = [("Food", "Bread")] * 2 + [("Food", "Milk")] * 2 + [("Toys",)] * 2
    >>> classifier = HiNetClassifier().fit(texts, paths)
    >>> classifier.predict(["brown bread"])[0]
    ('Food', 'Bread')
    """

    def __init__(
        self,
        taxonomy: Taxonomy | str | Path | None = None,
        *,
        engine: Literal["auto", "fused", "torch"] = "auto",
        path_sep: str | None = AUTO,
        text: TextSettings | None = None,
        decoding: Decoding = "map",
        class_weight: Any = None,
        validation_fraction: float | None = None,
        width: int | None = None,
        members: int | None = None,
        epochs: int | None = None,
        dropout: float | None = None,
        wide: bool = True,
        flat: bool | None = None,
        prior_strength: float | None = None,
        patience: int | None = None,
        memory_limit: float | None = None,
        keep_examples: bool = True,
        network: Any = None,
        device: str | None = None,
        warm_start: bool = False,
        checkpoint: str | Path | None = None,
        checkpoint_every: float = 0.0,
        random_state: int = 0,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.taxonomy = taxonomy
        self.engine = engine
        self.path_sep = path_sep
        self.text = text
        self.decoding = decoding
        self.class_weight = class_weight
        self.validation_fraction = validation_fraction
        self.width = width
        self.members = members
        self.epochs = epochs
        self.dropout = dropout
        self.wide = wide
        self.flat = flat
        self.prior_strength = prior_strength
        self.patience = patience
        self.memory_limit = memory_limit
        self.keep_examples = keep_examples
        self.network = network
        self.device = device
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    # Training

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, valid: tuple[Any, Any] | None = None) -> Self:
        """Learn from rows and their labels.

        Parameters
        ----------
        X : texts, CSR matrix or 2-D array
            A list, Arrow array, pandas or polars column of texts, or a frame of one such column; or features.
        y : labels
            One a row: a node id, a path from the top (a tuple, a text ``A > B``, or a row of a 2-D array or frame with
            empty cells at its end), or any label if there is no taxonomy; several as a set.
        sample_weight : array of shape (n,), optional
            How much each row counts.
        valid : pair of rows and labels, optional
            Validation rows; :meth:`calibrate` takes them where it is given none.

        Raises
        ------
        HiNetError
            If rows or labels cannot be used; names the row and the remedy.
        """
        return self._fit(X, y, sample_weight, valid)

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, valid: tuple[Any, Any] | None = None, classes: Any = None
    ) -> Self:
        validate_parameters(self, RULES)
        VALID.validate("valid", valid)
        kind = kind_of(X)
        goes_on = self.warm_start and self.__sklearn_is_fitted__()
        checked = self._checked(X, kind, reset=not goes_on)
        y = checked_labels(y, count_of(checked))
        taxonomy = self._given_taxonomy()
        known = None if classes is None else read_with_classes(y, classes, taxonomy, self.path_sep)

        def read(labels: Any, like: LabelForm | None = None) -> tuple[LabelForm, Traces]:
            if known is not None:
                return known, known.encode(labels)
            return read_labels(labels, taxonomy, self.path_sep, like)

        form, traces = read(y)
        if valid is not None:
            valid = self._checked(valid[0], kind), checked_labels(valid[1], count_of(valid[0]))
            if not len(valid[1]):
                raise HiNetError("valid: expected rows and their labels, got none; leave valid out, or give some")
        elif self.validation_fraction is not None:
            chosen = holdout_mask(len(traces), self.validation_fraction, seed_of(self.random_state))
            valid = take_rows(checked, chosen), take_rows(y, chosen)
            checked = take_rows(checked, ~chosen)
            # held-out rows do not make labels known, as new rows would not
            form, traces = read(take_rows(y, ~chosen), form)
            if sample_weight is not None:
                sample_weight = validate_weights(sample_weight, len(chosen))[~chosen]
        weights = self._weights(sample_weight, form, traces)
        if goes_on:
            moved = moved_to(self.fitted_, form)
            held = None if valid is None else HeldOut(moved.rows(valid[0]), form.truth(valid[1]))
            self._go_on(moved, Lesson(moved.rows(checked), traces, weights))
        else:
            engine = engine_for(self.engine, self.network, self.device)
            if engine == "fused":
                compile_for_training()
            features, rows = self._learnt(checked, kind, engine)
            held = None
            if valid is not None:
                held = HeldOut(features_of(features, engine, valid[0], self.n_jobs), form.truth(valid[1]))
            lesson = Lesson(rows, traces, weights, None if held is None else validation_rows(form, held))
            self._train(lesson, features, form, engine)
        if held is not None:
            self._held = held
            self.metrics_["validation"] = judged(self.fitted_, held, self.decoding)
        return self

    def _train(self, lesson: Lesson, features: Features, form: LabelForm, engine: Engine) -> None:
        predictor = self._trained(lesson, engine, features.kind)
        fitted = Fitted(features, form, predictor, predictor.history, lesson.fingerprint())
        keeps = self.keep_examples and not form.inferred
        self._take_up(fitted.keeping(lesson.rows, lesson.traces, seed_of(self.random_state)) if keeps else fitted)

    def _trained(self, lesson: Lesson, engine: Engine, kind: Kind) -> Predictor:
        settings = engine_settings(validate_parameters(self, RULES))
        shared: dict[str, Any] = {
            "valid": lesson.valid, "sample_weight": lesson.sample_weight, "progress": self._progress()
        }  # fmt: skip
        if engine == "torch":
            from hinet.networks.predictor import NetworkPredictor

            own: dict[str, Any] = {"network": self.network, "device": self.device}
            return NetworkPredictor.trained(lesson.rows, lesson.traces, settings, **own, **shared)
        if kind == "dense":
            settings = for_dense_rows(settings, len(lesson.traces))
        kept: dict[str, Any] = {"checkpoint": self.checkpoint, "checkpoint_every": self.checkpoint_every}
        model = fit(lesson.rows, lesson.traces, settings, watch=self.verbose, **kept, **shared)
        return FusedPredictor(model, settings.threads)

    def _take_up(self, fitted: Fitted) -> None:
        """Become a classifier that knows this."""
        self.fitted_ = fitted
        self.classes_ = fitted.classes
        self.taxonomy_ = fitted.form.taxonomy
        self.history_ = fitted.history
        self.n_iter_ = max((record.epoch for record in fitted.history), default=0)
        self.metrics_: dict[str, Any] = {}
        self._forget("calibration_", "temperature_", "min_confidence_", "taxonomy_change_", "_held")

    def _forget(self, *names: str) -> None:
        for name in names:
            self.__dict__.pop(name, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from more rows, keeping what was learned; the first call is a fit.

        Labels may be new: their nodes join the taxonomy (the given one must know them). The features of texts stay
        those of the first rows: words that come later only are not known.

        Parameters
        ----------
        classes : labels, optional
            All labels there will be, for a first call whose rows do not have them all.
        """
        if not self.__sklearn_is_fitted__():
            return self._first_fit(X, y, classes, sample_weight)
        rows = self.features_of(X)
        y = checked_labels(y, rows.shape[0])
        fitted = self._widened(y)
        traces = fitted.form.encode(y)
        return self._go_on(fitted, Lesson(rows, traces, self._weights(sample_weight, fitted.form, traces)))

    def _go_on(self, fitted: Fitted, lesson: Lesson, *, beside_examples: bool = False) -> Self:
        settings, progress = engine_settings(validate_parameters(self, RULES)), self._progress()
        after = continued(fitted, lesson, settings, self.device, progress, beside_examples=beside_examples)
        self._take_up(after)
        return self

    def _progress(self) -> Progress:
        return progress_for_terminal() if self.verbose else SilentProgress()

    def _first_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        if classes is None:
            return self.fit(X, y, sample_weight)
        return self._fit(X, y, sample_weight, classes=CLASSES.validate("classes", classes))

    def _widened(self, y: Any) -> Fitted:
        """Return what is known, carried over to a taxonomy that has all labels of ``y``."""
        fitted = self.fitted_
        given = self._given_taxonomy()
        if given is not None and given != fitted.form.taxonomy:
            fitted = moved_to(fitted, in_taxonomy(fitted.form, given, {}))
        return _with_labels(fitted, y)

    def update_taxonomy(
        self, taxonomy: Taxonomy | str | Path, renamed: Mapping[str, str] | None = None, X: Any = None, y: Any = None
    ) -> Self:
        """Go over to a changed taxonomy and keep what was learned.

        Nodes are known by their ids. A removed one is forgotten, and a new one starts from its siblings until rows
        teach it more. A node that moved takes its weights along; the nodes above it learn what is below them now from
        the rows that the model keeps (``keep_examples``) and from ``X``, by what it answered before. Choices among
        nodes that neither moved, nor gained or lost labels below them, stay as they were. ``taxonomy_change_`` tells
        what changed. The calibration is void.

        Parameters
        ----------
        taxonomy : Taxonomy or path
            The new taxonomy.
        renamed : mapping, optional
            From old ids to new ones.
        X : rows, optional
            More rows for moved nodes to be learned from, such as the training rows; they need no labels.
        y : labels, optional
            Labels of ``X`` in the new taxonomy: then the model learns these as :meth:`partial_fit` does, beside the
            rows it keeps, so that it forgets little.
        """
        check_is_fitted(self)
        new = _as_taxonomy(TAXONOMY.validate("taxonomy", taxonomy))
        rows = None if X is None else self.features_of(X)
        if y is not None:
            if rows is None:
                raise HiNetError("update_taxonomy got labels y without rows; give both X and y, or X alone")
            y = checked_labels(y, rows.shape[0])
        change = TaxonomyChange.between(self.taxonomy_, new, renamed)
        fitted = moved_to(self.fitted_, in_taxonomy(self.fitted_.form, new, renamed or {}), renamed, rows)
        if y is None:
            self._take_up(fitted)
        else:
            fitted = _with_labels(fitted, y)
            self._go_on(fitted, Lesson(rows, fitted.form.encode(y)), beside_examples=True)
        self.taxonomy_change_ = change
        if self.taxonomy is not None:
            self.taxonomy = new
        return self

    def _given_taxonomy(self) -> Taxonomy | None:
        given = RULES["taxonomy"].validate("taxonomy", self.taxonomy)
        return None if given is None else _as_taxonomy(given)

    def _learnt(self, checked: Any, kind: Kind, engine: Engine) -> tuple[Features, Any]:
        if kind == "text":
            return learnt_text(checked, self.text, self.n_jobs)
        columns = tuple(map(str, getattr(self, "feature_names_in_", ())))
        features = MatrixInput.learnt(checked, columns, scaled=kind == "dense" and self.network is None)
        return features, features_of(features, engine, checked, self.n_jobs)

    def _weights(self, sample_weight: Any, form: LabelForm, traces: Traces) -> NDArray[np.float64] | None:
        weights = None if sample_weight is None else validate_weights(sample_weight, len(traces))
        class_weight = RULES["class_weight"].validate("class_weight", self.class_weight)
        if class_weight is None:
            return weights
        by_class = form.weights_of(class_weight, traces)
        return validate_weights(by_class if weights is None else weights * by_class, len(traces))

    # Answers

    def predict(self, X: Any, min_confidence: float | Literal["calibrated"] | None = None) -> NDArray[Any]:
        """Return a label for every row, in the form of the training labels.

        With ``min_confidence`` it is the deepest node with at least that probability, which may be an inner node, or
        nothing (None, or an empty path) if not even a top node has it. ``"calibrated"`` takes the threshold that
        :meth:`calibrate` found for its risk.
        """
        min_confidence = MIN_CONFIDENCE.validate("min_confidence", min_confidence)
        rows = self.features_of(X)
        search, form = self.fitted_.predictor, self.fitted_.form
        if min_confidence is None and self.decoding == "map":
            return form.decode_traces(search.traces(rows).traces)
        if min_confidence is None and self.decoding == "label" and form.by_path:
            return form.decode_traces(search.top_labels(rows).found.traces)
        if min_confidence is None:
            return written(self.fitted_, rows, search.decode(rows, self.decoding).nodes)
        least = self._threshold() if min_confidence == "calibrated" else float(min_confidence)
        found = search.deepest_confident(rows, least)
        return written(self.fitted_, rows, np.where(found.probability >= least, found.nodes, NOTHING))

    def node_ids(self, y: Any, *, allow_missing: bool = True) -> list[tuple[str, ...]]:
        """Return labels in any form, predicted ones too, as ids of ``taxonomy_``, which metrics take.

        A label that an inferred taxonomy does not know becomes the deepest known node above it, or nothing. A row
        without an answer, as ``predict`` gives it with ``min_confidence``, has no ids; without ``allow_missing``, as
        for true labels, it is an error.
        """
        check_is_fitted(self)
        return self.fitted_.form.truth(y, allow_missing=FLAG.validate("allow_missing", allow_missing)).ids()

    def predict_traces(self, X: Any, k: int = 1) -> PredictedTraces:
        """Return the ``k`` most probable traces of every row, exactly, with the probability of every step.

        All traces of a row differ. In a DAG several of them may lead to one label; for the best labels see
        :meth:`predict_labels`.
        """
        return PredictedTraces(self.fitted_.predictor.traces(self.features_of(X), k), self.fitted_.form)

    def predict_labels(self, X: Any, k: int = 1) -> PredictedLabels:
        """Return the ``k`` most probable labels of every row, exactly, each with its most probable trace.

        The probability of a label is the sum over all its traces: in a tree it has one, in a DAG perhaps many. There it
        leaves out what could not change the answer, so that it may be a little too low.
        """
        found = self.fitted_.predictor.top_labels(self.features_of(X), k)
        return PredictedLabels(PredictedTraces(found.found, self.fitted_.form), found.probability)

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of every label, (n, classes).

        Dense if it has at most 50 million cells; else a CSR array of the probabilities of at least 1e-5, which in a DAG
        leave out paths through nodes that are less probable.
        """
        rows = self.features_of(X)
        search, nodes = self.fitted_.predictor, self.fitted_.form.label_nodes
        if rows.shape[0] * len(nodes) > MOST_DENSE_CELLS:
            return sp.csr_array(search.label_probabilities(rows, LEAST_SPARSE)[:, nodes])
        found = np.empty((rows.shape[0], len(nodes)))
        size = max(LEAST_PART, MOST_CELLS_OF_PART // len(nodes))
        for start in range(0, len(found), size):
            part = slice(start, start + size)
            found[part] = search.label_probabilities(rows[part])[:, nodes].toarray()
        return found

    def predict_log_proba(self, X: Any) -> Any:
        """Return the log of the probability of every label, (n, classes); for as many rows as fit densely."""
        found = self.predict_proba(X)
        if sp.issparse(found):
            raise HiNetError(
                f"the log probabilities of {found.shape[0]:,} rows and {found.shape[1]:,} labels do not fit densely; "
                "ask for fewer rows at a time, or for predict_traces"
            )
        with np.errstate(divide="ignore"):
            return np.log(found)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose predicted label is right, or one of several right ones."""
        rows, truth = self.features_of(X), self._truth(X, y)
        found = self.fitted_.predictor.decode(rows, self.decoding)
        right = truth.are_right(found.nodes)
        weights = None if sample_weight is None else validate_weights(sample_weight, len(right))
        return float(np.average(right, weights=weights)) if len(right) else 0.0

    def calibrate(
        self, X: Any = None, y: Any = None, *, risk: float | None = None, certainty: float = CERTAINTY
    ) -> Calibration:
        """Scale the probabilities to held-out rows and, for a wished ``risk``, find the least confidence to ask for.

        Temperature scaling divides all logits by one number, so that probabilities mean what they say; in a tree of the
        fused engine a slope then takes answers that are too sure down and too modest ones up. With ``risk``, one half
        of the rows, chosen by ``random_state``, gives these two and the other the threshold ``min_confidence_``: among
        the answers of ``predict(X, min_confidence="calibrated")``, at most a share of ``risk`` is wrong, with
        ``certainty`` over draws of the held-out rows, for rows from the same source (see :mod:`hinet.evaluation.risk`).
        An answer is right if it is a label of the row or above one. The held-out rows must not have been trained on.
        Without ``risk``, a threshold of an earlier calibration is gone.

        Parameters
        ----------
        X, y : rows and labels, optional
            Held-out rows; without them, the validation rows of the last ``fit``. These are forgotten when the
            classifier is saved, copied, pickled, or goes on with more rows.

        Raises
        ------
        HiNetError
            If the rows are too few to promise the risk; the classifier is left as it was.
        """
        validate_share("risk", risk)
        validate_share("certainty", certainty)
        held = self._held_out(X, y)
        temperature, seed = getattr(self, "temperature_", 1.0), seed_of(self.random_state)
        self.fitted_, found = calibrated(
            self.fitted_, held.rows, held.truth, risk, certainty, temperature=temperature, seed=seed
        )
        self._take_up_calibration(found)
        return found

    def _held_out(self, X: Any, y: Any) -> HeldOut:
        """Return rows and labels as the model reads them; without any, the validation rows of the last fit."""
        check_is_fitted(self)
        if (X is None) != (y is None):
            raise HiNetError("calibrate got only one of X and y; give both, or neither to take the validation rows")
        if X is not None:
            return HeldOut(self.features_of(X), self._truth(X, y))
        if not hasattr(self, "_held"):
            raise HiNetError(
                "there are no validation rows to calibrate by; give calibrate(X, y), or fit with validation_fraction "
                "or valid= just before"
            )
        return self._held

    def _take_up_calibration(self, calibration: Calibration) -> None:
        self.calibration_ = calibration
        self.temperature_ = calibration.temperature
        self._forget("min_confidence_")
        if calibration.promise is not None:
            self.min_confidence_ = calibration.promise.threshold

    def _threshold(self) -> float:
        if not hasattr(self, "min_confidence_"):
            raise HiNetError("no risk was calibrated; call calibrate(X, y, risk=...) first, or name a min_confidence")
        return float(self.min_confidence_)

    def explain(self, x: Any, label: Any = None, *, most: int = 10) -> Explanation:
        """Tell what pushed a row down its best trace, or down that of ``label``.

        For every step with a choice: which features pushed to the chosen node against its strongest rival, at ``most``
        so many listed, all adding up to the difference of their logits. Of a text, also the words that are not known.

        Parameters
        ----------
        x : text, or one row of features
            What to explain.
        label : optional
            A label, in the form of the training labels.
        """
        most = MOST_REASONS.validate("most", most)
        given = one_row(x)
        row = self.features_of(given)
        if row.shape[0] != 1:
            raise HiNetError(f"expected one row to explain, got {row.shape[0]:,}; give them one by one")
        fitted = self.fitted_
        traces = fitted.predictor.traces(row).traces if label is None else fitted.form.encode([label])
        text = str(next(iter(given))) if kind_of(given) == "text" else None
        return explained(fitted, row, traces, most, text)

    def _truth(self, X: Any, y: Any) -> Truth:
        return self.fitted_.form.truth(checked_labels(y, count_of(X)))

    def features_of(self, X: Any) -> Any:
        """Return rows as the model reads them: texts as CSR, dense rows scaled."""
        check_is_fitted(self)
        kind, given = self.fitted_.features.kind, kind_of(X)
        if (kind == "text") != (given == "text"):
            expected = "texts" if kind == "text" else "rows of numbers"
            raise HiNetError(f"the classifier was trained on {expected}, got {type(X).__name__}; give it the same")
        threads = THREADS.validate("n_jobs", self.n_jobs)
        self.fitted_ = self.fitted_.with_threads(threads)
        return self.fitted_.rows(self._checked(X, given))

    def _checked(self, X: Any, kind: Kind, *, reset: bool = False) -> Any:
        """Return texts as they are, and numbers as a checked matrix."""
        if isinstance(X, str):
            raise HiNetError(f"expected a list of texts, got one text {quoted(X)}; put it into a list")
        if isinstance(X, Iterator | Mapping | Set) or X is None:
            raise HiNetError(
                f"X: expected a list of texts, a CSR matrix or a 2-D array, got {format_value(X)}; put rows into a list"
            )
        if kind == "text":
            if reset:
                self._forget("n_features_in_", "feature_names_in_")
            return text_column(X)
        if is_sparse(X):
            X = as_csr(X)
        try:
            checked = validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=np.float32, ensure_all_finite=False
            )
        except TypeError as error:
            raise InputTypeError(f"X: {error}") from error
        except ValueError as error:
            if str(error).startswith("could not convert string"):
                remedy = "give one column of text, or numbers"
                raise HiNetError(f"X has text among its columns ({error}); {remedy}") from None
            raise HiNetError(f"X: {error}") from error
        if not is_sparse(checked):
            check_rows(checked)
        return checked

    # Keeping

    def save(self, path: str | Path, *, half: bool = False, notes: Mapping[str, Any] | None = None) -> None:
        """Write the fitted classifier to a folder: plain files, no pickle; ``half`` halves the wide weights.

        An older model in the folder is replaced by one rename, so that a save which is broken off leaves it whole.
        ``notes`` are plain values of your own that the manifest keeps, such as where the rows came from.
        """
        check_is_fitted(self)
        path, half = PATH.validate("path", path), FLAG.validate("half", half)
        told = {
            "parameters": plain_parameters(self),
            "metrics": self.metrics_,
            "calibration": asdict(self.calibration_) if hasattr(self, "calibration_") else None,
            "input_features": getattr(self, "n_features_in_", None),
            "history": [asdict(record) for record in self.history_],
            "notes": NOTES.validate("notes", {} if notes is None else notes),
        }
        save_fitted(self.fitted_, path, told, half=half)

    def export_onnx(self, folder: str | Path, X: Any = None, y: Any = None) -> Exported:
        """Write the scores as an ONNX graph, with a decoder that needs NumPy alone, to a new folder.

        The graph reads features: of texts, the rows that ``features_of`` gives. Experts that do not fit into a graph
        are left out; with rows and labels, the returned report says what that costs.
        """
        from hinet.exporting import export_onnx

        check_is_fitted(self)
        if (X is None) != (y is None):
            raise HiNetError("give both rows and labels to judge the export by, or neither")
        self.fitted_.check_file()
        if X is None:
            return export_onnx(self.fitted_.predictor.model, folder)
        rows, truth = self.features_of(X), self._truth(X, y)
        able = self.fitted_.form.predictable(truth)
        traces = self.fitted_.form.traces_of(truth.take(able))
        predictor, rows = self.fitted_.predictor, rows[np.flatnonzero(able)]
        return export_onnx(predictor.model, folder, rows, traces, predictor.threads)

    @classmethod
    def load(cls, path: str | Path, *, network: Any = None, mapped: bool = True) -> Self:
        """Return the classifier that was saved to a folder; a feature network of your own is given again.

        Its weights are ``mapped`` into memory: loaded as they are needed, and shared by processes. Then its files must
        not be written over while it is in use; to save another model there is fine. If that cannot be relied on,
        ``mapped=False`` reads them at once.

        Raises
        ------
        FileError
            If it is no saved model, of another format, or a file of it is missing, cut off or edited, or holds what no
            model can be made of; names the file and the array.
        """
        return cls._load(path, network, mapped)[0]

    @classmethod
    def _load(cls, path: str | Path, network: Any, mapped: bool) -> tuple[Self, dict[str, Any]]:
        path = PATH.validate("path", path)
        FLAG.validate("mapped", mapped)
        try:
            fitted, manifest = load_fitted(path, RULES["network"].validate("network", network), mapped=mapped)
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror or error}") from None
        with blaming(Path(path) / MANIFEST):
            return cls._restored(fitted, manifest, network), manifest

    @classmethod
    def _restored(cls, fitted: Fitted, manifest: Mapping[str, Any], network: Any) -> Self:
        """Return the classifier of a saved model, or raise HiNetError if the manifest's parameters cannot be any."""
        try:
            parameters = restored_parameters(manifest["parameters"], fitted.form.taxonomy)
            loaded = cls(**parameters, network=network)
            validate_parameters(
                loaded, {name: rule for name, rule in RULES.items() if name != "device"}
            )  # of elsewhere
        except HiNetError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise HiNetError(f"its parameters are damaged ({error!r})") from None
        loaded._take_up(fitted.with_threads(loaded.n_jobs))
        loaded.metrics_ = manifest["metrics"]
        if manifest["input_features"] is not None:
            loaded.n_features_in_ = manifest["input_features"]
        if isinstance(fitted.features, MatrixInput) and fitted.features.columns:
            loaded.feature_names_in_ = np.array(fitted.features.columns, object)
        if manifest["calibration"] is not None:
            loaded._take_up_calibration(restored_calibration(manifest["calibration"]))
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied and pickled: all but the validation rows."""
        return {name: value for name, value in super().__getstate__().items() if name != "_held"}

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether it was fitted."""
        return hasattr(self, "fitted_")

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that texts and sparse rows are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        return tags


def _as_taxonomy(given: Taxonomy | Path) -> Taxonomy:
    return given if isinstance(given, Taxonomy) else Taxonomy.from_file(given)


def load(path: str | Path, *, network: Any = None, mapped: bool = True) -> HiNetClassifier:
    """Return the classifier that was saved to a folder; see :meth:`HiNetClassifier.load`."""
    return HiNetClassifier.load(path, network=network, mapped=mapped)


def load_with_manifest(path: str | Path) -> tuple[HiNetClassifier, dict[str, Any]]:
    """Return the classifier that was saved to a folder, and the manifest of the same save."""
    return HiNetClassifier._load(path, None, True)


def _with_labels(fitted: Fitted, y: Any) -> Fitted:
    """Return what is known, carried over to layers that have all labels of ``y``."""
    with contextlib.suppress(LabelError):
        fitted.form.encode(y)
        return fitted
    return moved_to(fitted, widened(fitted.form, y))
