"""Incremental learning: a fitted classifier transferred to a changed taxonomy, or trained on more rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.calibration import MIN_ROWS, HeldOut, calibrate_fitted, held_out_rows, kept_rows
from hinet.classifier.fitted import Examples, Fitted
from hinet.classifier.labels import LabelCodec, codec_in_taxonomy, widen_codec
from hinet.classifier.model_folder import UpdateCheck
from hinet.classifier.parameters import engine_settings, seed_of
from hinet.classifier.rows import RowsInMemory
from hinet.classifier.training import EncodedRows
from hinet.data import Traces
from hinet.engine import EngineSettings, Search
from hinet.engine.model.transfer import OutputTransfer
from hinet.engine.search.predictor import Predictor
from hinet.engine.settings import RowShape
from hinet.engine.training.relearning import TRACES_PER_ROW, learning_rows, option_targets, traceable
from hinet.errors import HiNetError, LabelError
from hinet.evaluation.risk import CERTAINTY
from hinet.progress import Progress, SilentProgress
from hinet.taxonomy import Taxonomy, TaxonomyChange

# Chosen on training rows of NAICS that were held out, see docs/decisions/0047-updates.md.
MIN_DEEP_RATE, MIN_DEEP_RATE_OF_NEW = 0.002, 0.02  # the second with new labels or without a wide expert
DEEP_RATE_OF_SHARE = 0.2  # factor of the share of new rows in all rows ever trained on
WIDE_RATE_FACTOR = 8.0
MIN_VISITS, MIN_EPOCHS, MAX_EPOCHS = 12_000, 4, 16  # rows seen over all epochs; few rows get more epochs
MAX_CORRECTIONS = 1_000  # more new rows at a time are remembered like training rows
MAX_REMEMBERED_SHARE = 0.05  # share of new rows up to which a model that remembers them does not train on them
NEW_SHARE, MAX_NEW_WEIGHT = 0.02, 4.0  # weight of all new rows relative to kept rows; maximum weight per new row


def transfer_fitted(
    fitted: Fitted, codec: LabelCodec, renamed: Mapping[str, str] | None = None, rows: Any = None
) -> Fitted:
    """Return the classifier transferred to the layers of another label codec.

    Nodes above moved ones learn from the examples that the model keeps, and from further ``rows``.
    """
    fitted.check_file()
    change = TaxonomyChange.between(fitted.codec.taxonomy, codec.taxonomy, renamed)
    came_from = np.append(change.old_position, -1)  # the last is that of a virtual root
    moved = replace(fitted, codec=codec, predictor=fitted.predictor.moved_to(codec.layers, came_from))
    examples, held_out = fitted.examples, fitted.held_out
    if held_out is not None:
        moved = replace(moved, held_out=held_out.moved(change.new_position)[0])
    if examples is not None:
        moved = replace(moved, examples=examples.moved(change.new_position)[0])
        rows = examples.rows if rows is None else examples.joined(_unlabelled(rows)).rows
    if codec.sets is not None or rows is None or not rows.shape[0] or not change.has_moved.any():
        return moved
    return replace(moved, predictor=_taught(fitted.predictor, moved.predictor, change, rows))


def transfer_to_taxonomy(
    fitted: Fitted, taxonomy: Taxonomy, renamed: Mapping[str, str] | None = None, rows: Any = None
) -> Fitted:
    """Return the classifier transferred to another taxonomy; ``rows`` are those of :func:`transfer_fitted`."""
    return transfer_fitted(fitted, codec_in_taxonomy(fitted.codec, taxonomy, renamed or {}), renamed, rows)


def encode_labels(fitted: Fitted, X: Any, rows: Any, y: Any) -> tuple[Fitted, EncodedRows]:
    """Return the classifier transferred to layers that have all labels of ``y``, and the rows with these labels."""
    try:
        traces = fitted.codec.encode(y)
    except LabelError:
        fitted = transfer_fitted(fitted, widen_codec(fitted.codec, y))
        traces = fitted.codec.encode(y)
    return fitted, EncodedRows(rows, traces, texts=fitted.texts_to_remember(X))


def continue_training(
    before: Fitted, fitted: Fitted, new_rows: EncodedRows, parameters: Mapping[str, Any], progress: Progress
) -> Fitted:
    """Return the classifier trained on more rows, together with training rows that it keeps.

    ``before`` is the classifier before it was transferred to the labels of the rows. Its calibrated scale stays.
    A model with a memory only remembers few rows with known labels: training on them costs the accuracy of others.
    """
    is_new, settings = _new_labels(before, fitted, new_rows), engine_settings(parameters)
    last = {name: value for name, value in fitted.fingerprint.items() if name != "before"}
    fingerprint = {**new_rows.fingerprint(), "before": [*fitted.fingerprint.get("before", ()), last]}
    count, can_remember = len(new_rows.traces), fitted.predictor.can_remember
    corrects = can_remember and fitted.can_correct and count <= MAX_CORRECTIONS
    is_small = corrects and _share_of_new(fitted, count) <= MAX_REMEMBERED_SHARE and not is_new.any()
    after = replace(fitted, fingerprint=fingerprint)
    if not (is_small and fitted.has_vectors(new_rows.rows).all()):
        training = _with_kept_rows(new_rows, fitted)
        predictor = fitted.predictor.continued(
            training.rows, training.traces, _settings(settings, fitted, new_rows, training, has_new=bool(is_new.any())),
            sample_weight=training.sample_weight, device=parameters["device"], progress=progress,
        )  # fmt: skip
        predictor = predictor.scaled(1.0, fitted.predictor.odds_scale)
        after = replace(after, predictor=predictor, history=predictor.history)
    if can_remember:
        limit = None if corrects else max(settings.neighbours, 1)
        after = after.remembering(new_rows.rows, new_rows.traces, new_rows.texts, limit)
    return after if fitted.examples is None else after.keeping(new_rows.rows, new_rows.traces, settings.seed)


def encode_more(
    fitted: Fitted, source: RowsInMemory, parameters: Mapping[str, Any], taxonomy: Taxonomy | None
) -> tuple[Fitted, EncodedRows, HeldOut | None]:
    """Return a classifier transferred to the labels of more rows, these rows, and their validation rows."""
    several = fitted.codec.sets is not None
    labelled = source.read(parameters, taxonomy, SilentProgress(), several=several)
    moved, held_out = transfer_fitted(fitted, labelled.codec), None
    if labelled.valid is not None:
        held_out = held_out_rows(moved, *labelled.valid, seed_of(parameters["random_state"]))
    rows, texts = moved.feature_rows(labelled.rows), moved.texts_to_remember(labelled.rows)
    return moved, EncodedRows(rows, labelled.traces, labelled.weights, texts), held_out


def finish_update(
    before: Fitted, after: Fitted, parameters: Mapping[str, Any], renamed: Mapping[str, str] | None = None
) -> tuple[Fitted, list[str]]:
    """Learn thresholds and calibrate again on validation rows that the model keeps, and check kept rows.

    The risk of the calibration before the update stays. Return the classifier, and warnings.
    """
    held, warnings, calibration = kept_rows(after), [], before.calibration
    after = replace(after, calibration=None)
    if held is not None and len(held.truth):
        if after.set_rule is not None and after.set_rule.rows:
            after = after.with_thresholds(held.rows, held.truth, parameters)
        if calibration is not None and len(held.truth) >= MIN_ROWS:
            bound, temperature = calibration.promise, calibration.temperature
            risk, certainty = (None, CERTAINTY) if bound is None else (bound.risk, bound.certainty)
            try:
                after = calibrated(after, held, risk, certainty, temperature, parameters)
            except HiNetError as error:
                warnings.append(f"the threshold of the calibration is removed: {error}")
                after = calibrated(after, held, None, CERTAINTY, temperature, parameters)
    after = replace(after, update_check=check_update(before, after, parameters["decoding"], renamed))
    if after.update_check is not None and after.update_check.has_lost:
        warnings.append(after.update_check.warning)
    return after, warnings


def calibrated(
    fitted: Fitted,
    held: HeldOut,
    risk: float | None,
    certainty: float,
    temperature: float,
    parameters: Mapping[str, Any],
) -> Fitted:
    """Return the classifier calibrated on held-out rows; logits were divided by ``temperature`` before."""
    fitted, calibration = calibrate_fitted(
        fitted, held.rows, held.truth, risk, certainty,
        temperature=temperature, seed=seed_of(parameters["random_state"]), foreign=held.foreign,
    )  # fmt: skip
    if fitted.codec.sets is not None:
        fitted = fitted.with_thresholds(held.rows, held.truth, parameters)
    return replace(fitted, calibration=calibration)


def check_update(
    before: Fitted, after: Fitted, decoding: Decoding, renamed: Mapping[str, str] | None = None
) -> UpdateCheck | None:
    """Return the scores of kept rows that still have labels; None if there are no such rows.

    Training rows are checked only if there are no validation rows.
    """
    kept = before.held_out
    if kept is None and before.examples is not None:
        kept = before.examples.checked()
    if kept is None:
        return None
    change = TaxonomyChange.between(before.codec.taxonomy, after.codec.taxonomy, renamed)
    moved, which = kept.moved(change.new_position)
    if not len(moved):
        return None
    return UpdateCheck(
        "accuracy" if after.codec.sets is None else "micro_f1",
        before.score(kept.rows[which], kept.take(which).truth(before.codec.taxonomy), decoding),
        after.score(moved.rows, moved.truth(after.codec.taxonomy), decoding),
        len(moved),
        before.held_out is not None,
    )


def _new_labels(before: Fitted, fitted: Fitted, new_rows: EncodedRows) -> NDArray[np.bool_]:
    """(labels of the rows,) Whether each label is new to the model, as far as it is known.

    Raises
    ------
    HiNetError
        If all rows of a model of sets have new labels and it keeps no others: it would then predict them for all rows.
    """
    ids = fitted.codec.taxonomy.ids
    known = {before.codec.taxonomy.ids[node] for node in before.codec.label_nodes.tolist()}
    nodes = new_rows.traces.end_nodes
    is_new = np.array([ids[node] not in known for node in nodes.tolist()], bool)
    if fitted.examples is not None:
        return is_new | ~np.isin(nodes, fitted.examples.nodes)
    owner = np.repeat(np.arange(len(new_rows.traces)), np.diff(new_rows.traces.row_offsets))
    if fitted.codec.sets is not None and is_new.any() and len(np.unique(owner[is_new])) == len(new_rows.traces):
        raise HiNetError(
            "all rows have a new label, and the model keeps no rows without it: it would predict the label for every "
            "row; add rows of other labels, or train again on all rows"
        )
    return is_new


def _share_of_new(fitted: Fitted, count: int) -> float:
    """Return the share of ``count`` new rows in all rows ever trained on."""
    trained = [fitted.fingerprint, *fitted.fingerprint.get("before", ())]
    return count / max(count + sum(int(each.get("rows", 0)) for each in trained), 1)


def _settings(
    settings: EngineSettings, fitted: Fitted, new_rows: EncodedRows, training: EncodedRows, *, has_new: bool
) -> EngineSettings:
    """Return settings that learn new rows and forget little; few rows train mainly the wide expert."""
    share = _share_of_new(fitted, len(new_rows.traces))
    model = fitted.predictor.model if isinstance(fitted.predictor, Search) else None
    has_wide = model is not None and model.mix.wide > 0
    epochs = int(np.clip(round(MIN_VISITS / max(len(training.traces), 1)), MIN_EPOCHS, MAX_EPOCHS))
    lowest = MIN_DEEP_RATE if has_wide and not has_new else MIN_DEEP_RATE_OF_NEW
    return replace(
        settings,
        patience=None,  # there are no validation rows to train with
        deep_epochs=settings.deep_epochs or (None if model is None else epochs),
        deep_rate=float(np.clip(DEEP_RATE_OF_SHARE * share, lowest, settings.deep_rate)),
        wide_rate=WIDE_RATE_FACTOR * settings.wide_rate_for(RowShape.of(new_rows.rows).features),
    )


def _with_kept_rows(new_rows: EncodedRows, fitted: Fitted) -> EncodedRows:
    """Return new rows followed by the training rows that the model keeps; few new rows get a higher weight."""
    if fitted.examples is None:
        return new_rows
    layers = new_rows.traces.layers
    kept = fitted.examples.rehearsed(has_held_out=fitted.held_out is not None).with_labels(traceable(layers))
    traces = Traces.joined(layers, [new_rows.traces, kept.traces(layers)])
    rows = _unlabelled(new_rows.rows).joined(kept).rows
    count = len(new_rows.traces)
    weights = np.ones(count) if new_rows.sample_weight is None else new_rows.sample_weight
    factor = float(np.clip(NEW_SHARE * len(kept) / max(count, 1), 1, MAX_NEW_WEIGHT))
    return EncodedRows(rows, traces, np.concatenate([factor * weights, np.ones(len(kept))]))


def _unlabelled(rows: Any) -> Examples:
    return Examples.of_nodes(rows, np.zeros(0, np.int64), np.zeros(rows.shape[0], np.int64))


def _taught(before: Predictor, moved: Predictor, change: TaxonomyChange, rows: Any) -> Predictor:
    """Return ``moved`` with the options above moved nodes trained on the answers before."""
    old_traces = before.uncorrected().traces(rows, TRACES_PER_ROW).traces
    targets = option_targets(old_traces, moved.layers, change.new_position)
    sources = OutputTransfer.between(before.layers, moved.layers, np.append(change.old_position, -1))
    return moved.taught(learning_rows(sources, moved.layers, change.nodes_with_other_labels()), targets, rows)
