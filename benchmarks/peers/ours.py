"""hinet with its default settings and variants, and the paper's Flatten Network."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from hinet import HiNetClassifier, Layers, Traces, load
from hinet.data.text import TextFeatures, TextSettings
from peers.data import PeerData
from peers.peer import Answers, Peer

MODEL = "model"
SINGLE_WORDS = TextSettings(word_ngrams=(1, 1), char_ngrams=None, min_df=1)


class HiNet(Peer):
    """HiNetClassifier, with defaults unless settings are given."""

    packages: ClassVar[tuple[str, ...]] = ()  # the results record the commit

    def prepare(self, data: PeerData) -> None:
        """Load or compile the kernels, and distil static vectors, which do not depend on the data set."""
        self.classifier = HiNetClassifier(**self._parameters(data))
        sample = data.train.take(range(min(len(data.train), 50)))
        HiNetClassifier(data.taxonomy, vectors=None, epochs=1).fit(*sample.single()).predict(sample.texts[:1])

    def _parameters(self, data: PeerData) -> dict[str, Any]:
        text = SINGLE_WORDS if data.single_words else None
        return {"taxonomy": data.taxonomy, "n_jobs": self.threads, "text": text, "vectors": None, **self.settings}

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train the classifier."""
        self.classifier.fit(list(texts), list(labels))

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the labels of the most probable traces."""
        found = self.classifier.predict_traces(list(texts))
        return Answers(list(found.traces.decode()), np.minimum(np.exp(found.log_p), 1))

    def save(self, folder: Path) -> None:
        """Write a model folder."""
        self.classifier.save(folder / MODEL)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a model folder."""
        peer = cls()
        peer.classifier = load(folder / MODEL)
        return peer


class HiNetWithCharacters(HiNet):
    """hinet with character n-grams, which are off by default for large sets of longer texts."""

    def _parameters(self, data: PeerData) -> dict[str, Any]:
        text = SINGLE_WORDS if data.single_words else TextSettings(char_ngrams=(3, 5))
        return {**super()._parameters(data), "text": text}


class HiNetWithMeaning(HiNet):
    """hinet as it is with the extra ``meaning``: texts with unknown words are compared with known ones."""

    packages = ("wordllama",)

    def _parameters(self, data: PeerData) -> dict[str, Any]:
        return {**super()._parameters(data), "vectors": "auto"}


class HiNetWithVectors(HiNet):
    """hinet with static vectors, distilled from MiniLM once and saved with the model."""

    packages = ("sentence-transformers",)

    def _parameters(self, data: PeerData) -> dict[str, Any]:
        from hinet.encoders import Encoder, distill, packaged_encoder

        self._vectors = tempfile.TemporaryDirectory()
        distill(Encoder.load(packaged_encoder()), Path(self._vectors.name, MODEL), texts=data.train.texts)
        return {**super()._parameters(data), "vectors": Path(self._vectors.name, MODEL)}


class HiNetWithEncoder(HiNet):
    """hinet with the frozen MiniLM encoder in addition to n-grams."""

    packages = ("sentence-transformers",)

    def _parameters(self, data: PeerData) -> dict[str, Any]:
        from hinet.encoders import packaged_encoder

        return {**super()._parameters(data), "encoder": packaged_encoder()}


class Flatten(Peer):
    """The paper's Flatten Network in torch: one softmax over all labels, on hinet's features."""

    packages = ("torch",)
    modules = ("hinet.networks",)

    def prepare(self, data: PeerData) -> None:
        """Import torch and set its threads."""
        super().prepare(data)
        import torch

        torch.set_num_threads(self.threads)
        torch.manual_seed(0)

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train with the settings of the comparison."""
        from hinet.networks import FlattenNetwork, SparseBag, Targets, TrainingSettings, train
        from hinet.networks.models import WIDTH

        settings = SINGLE_WORDS if data.single_words else TextSettings(char_ngrams=(3, 5))
        self.features, rows = TextFeatures.fit_transform(list(texts), settings)
        layers = Layers.of(data.taxonomy, ends=sorted(set(labels)))
        targets = Targets(Traces.encode(layers, list(labels)))
        self.network = FlattenNetwork.for_targets(SparseBag(rows.shape[1], WIDTH), WIDTH, targets)
        train(self.network, rows, targets, TrainingSettings(seed=0, **self.settings))

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the labels with the highest scores."""
        from hinet.networks import predict_traces

        return Answers(list(predict_traces(self.network, self.features.transform(list(texts))).decode()))
