"""Train the model of a project on its taxonomy and labels, next to the service: a program that ends with it.

Its arguments are the folder, the number of threads, and the niceness. The model replaces the old one by one rename.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from hinet.classifier.saved_model import COLUMNS
from hinet.data.tables import Columns
from hinet.errors import HiNetError
from hinet.labelling.folder import ProjectFolder, ProjectSettings
from hinet.labelling.ledger import Ledger
from hinet.labelling.store import LabelStore
from hinet.progress import SilentProgress
from hinet.taxonomy import Taxonomy

NOTE = "labelling"  # note in the manifest with what the model was trained on
COLUMNS_OF_ROWS = Columns(text=("text",), label=("label",))


class Snapshot(NamedTuple):
    """Labels to train on, and what to tell them by later."""

    texts: list[str]
    labels: list[tuple[str, ...]]
    last: int  # id of the newest label or skip
    undone: tuple[int, ...]  # ids

    @classmethod
    def of(cls, store: LabelStore) -> Snapshot:
        """Return the labels that count now."""
        labels = store.labels()
        texts, counted = store.texts(), sorted(Ledger(labels).counted.items())
        last = max((label.id for label in labels), default=0)
        undone = tuple(label.id for label in labels if label.undone is not None)
        return cls([texts[row - 1] for row, _ in counted], [label.nodes for _, label in counted], last, undone)


class TrainedOn(NamedTuple):
    """Rows and labels that a model was trained on."""

    last: int  # id of the newest label or skip at the time
    rows: int
    time: str
    undone: tuple[int, ...] = ()  # ids of labels and skips that were undone by then

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> TrainedOn:
        """Return what the manifest of a model says; nothing if the model was not trained by its project."""
        note = manifest.get("notes", {}).get(NOTE)
        return cls(0, 0, "") if note is None else cls(**{**note, "undone": tuple(note.get("undone", ()))})


def train(folder: ProjectFolder, threads: int | None = None) -> None:
    """Train on the labels of a project, or on its taxonomy alone, and replace its model."""
    from hinet.engine.compiling import compile_for_training  # slow to import

    settings, store = folder.settings(), LabelStore.open(folder.database)
    try:
        snapshot = Snapshot.of(store)
    finally:
        store.close()
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    trained_on = TrainedOn(snapshot.last, len(snapshot.texts), time, snapshot.undone)
    compile_for_training()
    taxonomy = Taxonomy.from_file(folder.taxonomy)
    classifier = fitted_classifier(taxonomy, snapshot.texts, snapshot.labels, settings, threads)
    notes = {COLUMNS: COLUMNS_OF_ROWS.to_dict(), NOTE: trained_on._asdict()}
    folder.model.parent.mkdir(exist_ok=True)
    classifier.save(folder.model, notes=notes)


def fitted_classifier(
    taxonomy: Taxonomy,
    texts: Sequence[str],
    labels: Sequence[Sequence[str]],
    settings: ProjectSettings,
    threads: int | None = None,
) -> Any:
    """Return a classifier trained on labels, or on the taxonomy alone; leaves and nodes with labels are its labels."""
    from hinet.classifier.estimator import HiNetClassifier
    from hinet.classifier.inputs import default_vectors

    vectors: Any = settings.vectors
    if vectors == "auto" and not settings.several:  # all experts read the vectors if labels are few
        found = default_vectors([*taxonomy.titles, *texts], SilentProgress(), few=True, alone=True)
        vectors = found and found.vectors
    classifier = HiNetClassifier(
        taxonomy, path_sep=None, vectors=vectors, multilabel=settings.several, random_state=settings.seed,
        n_jobs=threads,
    )  # fmt: skip
    leaves = (name for name, is_leaf in zip(taxonomy.ids, taxonomy.leaves.tolist(), strict=True) if is_leaf)
    classes = list(dict.fromkeys([*leaves, *(node for nodes in labels for node in nodes)]))
    if not texts:
        return classifier.fit_taxonomy(classes)
    y = [set(nodes) for nodes in labels] if settings.several else [nodes[0] for nodes in labels]
    return classifier.partial_fit(list(texts), y, classes=classes)


def _exit_with_parent() -> None:
    """End the process when its standard input does, which the service holds open."""
    while os.read(sys.stdin.fileno(), 1):  # a buffer would be locked when the process ends
        pass
    os._exit(1)


if __name__ == "__main__":
    os.nice(int(sys.argv[3]))
    Thread(target=_exit_with_parent, daemon=True).start()
    try:
        train(ProjectFolder(Path(sys.argv[1])), int(sys.argv[2]))
    except HiNetError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
