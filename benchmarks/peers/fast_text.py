"""Supervised fastText with its own word and character n-grams."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from peers.data import PeerData
from peers.peer import Answers, Peer

MODEL, PREFIX = "model.bin", "__label__"
NGRAMS = {"wordNgrams": 2, "minn": 3, "maxn": 5}
WORD_PAIRS = {"wordNgrams": 2, "minn": 0, "maxn": 0}  # without pairs, this build is unstable and can return NaN
SHARED = {"dim": 100, "bucket": 200_000, "verbose": 0, "seed": 0}
_WORD = re.compile(r"\w+")


class FastText(Peer):
    """fastText with a softmax over all labels, or a Huffman tree of them (hs)."""

    packages = ("fasttext-numpy2",)
    modules = ("fasttext",)

    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train from a file in fastText's format."""
        import fasttext

        self.labels = sorted(set(labels))
        number = {label: index for index, label in enumerate(self.labels)}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows.txt")
            lines = (f"{PREFIX}{number[label]} {_line(text)}\n" for text, label in zip(texts, labels, strict=True))
            path.write_text("".join(lines), encoding="utf-8")
            settings = {**SHARED, **(WORD_PAIRS if data.single_words else NGRAMS), **self.settings}
            self.model: Any = fasttext.train_supervised(str(path), thread=self.threads, **settings)

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return the most probable label."""
        found, p = self.model.predict([_line(text) for text in texts], k=1)
        numbers = (int(row[0].removeprefix(PREFIX)) if len(row) else 0 for row in found)
        shares = np.array([row[0] if len(row) else 0.0 for row in p], np.float64)
        return Answers([self.labels[index] for index in numbers], np.minimum(shares, 1))

    def save(self, folder: Path) -> None:
        """Write the model in fastText's format, and the labels as a pickle."""
        model, self.model = self.model, None
        model.save_model(str(folder / MODEL))
        super().save(folder)
        self.model = model

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load both."""
        import fasttext

        peer = super().load(folder)
        peer.model = fasttext.load_model(str(folder / MODEL))
        return peer


def _line(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))
