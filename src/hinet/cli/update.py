"""``hinet update``: a saved model adapted to a changed taxonomy and trained on more rows."""

from __future__ import annotations

import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.options import AsJson, EncoderFolder, ModelFolder, RunOptions, option, print_json
from hinet.cli.table_options import FILES, ColumnOptions, RowOptions
from hinet.cli.training import ValidationOptions, calibrate, report_model
from hinet.errors import FileError, HiNetError, counted

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet import HiNetClassifier, Taxonomy
    from hinet.classifier.saved_model import LoadedModel
    from hinet.cli.training_rows import LabelledInputs, RowFiles
    from hinet.data.tables import Columns
    from hinet.taxonomy import TaxonomyChange

MAX_NEW_NODES = 10  # maximum number of new nodes in the report


def update(
    model: ModelFolder,
    column_options: ColumnOptions,
    validation: ValidationOptions,
    rows: RowOptions,
    run: RunOptions,
    taxonomy: Annotated[Path | None, option("File of the changed hierarchy (default: unchanged).")] = None,
    rename: Annotated[list[str] | None, option("OLD=NEW: a node whose id changed; repeatable.")] = None,
    more: Annotated[list[str] | None, option(f"Labelled rows to train on; repeatable. {FILES}", "--rows")] = None,
    out: Annotated[str | None, option("Folder for the updated model (default: replace the old one).")] = None,
    encoder: EncoderFolder = None,
    as_json: AsJson = False,
) -> None:
    """Adapt a model to a changed taxonomy, train it on more rows, or both.

    Example: hinet update model --taxonomy new_categories.csv --rename tv=television --rows more.csv

    Prints which nodes were added, moved, renamed and removed. New nodes need --rows; moved nodes are trained on rows
    that the model keeps, and on --rows, whose labels are nodes of the new taxonomy. A model whose hierarchy was
    inferred from its labels takes only --rows, with new labels if there are any. A model that has seen no rows is
    retrained on its taxonomy and --rows. The model is checked and calibrated again on validation rows that it keeps,
    and on those that are given, which must be new to it. A warning says if rows that it keeps are answered worse than
    before.
    """
    from hinet.classifier.calibration import MIN_ROWS
    from hinet.classifier.model_folder import check_target, read_manifest
    from hinet.classifier.saved_model import COLUMNS, LoadedModel
    from hinet.cli.training_rows import RowFiles
    from hinet.files import locked

    start = time.perf_counter()
    read_manifest(model)  # raises if there is no model, before options are checked
    target = model if out is None else Path(out)
    more, rename = more or [], rename or []
    _check(taxonomy, rename, more, validation)
    in_place = target.resolve() == model.resolve()
    rows.check_outputs([*more, *validation.files, taxonomy], {} if in_place else {"--out": target}, str(target), model)
    check_target(target)
    waiting = partial(run.message, f"waiting for another process that writes to {model}")
    with locked(model, waiting=waiting) if in_place else nullcontext():  # held until the model is saved
        classifier, manifest = _load(model, encoder, run)
        hierarchy = _new_taxonomy(classifier, taxonomy, model)
        renamed = {} if hierarchy is None else _parse_renames(rename, classifier.taxonomy_, hierarchy)
        change = _change(classifier, hierarchy, renamed, bool(more), run)
        if change is not None and not as_json:
            typer.echo(str(change))
        loaded = LoadedModel(classifier.fitted_, manifest)
        files = RowFiles(more, rows, column_options, validation, str(target), hierarchy)
        train, valid, columns = _read(files, loaded, run)
        new_nodes = _new_nodes(classifier, train) if hierarchy is None and train is not None else ()
        messages = _learn(classifier, hierarchy, renamed, train)
        risk_error = None if valid is None else _validate(classifier, valid, validation.risk)
        if manifest["calibration"] is not None and not hasattr(classifier, "calibration_"):
            remedy = f"give --valid with at least {MIN_ROWS} rows to calibrate it"
            run.message(f"the model is no longer calibrated; {remedy}")
        notes = {**(manifest.get("notes") or {}), COLUMNS: columns.to_dict()}
        half, replaces = bool(manifest["model"].get("half")), manifest["blake2b"] if in_place else None
        classifier.save(target, half=half, notes=notes, replaces=replaces)
        _print_result(classifier, target, change, new_nodes, messages, as_json)
        report_model(classifier, target, time.perf_counter() - start, run, risk_error)


def _check(taxonomy: Path | None, rename: list[str], more: list[str], validation: ValidationOptions) -> None:
    if taxonomy is None and not more:
        raise HiNetError("there is nothing to update; give --taxonomy, --rows or both")
    if rename and taxonomy is None:
        raise HiNetError("--rename needs --taxonomy, which has the new ids")
    for value, name in ((validation.valid_where, "--valid-where"), (validation.valid_share, "--valid-share")):
        if value is not None and not more:
            raise HiNetError(f"{name} selects from --rows; give --rows, or a file with --valid")
    validation.check()


def _load(model: Path, encoder: str | None, run: RunOptions) -> tuple[HiNetClassifier, dict[str, Any]]:
    from hinet import HiNetClassifier
    from hinet.classifier.saved_model import load_classifier

    classifier, manifest = load_classifier(HiNetClassifier, model, encoder=encoder)
    if manifest["features"]["kind"] not in ("text", "frame"):
        raise FileError(model, "the model takes numeric features, not texts; use it from Python")
    return classifier.set_params(**run.parameters), manifest


def _new_taxonomy(classifier: HiNetClassifier, path: Path | None, model: Path) -> Taxonomy | None:
    """Return the new taxonomy, or None for a model whose hierarchy is inferred from its labels."""
    from hinet import Taxonomy

    inferred = classifier.fitted_.codec.inferred
    if path is None:
        return None if inferred else classifier.taxonomy_
    if inferred:
        raise FileError(
            model, "the hierarchy of the model is inferred from its labels; give only --rows, or train with --taxonomy"
        )
    return Taxonomy.from_file(path)


def _parse_renames(pairs: list[str], old: Taxonomy, new: Taxonomy) -> dict[str, str]:
    """Return pairs OLD=NEW as a mapping; if ids contain =, split where both sides are known ids."""
    renamed: dict[str, str] = {}
    for pair in pairs:
        marks = [mark for mark, sign in enumerate(pair) if sign == "="]
        splits = [(pair[:mark].strip(), pair[mark + 1 :].strip()) for mark in marks]
        if not splits or not all(splits[0]):
            raise HiNetError(f"--rename is OLD=NEW, such as tv=television; got {pair!r}")
        before, after = next((split for split in splits if split[0] in old and split[1] in new), splits[0])
        for name, taxonomy, which in ((before, old, "the model's"), (after, new, "the new")):
            if name not in taxonomy:
                hint = taxonomy.hint_for(name)
                raise HiNetError(f"--rename {pair}: {which} taxonomy has no node {name!r}{hint}")
        if before in renamed:
            raise HiNetError(f"--rename names {before!r} twice; give it one new id")
        renamed[before] = after
    return renamed


def _change(
    classifier: HiNetClassifier, new: Taxonomy | None, renamed: dict[str, str], has_rows: bool, run: RunOptions
) -> TaxonomyChange | None:
    """Return the changes of the taxonomy, if one is given; raise HiNetError if there is nothing to update."""
    from hinet.taxonomy import TaxonomyChange

    if new is None or new is classifier.taxonomy_:
        return None
    if new == classifier.taxonomy_ and not has_rows:
        raise HiNetError("the taxonomy is that of the model; there is nothing to update")
    change = TaxonomyChange.between(classifier.taxonomy_, new, renamed)
    if change.added and change.removed and not renamed:
        run.message("a node with another id counts as removed and added; name it with --rename OLD=NEW")
    fitted = classifier.fitted_
    if change.moved and fitted.examples is None and not fitted.has_no_rows and not has_rows:
        run.message("the model keeps no rows: without --rows, moved nodes will rarely be predicted")
    return change


def _print_result(
    classifier: HiNetClassifier,
    target: Path,
    change: TaxonomyChange | None,
    new_nodes: tuple[str, ...],
    messages: list[str],
    as_json: bool,
) -> None:
    """Print new nodes; as JSON also changes, the check on kept rows, the calibration, and warnings."""
    if not as_json:
        if new_nodes:
            further = f" (and {len(new_nodes) - MAX_NEW_NODES:,} more)" if len(new_nodes) > MAX_NEW_NODES else ""
            typer.echo(f"new nodes: {', '.join(new_nodes[:MAX_NEW_NODES])}{further}")
        return
    check, calibration = (getattr(classifier, name, None) for name in ("update_check_", "calibration_"))
    parts = ("added", "moved", "renamed", "removed")
    result = {
        "model": str(target),
        "change": None if change is None else {name: getattr(change, name) for name in parts},
        "new_nodes": [*new_nodes],
        "update_check": None if check is None else asdict(check),
        "validation": classifier.metrics_.get("validation"),
        "calibration": None if calibration is None else asdict(calibration),
        "warnings": messages,
    }
    print_json(result)


def _read(
    files: RowFiles, loaded: LoadedModel, run: RunOptions
) -> tuple[LabelledInputs | None, LabelledInputs | None, Columns]:
    """Return training rows and validation rows, if there are any, and their columns; print changes of the columns."""
    from hinet.cli.training_rows import read_rows

    columns = loaded.checked_columns(files.column_options.with_defaults(loaded.columns))
    train = valid = None
    if files.data:
        data = replace(files, defaults=columns).read(run.seed)
        train, valid, columns = data.train, data.valid, data.columns
    elif files.validation.files:
        valid = read_rows(files.validation.files, columns, files.rows, files.hierarchy, files.output)
    for kind in ("text", "number", "category", "vector", "label"):
        old, new = (", ".join(getattr(names, kind)) for names in (loaded.columns, columns))
        if old != new:
            run.message(f"the model now reads {new} by default instead of {old}; --{kind} names other columns")
    if train is not None:
        run.message(f"{counted(len(train), 'training row')} with {counted(len(train.distinct_labels), 'label')}")
    train, valid = (
        None if part is None else replace(part, inputs=loaded.named_as_trained(part.inputs)) for part in (train, valid)
    )
    return train, valid, columns


def _learn(
    classifier: HiNetClassifier, hierarchy: Taxonomy | None, renamed: dict[str, str], train: LabelledInputs | None
) -> list[str]:
    """Transfer and train the model; print the warnings, even if the command is quiet, and return them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if hierarchy is not None:
            classifier.update_taxonomy(hierarchy, renamed, *((None, None) if train is None else train.pair))
        elif train is not None:
            classifier.partial_fit(*train.pair)
    messages = [str(warning.message) for warning in caught]
    for message in messages:
        typer.echo(f"warning: {message}", err=True)
    return messages


def _new_nodes(classifier: HiNetClassifier, train: LabelledInputs) -> tuple[str, ...]:
    """Return the nodes that an inferred hierarchy gains by new labels."""
    codec = classifier.fitted_.codec
    return codec.taxonomy_with(codec.truth(train.labels).whole_ids()).ids[len(codec.taxonomy) :]


def _validate(classifier: HiNetClassifier, valid: LabelledInputs, risk: float | None) -> HiNetError | None:
    """Evaluate and calibrate the model with validation rows; return why a risk is not guaranteed.

    If they are too few to calibrate, the validation rows that the model keeps are used as well.
    """
    from hinet.classifier.calibration import MIN_ROWS, HeldOut
    from hinet.classifier.fitted import Examples
    from hinet.classifier.training import validation_metrics

    held_out = HeldOut(classifier.features_of(valid.inputs), classifier.fitted_.codec.truth(valid.labels))
    metrics = validation_metrics(classifier.fitted_, held_out, classifier.decoding)
    if classifier.keep_examples:
        rows = Examples.of_truth(held_out.rows, held_out.truth)
        classifier.fitted_ = classifier.fitted_.holding(rows, classifier.random_state)
    kept = classifier.fitted_.held_out
    if kept is None or len(valid) >= MIN_ROWS:
        risk_error = calibrate(classifier, len(valid), risk, *valid.pair)
    else:
        risk_error = calibrate(classifier, len(kept), risk)
    classifier.metrics_["validation"] = metrics
    return risk_error
