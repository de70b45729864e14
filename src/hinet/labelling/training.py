"""Train the model of a project on its taxonomy and labels, in a process of its own next to the service.

The process ends with the service. Its arguments are the folder, the number of threads, and the niceness. The model
replaces the old one by one rename. A training starts when there are enough new labels, and is retried if it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import IO, Any, NamedTuple

from hinet.classifier.saved_model import COLUMNS
from hinet.data.tables import Columns
from hinet.errors import HiNetError
from hinet.files.database import utc_now
from hinet.labelling.folder import ProjectFolder, ProjectSettings
from hinet.labelling.store import LabelStore, Ledger
from hinet.parameters import resolve_threads
from hinet.progress import SilentProgress
from hinet.taxonomy import Taxonomy

NOTE = "labelling"  # note in the manifest with what the model was trained on
COLUMNS_OF_ROWS = Columns(text=("text",), label=("label",))
PROGRAM = (sys.executable, "-P", "-m", "hinet.labelling.training")  # -P: nothing of the current folder is imported
MIN_LABELS, MAX_LABELS = 25, 1_000  # new labels that start a training
GROWTH = 4  # a training starts when the labels have grown by a quarter
RETRY_SECONDS, MAX_RETRY_SECONDS = 60.0, 3_600.0  # time until a failed training is tried again, doubled each time
STOP_SECONDS = 10.0
NICENESS = 10
MAX_REASON = 500  # characters


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

    settings = folder.settings()
    with closing(LabelStore.open(folder.database)) as store:
        labels, texts = store.labels(), store.texts()
    counted = sorted(Ledger(labels).counted.items())
    undone = tuple(label.id for label in labels if label.undone is not None)
    trained_on = TrainedOn(max((label.id for label in labels), default=0), len(counted), utc_now(), undone)
    compile_for_training()
    classifier = fitted_classifier(
        Taxonomy.from_file(folder.taxonomy), [texts[row - 1] for row, _ in counted],
        [label.nodes for _, label in counted], settings, threads,
    )  # fmt: skip
    folder.model.parent.mkdir(exist_ok=True)
    classifier.save(folder.model, notes={COLUMNS: COLUMNS_OF_ROWS.to_dict(), NOTE: trained_on._asdict()})


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


class Running(NamedTuple):
    """A training that runs."""

    started: str
    rows: int
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    @classmethod
    def start(cls, folder: ProjectFolder, rows: int, threads: int, niceness: int) -> Running:
        """Start a training; it ends when its standard input is closed, or this process ends."""
        started, errors = utc_now(), tempfile.TemporaryFile()  # noqa: SIM115 open as long as the process
        try:
            process = subprocess.Popen(
                [*PROGRAM, str(folder.path.resolve()), str(threads), str(niceness)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        except OSError as error:
            errors.close()
            raise HiNetError(f"training cannot start: {error}") from None
        return cls(started, rows, process, errors)

    def stop(self) -> None:
        """End the process, if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.errors.close()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()

    def problem(self) -> str | None:
        """Return why a training that has ended failed, by the last line that it wrote; None if it ended well."""
        code = self.process.returncode
        if not code:
            return None
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        ended = f"was ended by signal {-code}" if code < 0 else "failed"
        return f"training {ended}: {lines[-1] if lines else 'no reason is known'}"[:MAX_REASON]


def train_first(folder: ProjectFolder) -> None:
    """Train the first model in a process of its own, and wait for it; raise HiNetError if it fails."""
    running = Running.start(folder, 0, resolve_threads(None), niceness=0)
    try:
        running.process.wait()
        problem = running.problem()
    finally:
        running.stop()
    if problem is not None:
        raise HiNetError(problem)


def labels_to_wait_for(rows: int) -> int:
    """Return the number of new labels that starts the next training of a model that knows some labelled rows.

    >>> [labels_to_wait_for(rows) for rows in (0, 100, 1_000, 19_000)]
    [25, 25, 250, 1000]
    """
    return min(max(MIN_LABELS, rows // GROWTH), MAX_LABELS)


class Retrainer:
    """Starts trainings and watches them."""

    def __init__(self, folder: ProjectFolder, clock: Callable[[], float] = monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._failures, self._not_before = 0, 0.0
        self._state: object = None  # state of the labels when the last training started
        self.running: Running | None = None
        self.problem: str | None = None  # why the last training failed

    def may_start(self, state: object) -> bool:
        """Return whether no training runs, the last one did not fail just now, or end well with these labels."""
        has_news = self.problem is not None or state != self._state  # else the model may be one that cannot be loaded
        return self.running is None and has_news and self._clock() >= self._not_before

    def start(self, rows: int, state: object) -> None:
        """Start a training on a number of labelled rows, with all threads but one, which answers."""
        self._state = state
        try:
            self.running = Running.start(self._folder, rows, max(1, resolve_threads(None) - 1), NICENESS)
        except HiNetError as error:
            self._fail(str(error))

    def finished(self) -> bool:
        """Return whether a training has just ended well; a failure is kept as ``problem``."""
        if self.running is None or self.running.process.poll() is None:
            return False
        problem = self.running.problem()
        self.close()
        if problem is not None:
            self._fail(problem)
            return False
        self.problem, self._failures = None, 0
        return True

    def _fail(self, reason: str) -> None:
        self.problem = reason
        wait = min(RETRY_SECONDS * 2**self._failures, MAX_RETRY_SECONDS)
        self._failures, self._not_before = self._failures + 1, self._clock() + wait

    def close(self) -> None:
        """Stop a training that runs; the old model stays."""
        running, self.running = self.running, None
        if running is not None:
            running.stop()


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
