"""``hinet update``: a saved model goes over to a changed taxonomy, and learns from more rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.column_options import ColumnChoice, names_columns
from hinet.cli.finishing import calibrate, tell_model
from hinet.cli.models import COLUMNS, LoadedModel
from hinet.cli.options import Running, option, runs
from hinet.cli.row_options import FILES, RowReading, reads_rows
from hinet.cli.training_options import ValidationChoice, validates
from hinet.errors import FileError, HiNetError, did_you_mean

if TYPE_CHECKING:  # imported when the command runs, so that --help stays instant
    from hinet import HiNetClassifier, Taxonomy
    from hinet.cli.training_rows import LabelledTexts
    from hinet.data.tables import Columns

EXAMPLE = "Example: hinet update model --taxonomy new_categories.csv --rename tv=television --rows more.csv"


@runs
@reads_rows
@names_columns
@validates
def update(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)],
    rows: RowReading,
    named: ColumnChoice,
    validation: ValidationChoice,
    running: Running,
    taxonomy: Annotated[Path | None, option("--taxonomy", "The changed hierarchy, in any format of 'train'.")] = None,
    rename: Annotated[
        list[str] | None, option("--rename", "OLD=NEW: a node that has another id now; repeat it for more.")
    ] = None,
    more: Annotated[
        list[str] | None, option("--rows", f"Labelled rows to learn from; repeat it for more. {FILES}")
    ] = None,
    out: Annotated[
        str | None, option("--out", "Folder of the updated model; by default it replaces the old one.")
    ] = None,
) -> None:
    """Take a model over to a changed taxonomy, and teach it more rows, keeping what it has learned.

    Prints what was added, moved, renamed and removed. New nodes need rows to be answered; moved ones are learned from
    rows that the model keeps, and from --rows. Labels of --rows are nodes of the new taxonomy. A model whose hierarchy
    came from its labels learns --rows alone, new labels included. An update voids the calibration: validation rows,
    which must be new to the model, give another.
    """
    from hinet.evaluation.risk import validate_share

    start = time.perf_counter()
    target = model if out is None else Path(out)
    _check(taxonomy, rename or [], more or [], validation)
    validate_share("risk", validation.risk)
    validate_share("--valid-share", validation.share)
    writes = {} if out is None or target.resolve() == model.resolve() else {"--out": target}
    rows.check_outputs([*(more or []), *validation.files, taxonomy], writes, str(target), model)
    classifier, manifest = _loaded(model, target, running)
    hierarchy = _new_taxonomy(classifier, taxonomy, model)
    renamed = {} if hierarchy is None else _renamed(rename or [], classifier.taxonomy_, hierarchy)
    _tell_change(classifier, hierarchy, renamed, bool(more), running)
    noted = LoadedModel(classifier.fitted_, manifest).columns
    train, valid, columns = _read(more or [], validation, rows, named, hierarchy, noted, str(target), running.seed)
    was_calibrated = hasattr(classifier, "calibration_")
    _learn(classifier, hierarchy, renamed, train, running)
    broken_promise = None
    if valid is not None:
        broken_promise = _validated(classifier, valid, validation.risk)
    elif was_calibrated:
        running.say("the calibration is void: give validation rows for another, with --valid or --valid-share")
    notes = {**(manifest.get("notes") or {}), COLUMNS: columns.to_dict()}
    classifier.save(target, half=bool(manifest["model"].get("half")), notes=notes)
    tell_model(classifier, target, time.perf_counter() - start, running)
    if broken_promise is not None:
        raise HiNetError(f"the model is saved, but without its promise: {broken_promise}")


def _check(taxonomy: Path | None, rename: list[str], more: list[str], validation: ValidationChoice) -> None:
    if taxonomy is None and not more:
        raise HiNetError("there is nothing to update; give --taxonomy, --rows or both")
    if rename and taxonomy is None:
        raise HiNetError("--rename goes with --taxonomy, which has the new ids; give it")
    for given, name in ((validation.where, "--valid-where"), (validation.share, "--valid-share")):
        if given is not None and not more:
            raise HiNetError(f"{name} chooses among --rows; give these, or a file as --valid")
    validation.require("--risk", validation.risk)


def _loaded(model: Path, target: Path, running: Running) -> tuple[HiNetClassifier, dict[str, Any]]:
    from hinet.classifier.estimator import load_with_manifest
    from hinet.classifier.model_folder import check_target

    check_target(target)
    classifier, manifest = load_with_manifest(model)
    if manifest["features"]["kind"] != "text":
        raise FileError(model, "the model reads rows of numbers, which tables of text cannot give; use it from Python")
    return classifier.set_params(n_jobs=running.threads, random_state=running.seed, verbose=not running.quiet), manifest


def _new_taxonomy(classifier: HiNetClassifier, path: Path | None, model: Path) -> Taxonomy | None:
    """Return the taxonomy to go over to, or none for a model whose hierarchy grows with its labels."""
    from hinet import Taxonomy

    inferred = classifier.fitted_.form.inferred
    if path is None:
        return None if inferred else classifier.taxonomy_
    if inferred:
        raise FileError(
            model, "the hierarchy of the model came from its labels; give --rows alone, or train it with --taxonomy"
        )
    return Taxonomy.from_file(path)


def _renamed(given: list[str], old: Taxonomy, new: Taxonomy) -> dict[str, str]:
    """Return pairs OLD=NEW as a mapping; where ids hold the sign too, it is cut where both sides are known."""
    renamed: dict[str, str] = {}
    for pair in given:
        places = [place for place, sign in enumerate(pair) if sign == "="]
        cuts = [(pair[:place].strip(), pair[place + 1 :].strip()) for place in places]
        if not cuts or not all(cuts[0]):
            raise HiNetError(f"--rename is OLD=NEW, such as tv=television; got {pair!r}")
        before, after = next((cut for cut in cuts if cut[0] in old and cut[1] in new), cuts[0])
        for name, taxonomy, which in ((before, old, "the model's"), (after, new, "the new")):
            if name not in taxonomy:
                hint = did_you_mean(name, taxonomy.ids)
                raise HiNetError(f"--rename {pair}: {which} taxonomy has no node {name!r}{hint}")
        if before in renamed:
            raise HiNetError(f"--rename names {before!r} twice; give it one new id")
        renamed[before] = after
    return renamed


def _tell_change(
    classifier: HiNetClassifier, new: Taxonomy | None, renamed: dict[str, str], has_rows: bool, running: Running
) -> None:
    """Say what changes, or that nothing does."""
    from hinet.taxonomy import TaxonomyChange

    if new is None or new is classifier.taxonomy_:
        return
    if new == classifier.taxonomy_ and not has_rows:
        raise HiNetError("the taxonomy is the one that the model has; nothing to update")
    change = TaxonomyChange.between(classifier.taxonomy_, new, renamed)
    typer.echo(str(change))
    if change.moved and classifier.fitted_.examples is None and not has_rows:
        running.say("the model keeps no rows: without --rows, nodes that moved will hardly be answered")


def _read(
    more: list[str],
    validation: ValidationChoice,
    rows: RowReading,
    named: ColumnChoice,
    hierarchy: Taxonomy | None,
    usual: Columns,
    beside: str,
    seed: int,
) -> tuple[LabelledTexts | None, LabelledTexts | None, Columns]:
    """Return rows to learn from and rows to validate by, where there are any, and the columns they are in."""
    from hinet.cli.training_rows import read_rows, read_training_rows

    if more:
        given = read_training_rows(more, validation, rows, named, hierarchy, beside=beside, seed=seed, usual=usual)
        return given.train, given.valid, given.columns
    columns = named.over(usual)
    valid = read_rows(validation.files, columns, rows, hierarchy, beside) if validation.files else None
    return None, valid, columns


def _learn(
    classifier: HiNetClassifier,
    hierarchy: Taxonomy | None,
    renamed: dict[str, str],
    train: LabelledTexts | None,
    running: Running,
) -> None:
    if train is not None:
        running.say(f"{len(train):,} rows to learn from, with {len(train.distinct_labels):,} labels")
    if hierarchy is None and train is not None:
        classifier.partial_fit(train.texts, train.labels)
    elif hierarchy is not None:
        texts, labels = (None, None) if train is None else (train.texts, train.labels)
        classifier.update_taxonomy(hierarchy, renamed, texts, labels)


def _validated(classifier: HiNetClassifier, valid: LabelledTexts, risk: float | None) -> HiNetError | None:
    """Judge the model by validation rows, and calibrate it; return why the risk cannot be promised, if so."""
    from hinet.classifier.fitting import HeldOut, judged

    held = HeldOut(classifier.features_of(valid.texts), classifier.fitted_.form.truth(valid.labels))
    metrics = judged(classifier.fitted_, held, classifier.decoding)
    broken_promise = calibrate(classifier, len(valid), risk, valid.texts, valid.labels)
    classifier.metrics_["validation"] = metrics
    return broken_promise
