"""scikit-learn linear models: flat, and with HiClass one per parent node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from peers.data import PeerData
from peers.ngrams import NGrams
from peers.peer import Answers, Peer


class LinearSVM(Peer):
    """A flat one-versus-rest LinearSVC."""

    modules = ("sklearn.svm", "sklearn.linear_model", *NGrams.modules)

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train on all labels."""
        self.features, self.model = NGrams(data), self._model()
        self.model.fit(self.features.fit_transform(texts), np.array(labels))

    def _model(self) -> Any:
        from sklearn.svm import LinearSVC

        return LinearSVC(C=self.settings["C"])

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the label with the highest score."""
        return Answers(self.model.predict(self.features.transform(texts)).tolist())


class LogisticRegression(LinearSVM):
    """A flat logistic regression with one softmax over all labels."""

    def _model(self) -> Any:
        from sklearn.linear_model import LogisticRegression as Logistic

        return Logistic(C=self.settings["C"], max_iter=self.settings.get("iterations", 100))

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the most probable label."""
        p = self.model.predict_proba(self.features.transform(texts))
        return Answers(self.model.classes_[p.argmax(axis=1)].tolist(), p.max(axis=1))


class PerParentNode(Peer):
    """HiClass with one linear model per parent node, top down."""

    packages = ("hiclass", "scikit-learn")
    modules = ("hiclass", *LinearSVM.modules)

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train a model for the children of each node."""
        from hiclass import LocalClassifierPerParentNode
        from sklearn.linear_model import LogisticRegression as Logistic
        from sklearn.svm import LinearSVC

        kind = LinearSVC if self.settings["local"] == "svm" else Logistic
        self.features = NGrams(data)
        self.model = LocalClassifierPerParentNode(local_classifier=kind(C=self.settings["C"]), n_jobs=self.threads)
        paths = [data.path(label) for label in labels]
        depth = max(map(len, paths))
        padded = np.array([[*path, *[""] * (depth - len(path))] for path in paths], dtype=object)
        self.model.fit(self.features.fit_transform(texts), padded)

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the last node of each path."""
        paths = self.model.predict(self.features.transform(texts))
        return Answers([[str(node) for node in path if node != ""][-1] for path in paths])
