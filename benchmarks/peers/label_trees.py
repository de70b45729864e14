"""Trees of linear models over labels: Omikuji with its own trees, and napkinXC with the user's tree."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from peers.data import PeerData
from peers.ngrams import NGrams
from peers.peer import Answers, Peer

MODEL = "model"


class Omikuji(Peer):
    """Omikuji with scikit-learn n-grams, passed as a file."""

    packages = ("omikuji", "scikit-learn")
    modules = ("omikuji", *NGrams.modules)

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train the default of three trees."""
        import omikuji

        self.features, self.labels = NGrams(data), sorted(set(labels))
        number = {label: index for index, label in enumerate(self.labels)}
        parameters = omikuji.Model.default_hyper_param()
        for name, value in self.settings.items():
            setattr(parameters, name, value)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows.txt")
            _write_rows(path, self.features.fit_transform(texts), [number[label] for label in labels], len(number))
            self.model = omikuji.Model.train_on_data(str(path), parameters, n_threads=self.threads)

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the first result of a beam of ten."""
        rows = self.features.transform(texts)
        found = [self.model.predict(pairs, top_k=1) or [(0, 0.0)] for pairs in _pairs(rows)]
        return Answers([self.labels[label] for ((label, _),) in found], np.array([p for ((_, p),) in found]))

    def save(self, folder: Path) -> None:
        """Write the model in Omikuji's format, and the rest as a pickle."""
        model, self.model = self.model, None
        model.save(str(folder / MODEL))
        super().save(folder)
        self.model = model

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load both."""
        import omikuji

        peer = super().load(folder)
        peer.model = omikuji.Model.load(str(folder / MODEL))
        return peer


class LabelTree(Peer):
    """napkinXC's probabilistic label tree over the user's hierarchy."""

    packages = ("napkinxc", "scikit-learn")
    modules = ("napkinxc.models", *NGrams.modules)

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train a classifier per node; a label at an inner node is a leaf below it."""
        self.features, self.labels = NGrams(data), sorted(set(labels))
        self._folder = tempfile.TemporaryDirectory()
        self.model = self._model(Path(self._folder.name), tree_structure=tree_of(self.labels, data))
        number = {label: index for index, label in enumerate(self.labels)}
        self.model.fit(self.features.fit_transform(texts), [number[label] for label in labels])

    def _model(self, folder: Path, **tree: Any) -> Any:
        from napkinxc.models import PLT

        return PLT(str(folder), threads=self.threads, **self.settings, **tree)

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the most probable label by exact search."""
        found = self.model.predict_proba(self.features.transform(texts), top_k=1)
        best = [row[0] if row else (0, 0.0) for row in found]
        return Answers([self.labels[int(label)] for label, _ in best], np.array([p for _, p in best], np.float64))

    def save(self, folder: Path) -> None:
        """Copy the model folder, and write the rest as a pickle."""
        import shutil

        shutil.copytree(self._folder.name, folder / MODEL)
        kept = self.model, self._folder
        self.model = self._folder = None  # type: ignore[assignment]
        super().save(folder)
        self.model, self._folder = kept

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load both."""
        peer = super().load(folder)
        peer.model = peer._model(folder / MODEL)
        peer.model.load()
        return peer


def tree_of(labels: Sequence[str], data: PeerData) -> list[tuple[int, int, int]]:
    """Return the hierarchy in napkinXC's format: parent, node, and label or -1; the root is node 0."""
    number: dict[str, int] = {}
    edges: list[tuple[int, int, int]] = [(-1, 0, -1)]
    paths = [data.path(label) for label in labels]
    inner = {node for path in paths for node in path[:-1]}
    for index, path in enumerate(paths):
        parent = 0
        for node in path:
            if node not in number:
                number[node] = len(edges)
                edges.append((parent, number[node], -1 if node in inner else index))
            parent = number[node]
        if path[-1] in inner:
            edges.append((parent, len(edges), index))
    return edges


def _write_rows(path: Path, rows: Any, numbers: Sequence[int], labels: int) -> None:
    """Write rows in Omikuji's format; rows without features are left out, because Omikuji rejects them."""
    with path.open("w") as stream:
        stream.write(f"{int((np.diff(rows.indptr) > 0).sum())} {rows.shape[1]} {labels}\n")
        for label, pairs in zip(numbers, _pairs(rows), strict=True):
            if pairs:
                stream.write(f"{label} {' '.join(f'{feature}:{value:.6g}' for feature, value in pairs)}\n")


def _pairs(rows: Any) -> Any:
    """Yield the features of each row with their values."""
    indices, values, bounds = rows.indices.tolist(), rows.data.tolist(), rows.indptr.tolist()
    for first, last in pairwise(bounds):
        yield list(zip(indices[first:last], values[first:last], strict=True))
